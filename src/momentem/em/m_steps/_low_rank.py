"""A low-rank mass from a window of the last draws and scores: O(D window) memory."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_count, is_traced
from momentem.em.m_steps.contract import MStep, learn_mass
from momentem.masses import WindowMass
from momentem.pytrees import Static
from momentem.types import Count, Info, Learnt

__all__ = ["fisher_low_rank"]


class LastDraws(NamedTuple):
    """The last draws and their scores, as many as there are rows."""

    num_samples: Count
    draws: Float[Array, "window dim"]
    scores: Float[Array, "window dim"]


def fisher_low_rank(window: int) -> MStep:
    """Learn a low-rank mass from the last `window` draws and scores, by the criterion of `fisher`.

    Args:
        window: how many draws are kept, at least twice the rank of the mass; ten times is better.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.fisher_low_rank(100)
    """
    check_count(4, window=window)
    return learn_mass(Partial(_init, Static(window)), _update, _estimate)


def _init(window: Static, mass: Any, size: Any) -> LastDraws:
    if not isinstance(mass, WindowMass):
        raise TypeError(
            "fisher_low_rank learns a LowRankMass, got an initial mass of type "
            f"{type(mass).__name__}; use m_steps.fisher, or build the mass with low_rank_mass"
        )
    num_rows = window.value
    if num_rows < 2 * mass.rank:
        raise ValueError(f"window must be at least twice the rank, 2 x {mass.rank}, got {num_rows}")
    if not is_traced(size) and size < num_rows:
        raise ValueError(
            f"the E-step must fill the window of {num_rows} draws, got size {size}; raise the size"
        )
    diagonal = mass.inverse_mass_diagonal()
    rows = jnp.zeros((num_rows, len(diagonal)), diagonal.dtype)
    return LastDraws(jnp.array(0), rows, rows)


def _update(statistic: LastDraws, info: Info, learnt: Learnt) -> LastDraws:
    del learnt
    window = len(statistic.draws)
    draws, scores = info.position[-window:], info.gradient[-window:]
    rows = (statistic.num_samples + jnp.arange(len(draws))) % window
    return LastDraws(
        statistic.num_samples + len(info.position),
        statistic.draws.at[rows].set(draws),
        statistic.scores.at[rows].set(scores),
    )


def _estimate(statistic: LastDraws, learnt: Learnt) -> Any:
    return learnt.mass.from_window(statistic.draws, statistic.scores)

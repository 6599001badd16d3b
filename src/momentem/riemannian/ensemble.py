"""An ensemble of chains whose mass is a function of their position, so that nothing is learnt."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

from momentem.checks import check_key
from momentem.em import FixedState
from momentem.em.ensemble import num_chains, over_chains
from momentem.pytrees import Static
from momentem.types import EnsembleInfo, Info, PRNGKey, Sampler, Vectors

__all__ = ["RiemannianKernel", "as_sampler"]


class RiemannianKernel(NamedTuple):
    """How one chain moves whose mass is its metric: there is nothing to learn."""

    init: Callable[..., Any]  # (key, position) -> state
    step: Callable[..., tuple[Any, Info]]  # (key, state) -> (state, info)


def as_sampler(kernel: RiemannianKernel, dim: int) -> Sampler:
    """Return the sampler that moves every chain by `kernel`.

    Args:
        kernel: how one chain moves.
        dim: of its positions.
    """
    return Sampler(
        Partial(_init, kernel, Static(dim)),
        Partial(_step, kernel),
        Partial(_freeze, kernel, Static(dim)),
        Partial(_learnt),
    )


def _init(kernel: RiemannianKernel, dim: Static, key: PRNGKey, positions: Vectors) -> FixedState:
    check_key(key)
    if positions.ndim != 2 or positions.shape[1] != dim.value:
        raise ValueError(f"positions must have shape (chains, {dim.value}), got {positions.shape}")
    keys = jax.random.split(key, len(positions))
    return FixedState(over_chains(kernel.init, (keys, positions)))


def _step(
    kernel: RiemannianKernel, key: PRNGKey, state: FixedState
) -> tuple[FixedState, EnsembleInfo]:
    keys = jax.random.split(key, num_chains(state.chains))
    chains, info = over_chains(kernel.step, (keys, state.chains))
    return FixedState(chains), EnsembleInfo(info, {})


def _freeze(kernel: RiemannianKernel, dim: Static, state: FixedState) -> tuple[Sampler, FixedState]:
    return as_sampler(kernel, dim.value), state


def _learnt(state: FixedState) -> None:
    del state

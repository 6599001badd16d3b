"""From a kernel to a sampler whose mass, step size and all the rest are held fixed."""

from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

from momentem.checks import check_key
from momentem.em.ensemble import check_learnt, move_chains, num_keys, start_chains
from momentem.types import EnsembleInfo, Kernel, Learnt, PRNGKey, Sampler, Vectors

__all__ = ["FixedState", "fixed"]


class FixedState(NamedTuple):
    """The chains' states alone: nothing is learnt."""

    chains: Any


def fixed(kernel: Kernel, learnt: Learnt) -> Sampler:
    """Return the sampler that moves every chain by `kernel`, with what is learnt held fixed.

    Args:
        kernel: how one chain moves.
        learnt: the mass and step size; what else the kernel leaves open and this does not name has
            the kernel's default.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.2)
        >>> sampler = mt.fixed(mt.kernels.hmc(target, num_steps=8), learnt)
    """
    learnt = check_learnt(kernel, learnt)
    return Sampler(
        Partial(_init, kernel, learnt),
        Partial(_step, kernel, learnt),
        Partial(_freeze, kernel, learnt),
        Partial(_learnt, learnt),
    )


def _init(kernel: Kernel, learnt: Learnt, key: PRNGKey, positions: Vectors) -> FixedState:
    check_key(key)
    return FixedState(start_chains(kernel, learnt, key, positions))


def _step(
    kernel: Kernel, learnt: Learnt, key: PRNGKey, state: FixedState
) -> tuple[FixedState, EnsembleInfo]:
    keys = jax.random.split(key, num_keys(kernel, state.chains))
    chains, info = move_chains(kernel, learnt, keys, state.chains)
    return FixedState(chains), EnsembleInfo(info, {})


def _freeze(kernel: Kernel, learnt: Learnt, state: FixedState) -> tuple[Sampler, FixedState]:
    return fixed(kernel, learnt), state


def _learnt(learnt: Learnt, state: FixedState) -> Learnt:
    del state
    return learnt

"""Shorter steps, in warm-up, for a chain that does not move.

One step size serves all chains, tuned to the mean of their acceptance rates. A chain that comes to
a place where the posterior is narrower than elsewhere may be refused there for ever, and among many
chains the mean does not show it. So each chain has a sum of what its rates fall short of ENOUGH,
never below zero (the CUSUM of Page 1954). Above LIMIT its steps become shorter; their number stays
the same:

    u     <- max(0, u + ENOUGH - rate)
    pace   = exp(min(0, LIMIT - u))

Chains that move are hardly ever above it: it takes LIMIT / ENOUGH refusals in a row.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.types import Flag, Info, Kernel, Learnt, PRNGKey, Scalar, Scalars, Vector

__all__ = ["PacedState", "is_any_stuck", "pace_of", "paced", "sum_refusals"]

ENOUGH, LIMIT = 0.4, 2.0


class PacedState(NamedTuple):
    """A chain, and the part of the step size that it takes: 1 unless it is stuck."""

    chain: Any
    pace: Scalar


def paced(kernel: Kernel) -> Kernel:
    """Return the same kernel with a pace for every chain.

    Args:
        kernel: one that leaves open how long its paths are, so that shorter steps make shorter
            paths.
    """
    return kernel._replace(
        init=Partial(_init, kernel), step=Partial(_step, kernel), transport=Partial(_carry, kernel)
    )


def _init(kernel: Kernel, key: PRNGKey, position: Vector, learnt: Learnt) -> PacedState:
    return PacedState(kernel.init(key, position, learnt), jnp.ones_like(position[0]))


def _step(
    kernel: Kernel, key: PRNGKey, state: PacedState, learnt: Learnt
) -> tuple[PacedState, Info]:
    pace = state.pace
    own = learnt.replace(step_size=pace * learnt.step_size, path=pace * learnt.path)
    chain, info = kernel.step(key, state.chain, own)
    return PacedState(chain, pace), info


def _carry(kernel: Kernel, state: PacedState, old: Learnt, new: Learnt) -> PacedState:
    return PacedState(kernel.transport(state.chain, old, new), state.pace)


def sum_refusals(old: Scalars, rates: Scalars) -> Scalars:
    """Return u of every chain, after an iteration with these acceptance rates."""
    return jnp.maximum(0.0, old + ENOUGH - rates)


def pace_of(sums: Scalars) -> Scalars:
    """Return the part of the step size that each chain takes."""
    return jnp.exp(jnp.minimum(0.0, LIMIT - sums))


def is_any_stuck(sums: Scalars) -> Flag:
    """Return whether a chain is above the limit."""
    return jnp.any(sums > LIMIT)

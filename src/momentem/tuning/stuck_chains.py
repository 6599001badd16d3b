"""Shorter steps, in warm-up, for a chain that does not move.

One step size serves all chains, and it is tuned to the mean of their acceptance rates. A chain that
comes to where the posterior is narrower than elsewhere may be refused there for ever, and among
many chains the mean does not show it. So each chain has a sum of what its rates fall short of
ENOUGH, never below zero (the CUSUM of Page 1954), and beyond LIMIT it takes shorter steps, as many:

    u      <- max(0, u + ENOUGH - rate)
    pace    = exp(min(0, LIMIT - u))

Chains that move are hardly ever beyond it: it takes LIMIT / ENOUGH refusals in a row.
"""

import jax.numpy as jnp

from momentem.types import Flag, Scalars

__all__ = ["is_any_stuck", "pace", "summed"]

ENOUGH, LIMIT = 0.4, 2.0


def summed(old: Scalars, rates: Scalars) -> Scalars:
    """u of every chain, after an iteration with these acceptance rates."""
    return jnp.maximum(0.0, old + ENOUGH - rates)


def pace(sums: Scalars) -> Scalars:
    """What part of the step size each chain takes."""
    return jnp.exp(jnp.minimum(0.0, LIMIT - sums))


def is_any_stuck(sums: Scalars) -> Flag:
    """Whether a chain is beyond the limit."""
    return jnp.any(sums > LIMIT)

"""The path length, by how far the end of a path has turned from its start.

A coordinate that swings with period 2 pi s has, over a path of length T, the correlation
rho = cos(T / s), whatever its scale, and the path on which it forgets its start is a quarter of its
period, s pi / 2. So

    T  <-  T (pi / 2) / arccos rho

for the largest rho of all parameters, which belongs to the slowest of them. It is taken over the
accepted moves of all chains in an E-step. From the largest of D correlations of n moves each,
sqrt(2 log(D) / n) is subtracted, which is about what it comes to by chance.

Where the mass whitens the posterior s = 1 for all, and nothing changes. A direction with a heavy
tail is slower than its mass says.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from momentem.types import Scalar, Vector, Vectors

__all__ = ["Turns", "add_moves", "lengthen", "no_turns"]


class Turns(NamedTuple):
    """Sums over accepted moves of the displacements from the centre, before and after."""

    num_moves: Scalar
    total: Vector  # half of before and after
    square: Vector  # half of those of before and after
    product: Vector  # of before and after


def no_turns(centre: Vector) -> Turns:
    """Return the sums of no moves."""
    none = jnp.zeros_like(centre)
    return Turns(jnp.zeros_like(centre[0]), none, none, none)


def add_moves(old: Turns, centre: Vector, before: Vectors, after: Vectors) -> Turns:
    """Add an iteration of all chains. Only chains that moved count."""
    a, b = before - centre[None], after - centre[None]
    counts = jnp.any(a != b, axis=1).astype(a.dtype)
    return Turns(
        old.num_moves + jnp.sum(counts),
        old.total + counts @ (a + b) / 2,
        old.square + counts @ (a**2 + b**2) / 2,
        old.product + counts @ (a * b),
    )


def lengthen(turns: Turns, path: Scalar, shortest: Scalar | float, longest: float) -> Scalar:
    """Return the path on which the slowest parameter turns by a quarter of its period."""
    n = jnp.maximum(turns.num_moves, 1.0)
    square_mean = (turns.total / n) ** 2
    rho = (turns.product / n - square_mean) / (turns.square / n - square_mean)
    chance = jnp.sqrt(2 * math.log(len(rho)) / n)
    slowest = jnp.clip(jnp.max(rho) - chance, -1.0, 0.99)
    new = path * (math.pi / 2) / jnp.arccos(slowest)
    return jnp.where(jnp.isfinite(new), jnp.clip(new, shortest, longest), path)

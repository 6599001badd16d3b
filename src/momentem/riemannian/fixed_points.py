"""Implicit steps: x = f(x), solved by iteration from a start that is near.

    iterations(number)        so many, whatever they reach: the paper's way, and vmap's favourite
    until(tolerance, most)    as many as it takes for max |x - f(x)| <= tolerance (1 + max |x|)

Reversibility and invariance hold to the error that is left, so `until` says whether it was reached;
a step that did not is a divergence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_count, check_positive
from momentem.types import Flag, Vector

__all__ = ["FixedPoint", "iterations", "until"]


class FixedPoint(NamedTuple):
    """How an implicit step is solved."""

    solve: Callable[..., tuple[Vector, Flag]]  # (f, start) -> (x, whether it is converged)


def iterations(number: int) -> FixedPoint:
    """`number` iterations. One gives a method of first order only, three or more of second.

    Args:
        number: at least 1.
    """
    check_count(1, number=number)
    return FixedPoint(Partial(_iterate, number))


def until(tolerance: float = 1e-10, most: int = 50) -> FixedPoint:
    """As many iterations as the tolerance takes, in the slowest of the chains moved together.

    Args:
        tolerance: relative to the largest coordinate; not below what the dtype can tell apart.
        most: iterations at which a step is given up as a divergence.
    """
    check_positive(tolerance=tolerance)
    check_count(1, most=most)
    return FixedPoint(Partial(_iterate_until, tolerance, most))


def _iterate(number: Any, f: Callable[[Vector], Vector], start: Vector) -> tuple[Vector, Flag]:
    x = jax.lax.fori_loop(0, number, lambda _, x: f(x), start)
    return x, jnp.isfinite(x).all()


def _iterate_until(
    tolerance: Any, most: Any, f: Callable[[Vector], Vector], start: Vector
) -> tuple[Vector, Flag]:
    bound = jnp.maximum(tolerance, 4 * jnp.finfo(start.dtype).eps).astype(start.dtype)

    def is_far(x: Vector, y: Vector) -> Flag:
        return ~(jnp.max(jnp.abs(y - x)) <= bound * (1 + jnp.max(jnp.abs(y))))

    def goes_on(carry: tuple) -> Flag:
        x, y, count = carry
        return is_far(x, y) & (count < most) & jnp.isfinite(y).all()

    def iterate(carry: tuple) -> tuple:
        _, y, count = carry
        return y, f(y), count + 1

    x, y, _ = jax.lax.while_loop(goes_on, iterate, (start, f(start), 1))
    return y, ~is_far(x, y)

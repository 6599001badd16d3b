"""Solvers of implicit steps: x = f(x), by iteration from a nearby start.

    iterations(number)        a fixed number, as in the paper: no chain waits for another
    until(tolerance, most)    until max |x - f(x)| <= tolerance (1 + max |x|)

Reversibility and invariance hold up to the error that remains. So `until` reports whether it
reached the tolerance, and a step that did not is a divergence.
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
    """A solver of implicit steps."""

    solve: Callable[..., tuple[Vector, Flag]]  # (f, start) -> (x, whether it converged)


def iterations(number: int) -> FixedPoint:
    """Build a solver that takes a fixed number of iterations.

    One iteration makes a method of first order only; three or more make it of second order.

    Args:
        number: iterations, at least 1.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> x, is_converged = mt.fixed_points.iterations(3).solve(lambda x: x / 2, jnp.ones(2))
        >>> x.tolist()
        [0.125, 0.125]
    """
    check_count(1, number=number)
    return FixedPoint(Partial(_iterate, number))


def until(tolerance: float = 1e-10, most: int = 50) -> FixedPoint:
    """Build a solver that iterates until it reaches a tolerance.

    Chains that move together all wait for the slowest.

    Args:
        tolerance: relative to the largest coordinate, and at least a few units of rounding.
        most: the number of iterations after which the step counts as a divergence.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> x, is_converged = mt.fixed_points.until(1e-3).solve(jnp.cos, jnp.ones(2))
        >>> bool(is_converged), round(float(x[0]), 2)
        (True, 0.74)
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

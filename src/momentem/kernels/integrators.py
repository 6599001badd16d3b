"""Integrators of Hamiltonian dynamics. Each step is a reversible map that preserves volume.

Leapfrog, for H = -L(theta) + p' M^-1 p / 2:

    p     <- p + (eps/2) grad L(theta)
    theta <- theta + eps M^-1 p
    p     <- p + (eps/2) grad L(theta)

Kick-rotate-kick, for the same H, solves a Gaussian part exactly: _rotating.py has its equations.

Deviates: the paper's Algorithm 1 prints the position step as eps/2, which integrates the mass 2M.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from momentem.types import Count, Mass, Scalar, Vector

__all__ = ["PhasePoint", "leapfrog", "rotating_trajectory", "trajectory"]


class PhasePoint(NamedTuple):
    """A point of phase space, with the log density and its gradient there."""

    position: Vector
    momentum: Vector
    logdensity: Scalar
    gradient: Vector


def leapfrog(
    logdensity: Callable[[Vector], Scalar], mass: Mass, step_size: Scalar | float, point: PhasePoint
) -> PhasePoint:
    """Take one leapfrog step, which evaluates one gradient."""
    momentum = point.momentum + step_size / 2 * point.gradient
    position = point.position + step_size * mass.velocity(momentum)
    value, gradient = jax.value_and_grad(logdensity)(position)
    return PhasePoint(position, momentum + step_size / 2 * gradient, value, gradient)


def trajectory(
    logdensity: Callable[[Vector], Scalar],
    mass: Mass,
    step_size: Scalar | float,
    num_steps: Count | int,
    point: PhasePoint,
) -> PhasePoint:
    """Return the end of `num_steps` leapfrog steps from `point`."""
    return jax.lax.fori_loop(
        0, num_steps, lambda _, here: leapfrog(logdensity, mass, step_size, here), point
    )


def rotating_trajectory(
    logdensity: Callable[[Vector], Scalar],
    mass: Any,
    centre: Vector,
    step_size: Scalar | float,
    num_steps: Count | int,
    point: PhasePoint,
) -> PhasePoint:
    """Return the end of `num_steps` kick-rotate-kick steps from `point`."""
    cos, sin = jnp.cos(step_size), jnp.sin(step_size)

    def step(_: Any, here: tuple) -> tuple:
        x, y, _, _, rest = here
        y = y + step_size / 2 * rest
        x, y = cos * x + sin * y, cos * y - sin * x
        value, gradient = jax.value_and_grad(logdensity)(centre + mass.drift(x))
        rest = mass.whiten(gradient) + x
        return x, y + step_size / 2 * rest, value, gradient, rest

    x, y = mass.unfold(point.position - centre), mass.whiten(point.momentum)
    rest = mass.whiten(point.gradient) + x
    start = (x, y, point.logdensity, point.gradient, rest)
    x, y, value, gradient, _ = jax.lax.fori_loop(0, num_steps, step, start)
    return PhasePoint(centre + mass.drift(x), mass.colour(y), value, gradient)

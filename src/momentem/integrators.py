"""Integrators of Hamiltonian dynamics, each one step of a reversible, volume-preserving map.

Leapfrog, for H = -L(theta) + p' M^-1 p / 2:

    p    <- p + (eps/2) grad L(theta)
    theta <- theta + eps M^-1 p
    p    <- p + (eps/2) grad L(theta)

Deviates: the paper's Algorithm 1 prints the position step as eps/2, which integrates the mass 2M.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from momentem.types import Count, Mass, Scalar, Vector

__all__ = ["PhasePoint", "leapfrog", "trajectory"]


class PhasePoint(NamedTuple):
    """A point of phase space, with what is known of the density there."""

    position: Vector
    momentum: Vector
    logdensity: Scalar
    gradient: Vector


def leapfrog(
    logdensity: Callable[[Vector], Scalar], mass: Mass, step_size: Scalar | float, point: PhasePoint
) -> PhasePoint:
    """One leapfrog step: one new gradient."""
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
    """The end of `num_steps` leapfrog steps from `point`."""
    return jax.lax.fori_loop(
        0, num_steps, lambda _, here: leapfrog(logdensity, mass, step_size, here), point
    )

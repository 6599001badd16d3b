"""Integrators of Hamiltonian dynamics, each one step of a reversible, volume-preserving map.

Leapfrog, for H = -L(theta) + p' M^-1 p / 2:

    p    <- p + (eps/2) grad L(theta)
    theta <- theta + eps M^-1 p
    p    <- p + (eps/2) grad L(theta)

Deviates: the paper's Algorithm 1 prints the position step as eps/2, which integrates the mass 2M.

Kick-rotate-kick, for the same H with a Gaussian part that is solved exactly: kernels/rotating.py.

ABOBA, for dynamics with friction and noise, on the whitened momentum y = F^-1 p (F F' = M), with
one fresh minibatch gradient g per step (maths 3.3, 4.3):

    A   theta <- theta + (eps/2) F^-T y
    B   y <- y + (eps/2) F^-1 g(theta)
    O   y <- damp(y, z, extra)                z standard normal
    B   y <- y + (eps/2) F^-1 g               the same g
    A   theta <- theta + (eps/2) F^-T y
        extra <- finish(y, extra)             thermostats, at the end of the step

Deviates: the paper prints Euler steps, whose stationary law is off at first order in eps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.targets._minibatch import StochasticTarget
from momentem.types import Count, Mass, PRNGKey, Scalar, Static, Vector
from momentem.xla.normals import normal

__all__ = [
    "Path",
    "PhasePoint",
    "StepNormals",
    "aboba",
    "leapfrog",
    "rotating_trajectory",
    "step_normals",
    "trajectory",
]

MOST_AT_ONCE = 10_000  # numbers of a step that are drawn with those of the others


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


def rotating_trajectory(
    logdensity: Callable[[Vector], Scalar],
    mass: Any,
    centre: Vector,
    step_size: Scalar | float,
    num_steps: Count | int,
    point: PhasePoint,
) -> PhasePoint:
    """The end of `num_steps` kick-rotate-kick steps from `point`, one new gradient each."""
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


class Path(NamedTuple):
    """Where a path of stochastic steps ends, and what was met on the way (a leading axis of
    steps)."""

    position: Vector
    whitened: Vector
    extra: Any  # the thermostat, or whatever else the dynamics carry
    gradient: Vector  # the last one
    noise: Float[Array, "steps dim"]
    information: Any  # likewise; None where the noise is it
    whitened_squared: Vector  # y^2, averaged over the steps
    spare: Vector  # standard normals that no step has seen: y, if the path must be undone


class StepNormals(NamedTuple):
    """Standard normals for the steps of a path, and some that no step sees."""

    sources: Array  # a leading axis of steps: the normals, or the keys to draw them with
    drawn: Callable[[Array], Float[Array, "each dim"]]  # from the source of a step
    spare: Vector


def step_normals(key: PRNGKey, num_steps: int, each: int, like: Vector) -> StepNormals:
    """`each` vectors of normals for every step, of the shape and dtype of `like`.

    Few numbers are drawn for all steps at once, which saves calls; many where they are used, for to
    write and read those of all steps takes longer than to draw them.
    """
    dim, dtype = len(like), like.dtype
    if dim <= MOST_AT_ONCE:
        normals = jax.random.normal(key, (each * num_steps + 1, dim), dtype)
        return StepNormals(
            normals[:-1].reshape(num_steps, each, dim), lambda source: source, normals[-1]
        )
    steps_key, spare_key = jax.random.split(key)
    return StepNormals(
        jax.random.split(steps_key, num_steps),
        lambda source: normal(source, (each, dim), dtype),
        normal(spare_key, (dim,), dtype),
    )


def aboba(
    target: StochasticTarget,
    mass: Mass,
    step_size: Scalar,
    num_steps: Static,
    damp: Callable[..., Vector],
    finish: Callable[..., Any],
    key: PRNGKey,
    position: Vector,
    whitened: Vector,
    extra: Any,
) -> Path:
    """`num_steps` ABOBA steps. Minibatches are drawn in bulk; the half drifts between steps are
    taken as one."""
    batch_key, noise_key = jax.random.split(key)
    batches = target.batches(batch_key, num_steps)
    normals = step_normals(noise_key, num_steps.value, 1, position)

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        theta, y, extra, total, _ = carry
        batch, source = inputs
        noisy = target.noisy_gradient(batch, theta)
        kick = step_size / 2 * mass.whiten(noisy.gradient)
        y = damp(y + kick, normals.drawn(source)[0], extra) + kick
        theta = theta + step_size * mass.drift(y)
        carry = (theta, y, finish(y, extra), total + y**2, noisy.gradient)
        return carry, (noisy.noise, noisy.information)

    theta = position + step_size / 2 * mass.drift(whitened)
    zeros = jnp.zeros_like(position)
    start = (theta, whitened, extra, zeros, zeros)
    (theta, y, extra, total, gradient), (noises, informations) = jax.lax.scan(
        step, start, (batches, normals.sources)
    )
    theta = theta - step_size / 2 * mass.drift(y)
    mean = total / num_steps.value
    return Path(theta, y, extra, gradient, noises, informations, mean, normals.spare)

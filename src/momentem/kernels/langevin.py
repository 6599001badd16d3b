"""What stochastic kernels share: states, the ABOBA path, and the end of a step.

ABOBA integrates dynamics with friction and noise. It moves the whitened momentum y = F^-1 p, with
F F' = M, and takes one fresh minibatch gradient g per step (maths 3.3, 4.3):

    A   theta <- theta + (eps/2) F^-T y
    B   y <- y + (eps/2) F^-1 g(theta)
    O   y <- damp(y, z, extra)                z standard normal
    B   y <- y + (eps/2) F^-1 g               the same g
    A   theta <- theta + (eps/2) F^-T y
        extra <- finish(y, extra)             thermostats, at the end of the step

A path diverges if anything in it is not finite, or if the kinetic energy |y|^2 / 2, half a
chi-squared with D degrees of freedom, runs away. The chain then restarts where the path began, with
a fresh momentum, and the divergence is counted.

Deviates: the paper prints Euler steps, whose stationary law is off at first order in eps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from momentem.checks import check_count, check_positive, is_traced
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget, check_stochastic_target
from momentem.types import Flag, Info, Learnt, Mass, Matrix, PRNGKey, Scalar, Vector
from momentem.xla.normals import normal

__all__ = [
    "LangevinState",
    "Path",
    "StepNormals",
    "ThermostatState",
    "aboba",
    "check_stochastic",
    "complete_noise",
    "complete_thermostat",
    "complete_thermostat_mass",
    "damping",
    "draw_momentum",
    "init_langevin",
    "is_runaway",
    "keep_or_restart",
    "predict_thermostat",
    "reframe",
    "report_thermostat",
    "step_normals",
    "thermal",
]

MOST_AT_ONCE = 10_000  # the largest dimension for which all steps draw their normals together


class LangevinState(NamedTuple):
    """The position and momentum of a chain."""

    position: Vector
    whitened: Vector  # y = F^-1 p, which needs no transport when the mass changes


class ThermostatState(NamedTuple):
    """The position, momentum and thermostat of a chain."""

    position: Vector
    whitened: Vector  # y = F^-1 p, which needs no transport when the mass changes
    thermostat: Any  # xi or q, a number; or X, a matrix


class Path(NamedTuple):
    """The end of a path of stochastic steps, and samples from its steps."""

    position: Vector
    whitened: Vector
    extra: Any  # the thermostat, or whatever else the dynamics carry
    gradient: Vector  # of the last step
    noise: Float[Array, "steps dim"]
    information: Any  # one sample per step; None: use the noise
    whitened_squared: Vector  # y^2, averaged over the steps
    spare: Vector  # standard normals that no step uses: the momentum after a restart


class StepNormals(NamedTuple):
    """Standard normals for the steps of a path, and spare ones that no step uses."""

    sources: Array  # a leading axis of steps: the normals, or the keys to draw them with
    drawn: Callable[[Array], Float[Array, "each dim"]]  # the normals of a step, from its source
    spare: Vector


def check_stochastic(target: StochasticTarget, num_steps: int, friction: float) -> None:
    """Check the arguments that all stochastic factories take."""
    check_stochastic_target(target)
    check_count(1, num_steps=num_steps)
    check_positive(friction=friction)


def complete_noise(learnt: Learnt) -> Learnt:
    """Return `learnt` with the gradient noise that a kernel corrects for. Default: none."""
    learnt = learnt.with_defaults(noise=jnp.zeros_like(learnt.mass.inverse_mass_diagonal()))
    if not is_traced(learnt.noise) and not np.all(np.asarray(learnt.noise) >= 0):
        raise ValueError(f"noise must be {len(learnt.noise)} variances >= 0, got {learnt.noise}")
    return learnt


def complete_thermostat_mass(learnt: Learnt) -> Learnt:
    """Return `learnt` with the mass of a thermostat. Default: the dimension."""
    diagonal = learnt.mass.inverse_mass_diagonal()
    default = jnp.asarray(len(diagonal), diagonal.dtype)
    learnt = learnt.with_defaults(thermostat_mass=default)
    check_positive(thermostat_mass=learnt.thermostat_mass)
    return learnt


def complete_thermostat(learnt: Learnt) -> Learnt:
    """Return `learnt` with a gradient noise and the mass of a thermostat."""
    return complete_thermostat_mass(complete_noise(learnt))


def draw_momentum(key: PRNGKey, position: Vector) -> Vector:
    """Draw a whitened momentum, which is standard normal for every mass."""
    return jax.random.normal(key, position.shape, position.dtype)


def init_langevin(key: PRNGKey, position: Vector, learnt: Learnt) -> LangevinState:
    """Return the state at a position, with a fresh momentum."""
    del learnt
    return LangevinState(position, draw_momentum(key, position))


def step_normals(key: PRNGKey, num_steps: int, each: int, like: Vector) -> StepNormals:
    """Draw `each` vectors of normals for every step, with the shape and dtype of `like`.

    In low dimensions all are drawn at once, which saves calls. In high dimensions each step draws
    its own, because drawing them is faster than writing them to memory and reading them back.
    """
    dim, dtype = len(like), like.dtype
    if dim <= MOST_AT_ONCE:
        normals = jax.random.normal(key, (each * num_steps + 1, dim), dtype)
        sources = normals[:-1].reshape(num_steps, each, dim)
        return StepNormals(sources, lambda source: source, normals[-1])
    steps_key, spare_key = jax.random.split(key)
    return StepNormals(
        jax.random.split(steps_key, num_steps),
        lambda source: normal(source, (each, dim), dtype),
        normal(spare_key, (dim,), dtype),
    )


def damping(friction: Any, rates: Any, time: Scalar) -> tuple[Any, Any]:
    """Return decay and spread of the exact solution of dy = -f y dt + N(0, 2 A dt) over `time`."""
    decay = jnp.exp(-rates * time)
    return decay, jnp.sqrt(-friction * jnp.expm1(-2 * rates * time) / rates)


def thermal(
    xi: Scalar, friction: Scalar | float, step_size: Scalar, y: Vector, z: Vector
) -> Vector:
    """Return the exact solution of dy = -xi y dt + N(0, 2 A dt), for any sign of xi."""
    is_small = jnp.abs(xi) * step_size < 1e-6
    safe = jnp.where(is_small, 1.0, xi)  # the limit of phi is used where xi is near 0
    phi = jnp.where(is_small, 2 * step_size, -jnp.expm1(-2 * safe * step_size) / safe)
    return jnp.exp(-xi * step_size) * y + jnp.sqrt(friction * phi) * z


def predict_thermostat(friction: Scalar | float, learnt: Learnt) -> Scalar:
    """Return E xi = A + b, with b from the mean of the learnt noise over directions."""
    return friction + learnt.step_size / 2 * jnp.mean(learnt.noise)


def reframe(matrix: Matrix, old: Learnt, new: Learnt) -> Matrix:
    """Return X in the frame of the new mass, so that F X F' does not change."""

    def carry(row: Vector) -> Vector:
        return new.mass.whiten(old.mass.colour(row))

    return jax.vmap(carry)(jax.vmap(carry)(matrix).T)


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
    """Take `num_steps` ABOBA steps.

    All minibatches are drawn at once. The two half drifts between steps are taken as one.
    """
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
    end, (noises, informations) = jax.lax.scan(step, start, (batches, normals.sources))
    theta, y, extra, total, gradient = end
    theta = theta - step_size / 2 * mass.drift(y)
    mean = total / num_steps.value
    return Path(theta, y, extra, gradient, noises, informations, mean, normals.spare)


def is_runaway(path: Path) -> Flag:
    """Return whether the path left the finite numbers or its kinetic energy ran away.

    The bound on |y|^2 is 100 times (D plus ten standard deviations of chi-squared): far beyond what
    a healthy chain meets, and well before overflow.
    """
    dim = len(path.position)
    kinetic = jnp.vdot(path.whitened, path.whitened)
    leaves = [path.position, path.whitened, *jax.tree.leaves(path.extra)]
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    return ~is_finite | ~(kinetic <= 100 * (dim + 10 * (2 * dim) ** 0.5))


def keep_or_restart(
    learnt: Learnt, old: Any, new: Any, path: Path, **extra_stats: Array
) -> tuple[Any, Info]:
    """Return `new`, or `old` with a fresh momentum if the path diverged, and the Info of the step.

    Both states have the fields `position` and `whitened`.
    """
    is_divergent = is_runaway(path)
    restarted = old._replace(whitened=path.spare)
    state = jax.tree.map(lambda b, a: jnp.where(is_divergent, b, a), restarted, new)
    temperatures = jnp.where(is_divergent, jnp.nan, path.whitened_squared)
    stats = {
        "diverging": is_divergent,
        "kinetic_temperature": jnp.mean(temperatures),
        "temperature_spread": jnp.std(temperatures),
        "bias_scale": learnt.step_size**2 / 2 * jnp.max(learnt.noise),  # eps lambda_max(M^-1 Bhat)
    }

    def zero_if_divergent(samples: Array) -> Array:
        return jnp.where(is_divergent, 0.0, samples)

    info = Info(
        position=state.position,
        momentum=learnt.mass.colour(state.whitened),
        gradient=zero_if_divergent(path.gradient),
        stats=stats | extra_stats,
        noise=zero_if_divergent(path.noise),
        information=jax.tree.map(zero_if_divergent, path.information),
    )
    return state, info


def report_thermostat(result: tuple[Any, Info]) -> tuple[Any, Info]:
    """Add the state's thermostat to the stats: of a matrix, its mean over directions."""
    state, info = result
    xi = state.thermostat
    mean = xi if xi.ndim == 0 else jnp.trace(xi) / len(xi)
    return state, info._replace(stats=info.stats | {"thermostat": mean})

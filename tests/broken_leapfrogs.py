"""Leapfrogs with one thing wrong each, which tests must catch."""

import jax
import jax.numpy as jnp

from momentem.kernels.integrators import PhasePoint


def _kick_drift_kick(logdensity, step_size, point, drift, sign=1):
    p = point.momentum + sign * step_size / 2 * point.gradient
    theta = point.position + drift(p)
    value, gradient = jax.value_and_grad(logdensity)(theta)
    return PhasePoint(theta, p + sign * step_size / 2 * gradient, value, gradient)


def gradient_sign(logdensity, mass, step_size, point):
    return _kick_drift_kick(
        logdensity, step_size, point, lambda p: step_size * mass.velocity(p), -1
    )


def half_position_step(logdensity, mass, step_size, point):
    """The paper's Algorithm 1 as printed."""
    return _kick_drift_kick(
        logdensity, step_size, point, lambda p: step_size / 2 * mass.velocity(p)
    )


def mass_for_its_inverse(logdensity, mass, step_size, point):
    def drift(p):
        return step_size * jnp.linalg.solve(mass.inverse_mass, p)

    return _kick_drift_kick(logdensity, step_size, point, drift)


def one_sided(logdensity, mass, step_size, point):
    """Euler: both kicks at the start."""
    p = point.momentum + step_size * point.gradient
    theta = point.position + step_size * mass.velocity(p)
    return PhasePoint(theta, p, *jax.value_and_grad(logdensity)(theta))

"""What Nose-Poincare kernels share (Bond, Leimkuhler and Laird 1999).

    H_NP = s dH,   dH = -L(theta) + p' M^-1 p / (2 s^2) + q^2 / (2 Q) + D log s - H0

On dH = 0 the physical momentum pi = p/s, the thermostat q and theta follow the Nose-Hoover flow,
which leaves exp(L - pi' M^-1 pi / 2 - q^2 / (2 Q)) invariant. One step of the generalised leapfrog
is symplectic and reversible:

    p  <- p + (eps/2) s grad L(theta),    K = p' M^-1 p / 2
    c   = q + (eps/2) [L(theta) + K / s^2 - D (1 + log s) + H0]
    q  <- 2 c / (1 + sqrt(1 + eps c / Q))     the root of (eps / 4 Q) q^2 + q - c that tends to q
    s' <- s (1 + u) / (1 - u),   u = eps q / (2 Q)
    theta <- theta + (eps/2) M^-1 p (1/s + 1/s')
    q  <- q + (eps/2) [L(theta) + K / s'^2 - D (1 + log s') - q^2 / (2 Q) + H0]
    p  <- p + (eps/2) s' grad L(theta)

A step is undefined if the root is complex, if u >= 1, or if |log s| > 15. It then returns NaN,
which the kernels count as a divergence.

Deviates: the paper prints the steps of s and theta twice too long (maths 5.3).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from momentem.types import Mass, PRNGKey, Scalar, Vector

__all__ = [
    "NosePoint",
    "bounded_log",
    "draw_thermostat",
    "energy_excess",
    "generalised_leapfrog",
    "quadratic_root",
]

MAX_LOG_SCALE = 15.0  # bound on |log s|; s is near 1 on every healthy path


class NosePoint(NamedTuple):
    """A point of the extended phase space, with the gain in log density and the gradient there."""

    position: Vector
    whitened: Vector  # F^-1 p, with p = s pi
    thermostat: Scalar  # q
    scale: Scalar  # s
    gain: Scalar  # L(theta) - L at the start of the path: a constant in L must not cost digits
    gradient: Vector


def draw_thermostat(key: PRNGKey, Q: Scalar) -> Scalar:
    """Draw q ~ N(0, Q), its stationary law where the gradient noise is fully corrected."""
    return jnp.sqrt(Q) * jax.random.normal(key, Q.shape, Q.dtype)


def quadratic_root(a: Scalar, b: Scalar | float, c: Scalar) -> Scalar:
    """Return the root of a x^2 + b x - c that tends to c/b as a -> 0, or NaN if it is complex.

    This form of the root has no cancellation.
    """
    return 2 * c / (b + jnp.sqrt(b**2 + 4 * a * c))


def bounded_log(scale: Scalar) -> Scalar:
    """Return log s, or NaN if s is negative or |log s| exceeds its bound."""
    log_scale = jnp.log(scale)
    return jnp.where(jnp.abs(log_scale) <= MAX_LOG_SCALE, log_scale, jnp.nan)


def generalised_leapfrog(
    evaluate: Callable[[Vector], tuple[Scalar, Vector]],
    mass: Mass,
    step_size: Scalar,
    thermostat_mass: Scalar,
    energy: Scalar,
    point: NosePoint,
) -> NosePoint:
    """Take one step of the generalised leapfrog.

    `evaluate` returns gain and gradient at a position. `energy` is H0 plus L at the start of the
    path.
    """
    Q, dim, half = thermostat_mass, len(point.position), step_size / 2
    s = point.scale
    w = point.whitened + half * s * mass.whiten(point.gradient)
    kinetic = jnp.vdot(w, w) / 2
    force = point.gain + kinetic / s**2 - dim * (1 + bounded_log(s)) + energy
    q = quadratic_root(step_size / (4 * Q), 1.0, point.thermostat + half * force)
    u = half * q / Q
    new_s = s * (1 + u) / (1 - u)
    theta = point.position + half * (1 / s + 1 / new_s) * mass.drift(w)
    gain, gradient = evaluate(theta)
    force = gain + kinetic / new_s**2 - dim * (1 + bounded_log(new_s)) - q**2 / (2 * Q) + energy
    w = w + half * new_s * mass.whiten(gradient)
    return NosePoint(theta, w, q + half * force, new_s, gain, gradient)


def energy_excess(thermostat_mass: Scalar, energy: Scalar, point: NosePoint) -> Scalar:
    """Return dH, which is 0 on the exact flow."""
    kinetic = jnp.vdot(point.whitened, point.whitened) / (2 * point.scale**2)
    thermal = point.thermostat**2 / (2 * thermostat_mass)
    return kinetic + thermal + len(point.position) * jnp.log(point.scale) - point.gain - energy

"""Nose-Poincare dynamics, full data (Bond, Leimkuhler and Laird 1999): the noise-free limit of the
paper's SG-NPHMC (maths 5).

    H_NP = s dH,   dH = -L(theta) + p' M^-1 p / (2 s^2) + q^2 / (2 Q) + D log s - H0

On dH = 0 the physical momentum pi = p/s, the thermostat q and theta follow the Nose-Hoover flow,
which leaves exp(L - pi' M^-1 pi / 2 - q^2 / (2 Q)) invariant. Every draw refreshes all but theta,
exactly from that law,

    pi ~ N(0, M),   q ~ N(0, Q),   s = 1,   H0 = -L + pi' M^-1 pi / 2 + q^2 / (2 Q)

and takes num_steps generalised leapfrog steps, symplectic and reversible:

    p  <- p + (eps/2) s grad L(theta),    K = p' M^-1 p / 2
    c   = q + (eps/2) [L(theta) + K / s^2 - D (1 + log s) + H0]
    q  <- 2 c / (1 + sqrt(1 + eps c / Q))     the root of (eps / 4 Q) q^2 + q - c that tends to q
    s' <- s (1 + u) / (1 - u),   u = eps q / (2 Q)
    theta <- theta + (eps/2) M^-1 p (1/s + 1/s')
    q  <- q + (eps/2) [L(theta) + K / s'^2 - D (1 + log s') - q^2 / (2 Q) + H0]
    p  <- p + (eps/2) s' grad L(theta)

There is no Metropolis step: draws are off by O(eps^2), and energy_error, the dH at the end of the
path, shows by how much. A step without a real root, with u >= 1, or with |log s| > 15 has left the
region where the step is a map at all: the draw is undone and flagged.

Deviates: the paper prints the steps of s and theta twice too long, and refreshes p and q with s and
H0 kept, which drives dH, and with it the temperature, away (maths 5.3).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_count, check_instance
from momentem.kernels._hmc import HMCState
from momentem.targets._minibatch import AnyTarget
from momentem.types import Count, Info, Kernel, Learnt, Mass, PRNGKey, Scalar, Vector

__all__ = ["NosePoint", "energy_excess", "generalised_leapfrog", "nphmc", "quadratic_root"]

MAX_LOG_SCALE = 15.0  # of s, which is near 1 on every healthy path


class NosePoint(NamedTuple):
    """A point of the extended phase space, with what is known of the density there."""

    position: Vector
    whitened: Vector  # F^-1 p, with p = s pi
    thermostat: Scalar  # q
    scale: Scalar  # s
    gain: Scalar  # L(theta) - L at the start of the path: a constant in L must not cost digits
    gradient: Vector


def quadratic_root(a: Scalar, b: Scalar | float, c: Scalar) -> Scalar:
    """The root of a x^2 + b x - c that tends to c/b as a -> 0, without cancellation; NaN if
    complex."""
    return 2 * c / (b + jnp.sqrt(b**2 + 4 * a * c))


def bounded_log(scale: Scalar) -> Scalar:
    """log s, or NaN where s is negative or out of bounds: a path that meets it is a divergence."""
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
    """One step. `evaluate` gives gain and gradient; `energy` is H0 + L at the start of the path."""
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
    """dH, which is 0 on the exact flow."""
    kinetic = jnp.vdot(point.whitened, point.whitened) / (2 * point.scale**2)
    thermal = point.thermostat**2 / (2 * thermostat_mass)
    return kinetic + thermal + len(point.position) * jnp.log(point.scale) - point.gain - energy


def nphmc(target: AnyTarget, num_steps: int) -> Kernel:
    """The Nose-Poincare kernel with full refresh. Mass, step size and thermostat mass are left
    open.

    The thermostat's own frequency is sqrt(2 D / Q): keep step_size below half its inverse.

    Args:
        target: what is sampled; of a minibatch target, the density of all data.
        num_steps: generalised leapfrog steps, and so gradients, per draw.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> from momentem.kernels._nphmc import nphmc
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> kernel = nphmc(target, num_steps=8)
        >>> learnt = mt.Learnt(
        ...     mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), thermostat_mass=jnp.array(2.0)
        ... )
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(abs(info.stats["energy_error"]) < 0.1)
        True
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    check_count(1, num_steps=num_steps)
    return Kernel(Partial(_init, target), Partial(_step, target, num_steps))


def _init(target: AnyTarget, key: PRNGKey, position: Vector, learnt: Learnt) -> HMCState:
    del key, learnt
    return HMCState(position, *jax.value_and_grad(target.logdensity)(position))


def _step(
    target: AnyTarget, num_steps: Count | int, key: PRNGKey, state: HMCState, learnt: Learnt
) -> tuple[HMCState, Info]:
    mass, Q = learnt.mass, learnt.thermostat_mass
    momentum_key, thermostat_key = jax.random.split(key)
    y = jax.random.normal(momentum_key, state.position.shape, state.position.dtype)
    q = jnp.sqrt(Q) * jax.random.normal(thermostat_key, (), y.dtype)
    zero = jnp.zeros_like(state.logdensity)
    start = NosePoint(state.position, y, q, jnp.ones_like(zero), zero, state.gradient)
    energy = jnp.vdot(y, y) / 2 + q**2 / (2 * Q)

    def evaluate(position: Vector) -> tuple[Scalar, Vector]:
        value, gradient = jax.value_and_grad(target.logdensity)(position)
        return value - state.logdensity, gradient

    def leap(_: Any, point: NosePoint) -> NosePoint:
        return generalised_leapfrog(evaluate, mass, learnt.step_size, Q, energy, point)

    end = jax.lax.fori_loop(0, num_steps, leap, start)
    energy_error = energy_excess(Q, energy, end)
    is_divergent = ~(jnp.isfinite(energy_error) & jnp.isfinite(end.gradient).all())

    here = jax.tree.map(lambda old, new: jnp.where(is_divergent, old, new), start, end)
    logdensity = state.logdensity + here.gain
    pi = here.whitened / here.scale
    stats = {
        "lp": logdensity,
        "energy": jnp.vdot(pi, pi) / 2 + here.thermostat**2 / (2 * Q) - logdensity,
        "energy_error": energy_error,
        "diverging": is_divergent,
        "thermostat": here.thermostat,
        "log_s": jnp.log(here.scale),
    }
    info = Info(here.position, mass.colour(pi), here.gradient, stats)
    return HMCState(here.position, logdensity, here.gradient), info

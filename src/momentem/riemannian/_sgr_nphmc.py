"""SGR-NPHMC (Roychowdhury, Kulis and Parthasarathy 2016): SG-NPHMC with a metric for a
mass, anchored in every step (maths 7).

    Phi(theta, pi) = -L(theta) + log |G(theta)| / 2 + pi' G(theta)^-1 pi / 2

One step, on y = L^-1 pi with G = L L', with one minibatch w:

    O   y <- exp(-f eps/2) y + sqrt(A (1 - exp(-f eps)) / f) z,      f = A + eps v / 2
    NP  from s = 1 and H0 = Phi_w + q^2 / (2 Q):
        p  <- pi - (eps/2) dPhi_w/dtheta(theta, p)                                        implicit
        K   = p' G^-1 p / 2,   c = q + (eps/2) [pi' G^-1 pi / 2 + K + q^2 / (2 Q) - D]
        q½  = 2 c / (1 + sqrt(1 + eps c / Q)),   u = eps q½ / (2 Q),   s = (1 + u) / (1 - u)
        theta' <- theta + (eps/2) [G(theta)^-1 + G(theta')^-1 / s] p                      implicit
        q' <- q½ + (eps/2) [2 K' - Phi_w(theta', p/s) - D (1 + log s) + H0 - q½^2 / (2 Q)]
        pi' <- p/s - (eps/2) dPhi_w/dtheta(theta', p/s)
    O   again

v is the gradient noise in units of the metric, V = v G. It is N/n for the Fisher metric of all
data, since the covariance of the gradient is that metric, up to the prior. The thermostat absorbs
what v misses, which is again a multiple of G. The metric itself may come from a sample of the data,
if the sample stays the same: any fixed metric is exact, and one that changes with the minibatch is
not.

Deviates: the paper takes a single fixed-point iteration, which makes the method first order.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_positive
from momentem.kernels.langevin import (
    Path,
    ThermostatState,
    check_stochastic,
    damping,
    draw_momentum,
    keep_or_restart,
    report_thermostat,
    step_normals,
)
from momentem.kernels.nose import bounded_log, draw_thermostat, quadratic_root
from momentem.pytrees import Static
from momentem.riemannian.ensemble import RiemannianKernel
from momentem.riemannian.fixed_points import FixedPoint, iterations
from momentem.riemannian.metrics import Metric, factorise
from momentem.riemannian.moves import RiemannPoint, at, check_riemannian, drift, force, kick
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Info, Learnt, PRNGKey, Scalar, Vector

__all__ = ["sgr_nphmc"]


def sgr_nphmc(
    target: StochasticTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    noise: float = 0.0,
    thermostat_mass: float | None = None,
    fixed_point: FixedPoint | None = None,
) -> RiemannianKernel:
    """Build the anchored SGR-NPHMC kernel. Its mass is its metric, so EM has nothing to learn.

    Args:
        target: a minibatch target.
        metric: G, from `momentem.metrics`.
        step_size: eps, of every step.
        num_steps: steps per draw, each with two gradients of one minibatch.
        friction: A, the injected friction per unit of time.
        noise: v, the variance of the gradient noise in units of the metric; N/n for the Fisher
            metric of all data, 0 to leave all of it to the thermostat.
        thermostat_mass: Q; None is the dimension.
        fixed_point: how to solve the implicit steps; None is `iterations(6)`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> metric = mt.metrics.metric(lambda x: 5.0 + x**2)
        >>> kernel = mt.riemannian.sgr_nphmc(target, metric, step_size=0.1, num_steps=3)
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2))
        >>> state, info = kernel.step(jax.random.key(1), state)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    fixed_point = iterations(6) if fixed_point is None else fixed_point
    check_riemannian(target, metric, step_size, num_steps, fixed_point)
    check_between(0.0, float("inf"), noise=noise)
    Q = float(len(target.initial)) if thermostat_mass is None else thermostat_mass
    check_positive(thermostat_mass=Q)
    numbers = step_size, friction, noise, Q
    step = Partial(_step, target, metric, Static(num_steps), *numbers, fixed_point)
    return RiemannianKernel(Partial(_init, Q), step)


def _init(thermostat_mass: Scalar | float, key: PRNGKey, position: Vector) -> ThermostatState:
    momentum_key, thermostat_key = jax.random.split(key)
    q = draw_thermostat(thermostat_key, jnp.asarray(thermostat_mass, position.dtype))
    return ThermostatState(position, draw_momentum(momentum_key, position), q)


def anchored_leapfrog(
    evaluate: Any,
    metric: Metric,
    step_size: Scalar,
    thermostat_mass: Scalar,
    fixed_point: FixedPoint,
    point: RiemannPoint,
    momentum: Vector,
    thermostat: Scalar,
) -> tuple[RiemannPoint, Vector, Scalar, Scalar]:
    """Take one NP step from s = 1. Return its end, as point, pi and q, and dH there.

    `evaluate` returns the RiemannPoint of a position on this minibatch. If an implicit line was not
    solved, pi is NaN.
    """
    half, Q, dim = step_size / 2, thermostat_mass, len(momentum)
    thermal = thermostat**2 / (2 * Q)
    kinetic_start = jnp.vdot(momentum, point.factor.velocity(momentum)) / 2
    p, is_kicked = kick(metric, fixed_point, half, point, momentum)
    kinetic = jnp.vdot(p, point.factor.velocity(p)) / 2
    c = thermostat + half * (kinetic_start + kinetic + thermal - dim)
    q = quadratic_root(step_size / (4 * Q), 1.0, c)
    u = half * q / Q
    s = (1 + u) / (1 - u)
    position, is_moved = drift(metric, fixed_point, half, point, p, scale=s)
    end = evaluate(position)
    pi = p / s
    kinetic = jnp.vdot(pi, end.factor.velocity(pi)) / 2
    gain = end.logdensity - point.logdensity - (end.log_determinant - point.log_determinant) / 2
    start_energy = kinetic_start + thermal  # H0 + L - log |G| / 2 at the start
    log_s = bounded_log(s)
    rate = gain + kinetic + start_energy - q**2 / (2 * Q) - dim * (1 + log_s)
    q = q + half * rate
    pi = pi + half * force(metric, end, pi)
    kinetic_end = jnp.vdot(pi, end.factor.velocity(pi)) / 2
    excess = kinetic_end + q**2 / (2 * Q) + dim * log_s - gain - start_energy
    is_solved = is_kicked & is_moved
    return end, jnp.where(is_solved, pi, jnp.nan), q, excess


def _step(
    target: StochasticTarget,
    metric: Metric,
    num_steps: Static,
    step_size: Scalar | float,
    friction: Scalar | float,
    noise: Scalar | float,
    thermostat_mass: Scalar | float,
    fixed_point: FixedPoint,
    key: PRNGKey,
    state: ThermostatState,
) -> tuple[ThermostatState, Info]:
    dtype = state.position.dtype
    eps, Q = jnp.asarray(step_size, dtype), jnp.asarray(thermostat_mass, dtype)
    batch_key, noise_key, thermostat_key = jax.random.split(key, 3)
    batches = target.batches(batch_key, num_steps)
    normals = step_normals(noise_key, num_steps.value, 2, state.position)  # one for each O
    rate = friction + eps / 2 * noise
    decay, spread = damping(friction, rate, eps / 2)

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        theta, y, q, geometry, total, drifted, _ = carry
        batch, source = inputs
        z = normals.drawn(source)
        y = decay * y + spread * z[0]
        here = target.noisy_gradient(batch, theta)
        point = RiemannPoint(theta, here.logdensity, here.gradient, *geometry)

        def evaluate(position: Vector) -> RiemannPoint:
            there = target.noisy_gradient(batch, position)
            return RiemannPoint(position, there.logdensity, there.gradient, *at(metric, position))

        pi = point.factor.colour(y)
        end, pi, q, excess = anchored_leapfrog(evaluate, metric, eps, Q, fixed_point, point, pi, q)
        y = decay * end.factor.whiten(pi) + spread * z[1]
        geometry = (end.factor, end.log_determinant, end.trace_force)
        carry = (end.position, y, q, geometry, total + y**2, drifted + excess, end.gradient)
        return carry, (here.noise, here.information)

    zeros, zero = jnp.zeros_like(state.position), jnp.zeros_like(state.thermostat)
    start: Any = (*state, at(metric, state.position), zeros, zero, zeros)
    end, (noises, informations) = jax.lax.scan(step, start, (batches, normals.sources))
    theta, y, q, geometry, total, drifted, gradient = end
    mean = total / num_steps.value
    path = Path(theta, y, q, gradient, noises, informations, mean, normals.spare)
    old = state._replace(thermostat=draw_thermostat(thermostat_key, Q))
    learnt = Learnt(geometry[0], eps, noise=jnp.full_like(theta, noise))
    new = ThermostatState(theta, y, q)
    kept = keep_or_restart(learnt, old, new, path, energy_error=drifted, step_size=eps)
    new, info = report_thermostat(kept)
    # if the chain restarted, the metric is not the one at the end of the path
    momentum = factorise(metric.matrix(new.position)).colour(new.whitened)
    return new, info._replace(momentum=momentum)

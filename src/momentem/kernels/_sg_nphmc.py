"""SG-NPHMC: Nose-Poincare dynamics driven by minibatches, anchored in every step (maths 6).

    dtheta = M^-1 pi dt,      dq = (pi' M^-1 pi - D) dt
    dpi    = [grad L - (q/Q) pi - C M^-1 pi] dt + N(0, 2 A M dt) + minibatch noise N(0, 2 B dt)

with C = A M + Bhat leaves exp(L - pi' M^-1 pi / 2 - (q - Q b)^2 / (2 Q)) invariant if the noise
that Bhat = eps V / 2 misses is a multiple b M of the mass: the thermostat absorbs it. One step, on
the whitened momentum y = F^-1 pi, with one minibatch:

    O   y_i <- exp(-f_i eps/2) y_i + sqrt(A (1 - exp(-f_i eps)) / f_i) z_i,   f_i = A + eps v_i / 2
    NP  one generalised leapfrog step (nose.py) of the minibatch's own density L_w, from s = 1 and
        H0 = -L_w + |y|^2 / 2 + q^2 / (2 Q), then y <- y / s
    O   again

Every step anchors s and H0 anew. So neither gradient noise nor the noise of L_w itself can push the
chain off the surface dH = 0: only the difference of L_w between the ends of a step enters. The
momentum may be redrawn at any time. Where Bhat is not exact, q must not be redrawn, or nothing is
absorbed.

Deviates: the paper keeps s and H0 for the whole run, with friction B M^-1 p / sqrt(s) inside the
leapfrog: noise then changes dH, and dH the temperature, without bound (`sg_nphmc_printed`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.kernels.langevin import (
    Path,
    ThermostatState,
    check_stochastic,
    complete_thermostat,
    damping,
    draw_momentum,
    keep_or_restart,
    report_thermostat,
    step_normals,
)
from momentem.kernels.nose import NosePoint, draw_thermostat, energy_excess, generalised_leapfrog
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Friction, Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["sg_nphmc"]


def sg_nphmc(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """Build the anchored SG-NPHMC kernel, which carries momentum and thermostat from draw to draw.

    Mass, step size, gradient noise and thermostat mass come from `Learnt`.

    Args:
        target: a minibatch target.
        num_steps: steps per draw, each with two gradients of one minibatch.
        friction: A, the injected friction per unit of time: 1 is critical for a whitened posterior.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sg_nphmc(target, num_steps=3)
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = kernel.complete(mt.Learnt(mass, jnp.array(0.1)))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(abs(info.stats["energy_error"]) < 0.1)
        True
    """
    check_stochastic(target, num_steps, friction)
    step = Partial(_step, target, Static(num_steps), Friction(friction))
    return Kernel(Partial(_init), step, complete=Partial(complete_thermostat))


def _init(key: PRNGKey, position: Vector, learnt: Learnt) -> ThermostatState:
    momentum_key, thermostat_key = jax.random.split(key)
    q = draw_thermostat(thermostat_key, learnt.thermostat_mass)
    return ThermostatState(position, draw_momentum(momentum_key, position), q)


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    key: PRNGKey,
    state: ThermostatState,
    learnt: Learnt,
) -> tuple[ThermostatState, Info]:
    mass, step_size, Q = learnt.mass, learnt.step_size, learnt.thermostat_mass
    batch_key, noise_key, thermostat_key = jax.random.split(key, 3)
    batches = target.batches(batch_key, num_steps)
    normals = step_normals(noise_key, num_steps.value, 2, state.position)  # one for each O
    rates = friction.rate + step_size / 2 * learnt.noise
    decay, spread = damping(friction.rate, rates, step_size / 2)

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        theta, y, q, total, drift, _ = carry
        batch, source = inputs
        z = normals.drawn(source)
        y = decay * y + spread * z[0]
        here = target.noisy_gradient(batch, theta)

        def evaluate(position: Vector) -> tuple[Scalar, Vector]:
            there = target.noisy_gradient(batch, position)
            return there.logdensity - here.logdensity, there.gradient

        energy = jnp.vdot(y, y) / 2 + q**2 / (2 * Q)
        start = NosePoint(theta, y, q, jnp.ones_like(q), jnp.zeros_like(q), here.gradient)
        end = generalised_leapfrog(evaluate, mass, step_size, Q, energy, start)
        drift = drift + energy_excess(Q, energy, end)
        y = decay * (end.whitened / end.scale) + spread * z[1]
        carry = (end.position, y, end.thermostat, total + y**2, drift, end.gradient)
        return carry, (here.noise, here.information)

    zeros, zero = jnp.zeros_like(state.position), jnp.zeros_like(state.thermostat)
    start: Any = (*state, zeros, zero, zeros)
    end, (noises, informations) = jax.lax.scan(step, start, (batches, normals.sources))
    theta, y, q, total, drift, gradient = end
    mean = total / num_steps.value
    path = Path(theta, y, q, gradient, noises, informations, mean, normals.spare)
    # a complex root, or s out of bounds, is NaN here, and so a divergence; q is then redrawn
    old = state._replace(thermostat=draw_thermostat(thermostat_key, Q))
    new = ThermostatState(theta, y, q)
    return report_thermostat(keep_or_restart(learnt, old, new, path, energy_error=drift))

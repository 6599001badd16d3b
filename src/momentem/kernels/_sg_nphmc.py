"""SG-NPHMC: Nose-Poincare dynamics driven by minibatches, anchored in every step (maths 6).

    dtheta = M^-1 pi dt,      dq = (pi' M^-1 pi - D) dt
    dpi    = [grad L - (q/Q) pi - C M^-1 pi] dt + N(0, 2 A M dt) + minibatch noise N(0, 2 B dt)

with C = A M + Bhat leaves exp(L - pi' M^-1 pi / 2 - (q - Q b)^2 / (2 Q)) invariant, whenever the
noise that Bhat = eps V / 2 misses is a multiple b M of the mass: the thermostat absorbs it. One
step, on the whitened momentum y = F^-1 pi, with one minibatch:

    O   y_i <- exp(-f_i eps/2) y_i + sqrt(A (1 - exp(-f_i eps)) / f_i) z_i,   f_i = A + eps v_i / 2
    NP  one generalised leapfrog step (nphmc.py) of the minibatch's own density L_w, from s = 1 and
        H0 = -L_w + |y|^2 / 2 + q^2 / (2 Q), then y <- y / s
    O   again

Re-anchored so, neither gradient noise nor the noise of L_w itself can push the chain off the
surface dH = 0: only the difference of L_w between both ends of a step enters. The momentum may be
redrawn at any time; q must not be where Bhat is not exact, or nothing is absorbed.

Deviates: the paper keeps s and H0 for the whole run, with friction B M^-1 p / sqrt(s) inside the
leapfrog: noise then changes dH, and dH the temperature, without bound (`sg_nphmc_printed`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.kernels._nphmc import NosePoint, energy_excess, generalised_leapfrog
from momentem.kernels.integrators import Path, step_normals
from momentem.kernels.langevin import (
    check_stochastic,
    damping,
    fresh_momentum,
    tell,
    tell_thermostat,
)
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Info, Kernel, Learnt, PRNGKey, Scalar, Static, Vector

__all__ = ["SGNPHMCState", "fresh_thermostat", "sg_nphmc"]


class SGNPHMCState(NamedTuple):
    """Where the chain is."""

    position: Vector
    whitened: Vector  # y = F^-1 pi, which needs no transport when the mass changes
    thermostat: Scalar  # q


def sg_nphmc(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """The anchored SG-NPHMC kernel. Mass, step size, gradient noise and thermostat mass are left
    open; momentum and thermostat are carried.

    Args:
        target: a minibatch target.
        num_steps: steps per draw, each of two gradients of one minibatch.
        friction: A, the injected friction per unit of time: 1 is critical for a whitened posterior.
    """
    check_stochastic(target, num_steps, friction)
    return Kernel(Partial(_init), Partial(_step, target, Static(num_steps), friction))


def fresh_thermostat(key: PRNGKey, Q: Scalar) -> Scalar:
    """q ~ N(0, Q), its law where Bhat is exact."""
    return jnp.sqrt(Q) * jax.random.normal(key, Q.shape, Q.dtype)


def _init(key: PRNGKey, position: Vector, learnt: Learnt) -> SGNPHMCState:
    momentum_key, thermostat_key = jax.random.split(key)
    q = fresh_thermostat(thermostat_key, learnt.thermostat_mass)
    return SGNPHMCState(position, fresh_momentum(momentum_key, position), q)


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    key: PRNGKey,
    state: SGNPHMCState,
    learnt: Learnt,
) -> tuple[SGNPHMCState, Info]:
    mass, step_size, Q = learnt.mass, learnt.step_size, learnt.thermostat_mass
    batch_key, noise_key, thermostat_key = jax.random.split(key, 3)
    batches = target.batches(batch_key, num_steps)
    normals = step_normals(noise_key, num_steps.value, 2, state.position)  # one for each O
    rates = friction + step_size / 2 * learnt.noise
    decay, spread = damping(friction, rates, step_size / 2)

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
    (theta, y, q, total, drift, gradient), (noises, informations) = jax.lax.scan(
        step, start, (batches, normals.sources)
    )
    mean = total / num_steps.value
    path = Path(theta, y, q, gradient, noises, informations, mean, normals.spare)
    # the quadratic has no root, or s leaves its bounds, as NaN, which `tell` finds; q starts anew
    old = state._replace(thermostat=fresh_thermostat(thermostat_key, Q))
    new = SGNPHMCState(theta, y, q)
    return tell_thermostat(tell(learnt, old, new, path, {"energy_error": drift}))

"""The paper's stochastic kernels as printed, for comparison. None keeps its target invariant.

Corrected even here is what would make a chain diverge or follow another system altogether: the sign
of the gradient in Algorithms 2 and 3, the steps of s and theta in the Nose-Poincare leapfrog, and
its unequal halves (maths 1, errata 1, 7, 8, 9, 11). The rest is as printed:

    sghmc_printed      p ~ N(0, M) in every draw; then, num_steps times,
                       p <- p - eps C M^-1 p + eps g + N(0, 2 (C - Bhat) eps),
                       theta <- theta + eps M^-1 p
                       Covariance: num_steps / (num_steps + 1) of the right one as eps -> 0.

    sgnht_printed      p <- p - eps xi M^-1 p + eps g + N(0, 2 A eps),  theta <- theta + eps M^-1 p,
                       xi <- xi + eps (p' M^-1 p / D - 1)
                       Right only where M is a multiple of the identity.

    sg_nphmc_printed   p <- p + (eps/2) [s g - B M^-1 p_new / sqrt(s)]              implicit
                       (eps / 4 Q) q_new^2 + (1 + A s eps / 2 Q) q_new = c          as in nose.py
                       s <- s (1 + u) / (1 - u),   theta <- theta + (eps/2) M^-1 p (1/s_old + 1/s)
                       q <- q + (eps/2) [… - A s q / Q]
                       p <- p + (eps/2) [s g - B M^-1 p / sqrt(s)]                  explicit
                       s, q, p and H0 are carried through the whole run (Algorithm 5).
                       Noise changes dH (nose.py), and dH the temperature: nothing bounds it.

The user guesses C, Bhat, A and B, which are multiples of the identity. States hold F^-1 p, so that
p is transported when M changes.

Deviates: the paper holds a minibatch for a whole draw, which multiplies its noise by num_steps;
here every step has its own. A chain that diverges restarts where it was (langevin.py), and with
s = 1 and a new H0 in sg_nphmc_printed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_count
from momentem.kernels.langevin import (
    LangevinState,
    Path,
    ThermostatState,
    check_stochastic,
    complete_noise,
    complete_thermostat,
    draw_momentum,
    init_langevin,
    keep_or_restart,
    report_thermostat,
)
from momentem.kernels.nose import bounded_log, draw_thermostat, quadratic_root
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget, check_stochastic_target
from momentem.types import Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["PrintedNoseState", "sg_nphmc_printed", "sghmc_printed", "sgnht_printed"]


class PrintedNoseState(NamedTuple):
    """A point of the extended phase space, with the energy of its surface."""

    position: Vector
    whitened: Vector  # F^-1 p, with p = s pi
    thermostat: Scalar  # q
    scale: Scalar  # s
    energy: Scalar  # H0


def sghmc_printed(
    target: StochasticTarget, num_steps: int, friction: float, noise_estimate: float
) -> Kernel:
    """Build the E-step of the paper's Algorithm 3, with the sign of the gradient corrected.

    Args:
        target: a minibatch target.
        num_steps: Euler steps, and so gradients, per draw.
        friction: C, a multiple of the identity.
        noise_estimate: Bhat, a multiple of the identity, at most `friction`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sghmc_printed(target, 3, friction=1.0, noise_estimate=0.1)
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), noise=jnp.zeros(2))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    check_between(0.0, float("inf"), noise_estimate=noise_estimate)
    if noise_estimate > friction:
        raise ValueError(
            "noise_estimate must not exceed friction, or the injected noise C - Bhat is negative: "
            f"got {noise_estimate} > {friction}; raise friction"
        )
    numbers = friction, friction - noise_estimate
    step = Partial(_sghmc_step, target, Static(num_steps), *numbers)
    return Kernel(Partial(init_langevin), step, complete=Partial(complete_noise))


def sgnht_printed(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """Build the E-step of the paper's Algorithm 2, with the sign of the gradient corrected.

    Args:
        target: a minibatch target.
        num_steps: Euler steps, and so gradients, per draw.
        friction: A, the injected noise per unit of time. The thermostat starts there.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sgnht_printed(target, num_steps=3)
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), noise=jnp.zeros(2))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    step = Partial(_sgnht_step, target, Static(num_steps), friction)
    return Kernel(Partial(_sgnht_init, friction), step, complete=Partial(complete_noise))


def sg_nphmc_printed(
    target: StochasticTarget, num_steps: int, thermostat_noise: float, gradient_noise: float
) -> Kernel:
    """Build the E-step of the paper's Algorithm 5, with its leapfrog corrected.

    Args:
        target: a minibatch target.
        num_steps: steps per draw, each with two gradients of one minibatch.
        thermostat_noise: A, a guess at the noise of the log density.
        gradient_noise: B, a guess at the noise of the gradient, a multiple of the identity.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sg_nphmc_printed(target, 3, 0.01, gradient_noise=0.1)
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = kernel.complete(mt.Learnt(mass, jnp.array(0.1)))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic_target(target)
    check_count(1, num_steps=num_steps)
    noises = {"thermostat_noise": thermostat_noise, "gradient_noise": gradient_noise}
    check_between(0.0, float("inf"), **noises)
    step = Partial(_nose_step, target, Static(num_steps), *noises.values())
    return Kernel(Partial(_nose_init, target), step, complete=Partial(complete_thermostat))


def _euler(
    target: StochasticTarget,
    learnt: Learnt,
    num_steps: Static,
    injected: Scalar | float,
    finish: Callable[[Vector, Scalar], Scalar],
    key: PRNGKey,
    position: Vector,
    whitened: Vector,
    friction: Scalar,
) -> Path:
    """Take `num_steps` Euler steps. `finish` returns the friction after each."""
    mass, step_size = learnt.mass, learnt.step_size
    batch_key, noise_key = jax.random.split(key)
    batches = target.batches(batch_key, num_steps)
    shape = (num_steps.value + 1, len(position))
    normals = jax.random.normal(noise_key, shape, position.dtype)
    kicks = jnp.sqrt(2 * injected * step_size) * normals[:-1]

    def step(carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        theta, p, xi, total, _ = carry
        batch, kick = inputs
        noisy = target.noisy_gradient(batch, theta)
        p = p - step_size * xi * mass.velocity(p) + step_size * noisy.gradient + kick
        theta = theta + step_size * mass.velocity(p)
        carry = (theta, p, finish(p, xi), total + mass.whiten(p) ** 2, noisy.gradient)
        return carry, (noisy.noise, noisy.information)

    zeros = jnp.zeros_like(position)
    start = (position, mass.colour(whitened), friction, zeros, zeros)
    end, (noise, information) = jax.lax.scan(step, start, (batches, kicks))
    theta, p, xi, total, gradient = end
    y = mass.whiten(p)
    mean = total / num_steps.value
    return Path(theta, y, xi, gradient, noise, information, mean, normals[-1])


def _sghmc_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    injected: Scalar | float,
    key: PRNGKey,
    state: LangevinState,
    learnt: Learnt,
) -> tuple[LangevinState, Info]:
    momentum_key, path_key = jax.random.split(key)

    def finish(p: Vector, friction: Scalar) -> Scalar:
        return friction

    start = (state.position, draw_momentum(momentum_key, state.position))
    constant = jnp.asarray(friction, state.position.dtype)
    path = _euler(target, learnt, num_steps, injected, finish, path_key, *start, constant)
    return keep_or_restart(learnt, state, LangevinState(path.position, path.whitened), path)


def _sgnht_init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> ThermostatState:
    del learnt
    thermostat = jnp.asarray(friction, position.dtype)
    return ThermostatState(position, draw_momentum(key, position), thermostat)


def _sgnht_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    key: PRNGKey,
    state: ThermostatState,
    learnt: Learnt,
) -> tuple[ThermostatState, Info]:

    def finish(p: Vector, xi: Scalar) -> Scalar:
        return xi + learnt.step_size * (2 * learnt.mass.kinetic_energy(p) / len(p) - 1)

    path = _euler(target, learnt, num_steps, friction, finish, key, *state)
    old = state._replace(thermostat=jnp.asarray(friction, state.position.dtype))
    new = ThermostatState(path.position, path.whitened, path.extra)
    return report_thermostat(keep_or_restart(learnt, old, new, path))


def _anchor_energy(logdensity: Scalar, y: Vector, q: Scalar, learnt: Learnt) -> Scalar:
    """Return the H0 for which dH = 0 at s = 1."""
    return jnp.vdot(y, y) / 2 + q**2 / (2 * learnt.thermostat_mass) - logdensity


def _nose_init(
    target: StochasticTarget, key: PRNGKey, position: Vector, learnt: Learnt
) -> PrintedNoseState:
    momentum_key, thermostat_key, batch_key = jax.random.split(key, 3)
    y = draw_momentum(momentum_key, position)
    q = draw_thermostat(thermostat_key, learnt.thermostat_mass)
    batch = jax.tree.map(lambda leaf: leaf[0], target.batches(batch_key, Static(1)))
    logdensity = target.noisy_gradient(batch, position).logdensity
    energy = _anchor_energy(logdensity, y, q, learnt)
    return PrintedNoseState(position, y, q, jnp.ones_like(q), energy)


def _nose_step(
    target: StochasticTarget,
    num_steps: Static,
    thermostat_noise: Scalar | float,
    gradient_noise: Scalar | float,
    key: PRNGKey,
    state: PrintedNoseState,
    learnt: Learnt,
) -> tuple[PrintedNoseState, Info]:
    mass, step_size, Q = learnt.mass, learnt.step_size, learnt.thermostat_mass
    A, B, H0 = thermostat_noise, gradient_noise, state.energy
    half, dim = step_size / 2, len(state.position)
    batch_key, thermostat_key, restart_key = jax.random.split(key, 3)
    batches = target.batches(batch_key, num_steps)
    tolerance = 10 * float(jnp.finfo(state.position.dtype).eps)

    from jax.scipy.sparse.linalg import cg  # slow to import, and needed here alone

    def step(carry: tuple, batch: Any) -> tuple[tuple, tuple]:
        theta, p, q, s, total, *_ = carry
        here = target.noisy_gradient(batch, theta)
        brake = half * B / jnp.sqrt(s)
        kicked = p + half * s * here.gradient
        p, _ = cg(lambda x: x + brake * mass.velocity(x), kicked, tol=tolerance)
        kinetic = mass.kinetic_energy(p)
        force = here.logdensity + kinetic / s**2 - dim * (1 + bounded_log(s)) + H0
        b = 1 + A * s * half / Q
        q = quadratic_root(step_size / (4 * Q), b, q + half * force)
        u = half * q / Q
        new_s = s * (1 + u) / (1 - u)
        theta = theta + half * (1 / s + 1 / new_s) * mass.velocity(p)
        s, there = new_s, target.noisy_gradient(batch, theta)
        force = there.logdensity + kinetic / s**2 - dim * (1 + bounded_log(s)) + H0
        q = q + half * (force - q**2 / (2 * Q) - A * s * q / Q)
        p = p + half * (s * there.gradient - B / jnp.sqrt(s) * mass.velocity(p))
        total = total + mass.whiten(p / s) ** 2
        samples = (here.noise, here.information, here.logdensity)
        return (theta, p, q, s, total, there.gradient, there.logdensity), samples

    zeros = jnp.zeros_like(state.position)
    p = mass.colour(state.whitened)
    start = (state.position, p, state.thermostat, state.scale, zeros, zeros, H0)
    (theta, p, q, s, total, gradient, logdensity), samples = jax.lax.scan(step, start, batches)
    noise, information, logdensities = samples
    mean, spare = total / num_steps.value, draw_momentum(restart_key, theta)
    path = Path(theta, mass.whiten(p / s), q, gradient, noise, information, mean, spare)
    kinetic = mass.kinetic_energy(p / s)
    stats = {
        "energy_error": kinetic + q**2 / (2 * Q) + dim * jnp.log(s) - logdensity - H0,
        "log_s": jnp.log(s),
    }
    q_restarted = draw_thermostat(thermostat_key, Q)
    old = state._replace(thermostat=q_restarted, scale=jnp.ones_like(s))
    new = PrintedNoseState(theta, mass.whiten(p), q, s, H0)
    state, info = report_thermostat(keep_or_restart(learnt, old, new, path, **stats))
    restarted = _anchor_energy(logdensities[0], state.whitened, q_restarted, learnt)
    return state._replace(energy=jnp.where(info.stats["diverging"], restarted, H0)), info

"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011), the E-step of the paper's Algorithm 1.

    target of the pair      exp(-H),  H(theta, p) = -L(theta) + p' M^-1 p / 2 + log|M| / 2
    p ~ N(0, M)
    (theta*, p*) = num_steps leapfrog steps from (theta, p)
    accept with probability min(1, exp(H(theta, p) - H(theta*, p*)))

The momentum in Info is the accepted one: p* where the move was accepted, else the p it started
from.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_count, check_instance, is_traced
from momentem.kernels.integrators import PhasePoint, trajectory
from momentem.kernels.metropolis import metropolis
from momentem.targets._minibatch import AnyTarget
from momentem.types import Count, Info, Kernel, Learnt, Mass, PRNGKey, Scalar, Vector

__all__ = ["HMCState", "hmc", "hmc_init", "judged"]


class HMCState(NamedTuple):
    """Where the chain is, with what is known of the density there."""

    position: Vector
    logdensity: Scalar
    gradient: Vector


def hmc(target: AnyTarget, num_steps: int, jitter: float = 0.0) -> Kernel:
    """The HMC kernel. Mass and step size are left open.

    Args:
        target: what is sampled.
        num_steps: leapfrog steps per draw.
        jitter: the number of steps is drawn uniformly from num_steps (1 -/+ jitter), in [0, 1),
            so that no fixed path length resonates with a periodic orbit; 0 keeps it fixed.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> kernel = mt.kernels.hmc(target, num_steps=8)
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.2))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["acceptance_rate"] > 0.9)
        True
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    check_count(1, num_steps=num_steps)
    check_between(0.0, 1.0, jitter=jitter)
    num_steps = num_steps if is_traced(num_steps) else int(num_steps)
    path = Partial(_uniform_steps, num_steps, jitter) if jitter else Partial(_same_steps, num_steps)
    return Kernel(Partial(hmc_init, target), Partial(_step, target, path))


def _same_steps(num_steps: Count | int, key: PRNGKey) -> Count | int:
    del key
    return num_steps


def _uniform_steps(num_steps: Count | int, jitter: Scalar | float, key: PRNGKey) -> Count:
    # the whole numbers within num_steps (1 -/+ jitter), against rounding
    least = jnp.maximum(1, jnp.ceil(num_steps * (1 - jitter) - 1e-6)).astype(int)
    most = jnp.floor(num_steps * (1 + jitter) + 1e-6).astype(int)
    return jax.random.randint(key, (), least, most + 1)


def hmc_init(target: AnyTarget, key: PRNGKey, position: Vector, learnt: Learnt) -> HMCState:
    """The state at a position."""
    del key, learnt
    return HMCState(position, *jax.value_and_grad(target.logdensity)(position))


def _step(
    target: AnyTarget, path: Callable, key: PRNGKey, state: HMCState, learnt: Learnt
) -> tuple[HMCState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    momentum_key, path_key, accept_key = jax.random.split(key, 3)
    num_steps = path(path_key)

    start = PhasePoint(state.position, mass.sample(momentum_key), state.logdensity, state.gradient)
    end = trajectory(target.logdensity, mass, step_size, num_steps, start)
    return judged(accept_key, mass, start, end, jnp.asarray(num_steps))


def judged(
    key: PRNGKey, mass: Mass, start: PhasePoint, end: PhasePoint, num_steps: Count
) -> tuple[HMCState, Info]:
    """The end of a path from `start`, or `start` if that is not accepted, and what to tell of
    it."""
    energy_start = mass.kinetic_energy(start.momentum) - start.logdensity
    energy_end = mass.kinetic_energy(end.momentum) - end.logdensity
    is_usable = jnp.isfinite(end.gradient).all()
    is_accepted, stats = metropolis(key, energy_start, energy_end, is_usable)
    here = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), end, start)
    stats = {"lp": here.logdensity, **stats, "n_steps": num_steps}
    info = Info(here.position, here.momentum, here.gradient, stats)
    return HMCState(here.position, here.logdensity, here.gradient), info

"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011), the E-step of the paper's Algorithm 1.

    target of the pair      exp(-H),  H(theta, p) = -L(theta) + p' M^-1 p / 2 + log|M| / 2
    p ~ N(0, M)
    (theta*, p*) = num_steps leapfrog steps from (theta, p)
    accept with probability min(1, exp(H(theta, p) - H(theta*, p*)))

The momentum in Info is p* if the move was accepted, else p.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_count, is_traced
from momentem.kernels.integrators import PhasePoint, trajectory
from momentem.kernels.metropolis import PointState, accept_or_stay, init_at
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.types import Count, Info, Kernel, Learnt, PRNGKey, Scalar

__all__ = ["hmc"]


def hmc(target: AnyTarget, num_steps: int, jitter: float = 0.0) -> Kernel:
    """Build the HMC kernel. Mass and step size come from `Learnt`.

    Args:
        target: the density to sample.
        num_steps: leapfrog steps per draw.
        jitter: in [0, 1). The number of steps is drawn uniformly from num_steps (1 -/+ jitter), so
            that no fixed path length resonates with a periodic orbit. 0 keeps it fixed.

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
    check_target(target)
    check_count(1, num_steps=num_steps)
    check_between(0.0, 1.0, jitter=jitter)
    num_steps = num_steps if is_traced(num_steps) else int(num_steps)
    path = Partial(_uniform_steps, num_steps, jitter) if jitter else Partial(_same_steps, num_steps)
    return Kernel(Partial(init_at, target), Partial(_step, target, path))


def _same_steps(num_steps: Count | int, key: PRNGKey) -> Count | int:
    del key
    return num_steps


def _uniform_steps(num_steps: Count | int, jitter: Scalar | float, key: PRNGKey) -> Count:
    # the whole numbers within num_steps (1 -/+ jitter); 1e-6 guards against rounding
    least = jnp.maximum(1, jnp.ceil(num_steps * (1 - jitter) - 1e-6)).astype(int)
    most = jnp.floor(num_steps * (1 + jitter) + 1e-6).astype(int)
    return jax.random.randint(key, (), least, most + 1)


def _step(
    target: AnyTarget, path: Callable, key: PRNGKey, state: PointState, learnt: Learnt
) -> tuple[PointState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    momentum_key, path_key, accept_key = jax.random.split(key, 3)
    num_steps = path(path_key)

    start = PhasePoint(state.position, mass.sample(momentum_key), state.logdensity, state.gradient)
    end = trajectory(target.logdensity, mass, step_size, num_steps, start)
    return accept_or_stay(accept_key, mass, start, end, jnp.asarray(num_steps))

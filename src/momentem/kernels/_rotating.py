"""HMC whose steps are exact for a Gaussian: kick, rotate, kick.

Write the log density as that of a Gaussian with mean mu and precision M, the mass, plus a rest:

    L(theta) = -(theta - mu)' M (theta - mu) / 2 + R(theta)

In the whitened coordinates x = F' (theta - mu) and y = F^-1 p the Gaussian's dynamics are a
rotation of each pair (x_i, y_i), which is solved exactly, and the rest is a kick:

    y      <- y + (eps/2) (F^-1 grad L + x)
    (x, y) <- (x cos eps + y sin eps, y cos eps - x sin eps)
    y      <- y + (eps/2) (F^-1 grad L + x)

Like leapfrog it is reversible, keeps volume and is of second order, so the same Metropolis step
makes it exact for every target. But its error is that of the rest alone. Where M and mu are learnt
and the posterior is near its Gaussian, a quarter turn, which makes the next draw independent of the
last, takes one or two gradients instead of the several of leapfrog (after Shahbaba et al. 2014, who
split at the mode; here mu and M are learnt as the chains move).

The path's length, in units of that whitened time, is drawn anew in each iteration, the same for all
chains, so that they take equally many steps and none waits for another. It is covered in the fewest
steps no longer than the step size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_instance
from momentem.kernels._hmc import hmc_init, judged
from momentem.kernels.integrators import PhasePoint, rotating_trajectory
from momentem.targets._minibatch import AnyTarget
from momentem.types import Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["RotatingState", "rotating_hmc"]


class RotatingState(NamedTuple):
    """Where a chain is, and what part of the step size it takes: 1, but where warm-up says less."""

    position: Vector
    logdensity: Scalar
    gradient: Vector
    pace: Scalar


def rotating_hmc(target: AnyTarget, jitter: float = 0.3) -> Kernel:
    """HMC by kick-rotate-kick steps. Mass, centre, step size and path length are left open.

    Args:
        target: what is sampled.
        jitter: paths are drawn uniformly from `learnt.path` (1 -/+ jitter), in [0, 1).

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = mt.Learnt(mass, 1.0, centre=jnp.zeros(2), path=1.57)
        >>> trace = mt.sample(target, mt.fixed(mt.kernels.rotating_hmc(target), learnt))
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    check_between(0.0, 1.0, jitter=jitter)
    init, step = Partial(_init, target), Partial(_step, target)
    return Kernel(init, step, share=Partial(_draw_path, jitter))


def _init(target: AnyTarget, key: PRNGKey, position: Vector, learnt: Learnt) -> RotatingState:
    return RotatingState(*hmc_init(target, key, position, learnt), jnp.ones_like(position[0]))


def _draw_path(jitter: Scalar | float, key: PRNGKey, learnt: Learnt) -> Learnt:
    if learnt.path is None or learnt.centre is None:
        raise ValueError(
            "rotating_hmc needs a centre and a path length, got None; give Learnt(mass, step_size, "
            "centre=…, path=…)"
        )
    shift = jax.random.uniform(key, dtype=learnt.path.dtype, minval=-1, maxval=1)
    path = learnt.path * (1 + jitter * shift)
    return learnt._replace(path=path, step_size=path / jnp.ceil(path / learnt.step_size))


def _step(
    target: AnyTarget, key: PRNGKey, state: RotatingState, learnt: Learnt
) -> tuple[RotatingState, Info]:
    mass, step_size = learnt.mass, state.pace * learnt.step_size
    momentum_key, accept_key = jax.random.split(key)
    num_steps = jnp.round(learnt.path / learnt.step_size).astype(int)

    start = PhasePoint(state.position, mass.sample(momentum_key), state.logdensity, state.gradient)
    end = rotating_trajectory(target.logdensity, mass, learnt.centre, step_size, num_steps, start)
    new, info = judged(accept_key, mass, start, end, num_steps)
    return RotatingState(*new, state.pace), info

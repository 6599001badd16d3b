"""HMC with steps that are exact for a Gaussian: kick, rotate, kick.

Write the log density as that of a Gaussian with mean mu and precision M, the mass, plus a rest:

    L(theta) = -(theta - mu)' M (theta - mu) / 2 + R(theta)

In the whitened coordinates x = F' (theta - mu) and y = F^-1 p the Gaussian's dynamics are a
rotation of each pair (x_i, y_i), which is solved exactly. The rest is a kick:

    y      <- y + (eps/2) (F^-1 grad L + x)
    (x, y) <- (x cos eps + y sin eps, y cos eps - x sin eps)
    y      <- y + (eps/2) (F^-1 grad L + x)

Like leapfrog, this map is reversible, preserves volume and is of second order, so the same
Metropolis step makes it exact for every target. Its error comes from the rest alone. A quarter turn
makes the next draw of a Gaussian independent of the last. Where M and mu are learnt and the
posterior is nearly Gaussian, a quarter turn takes one or two gradients, and leapfrog takes several.
(After Shahbaba et al. 2014, who split at the mode; here mu and M are learnt as the chains move.)

The length of the path, in whitened time, is drawn anew in each iteration. All chains share it, so
they take equally many steps and none waits for another. Each path takes the fewest equal steps that
do not exceed the step size. Where that loses the energy, a chain refines its path (refinement.py).

`reach` is the largest |x_i| of a draw, and `tail_index` is -x_i g_i - 1 there, g = F^-1 grad L. It
is x_i^2 - 1 for a Gaussian, and nu in the tail of a density like |x|^-(1 + nu), however far out.
"""

import math

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between
from momentem.kernels.integrators import PhasePoint, rotating_trajectory
from momentem.kernels.metropolis import PointState, accept_or_stay, init_at
from momentem.kernels.refinement import refined_path
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.types import Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["rotating_hmc"]


def rotating_hmc(target: AnyTarget, jitter: float = 0.3) -> Kernel:
    """Build the HMC kernel with kick-rotate-kick steps.

    Mass, centre, step size and path length come from `Learnt`.

    Args:
        target: the density to sample.
        jitter: in [0, 1). Path lengths are drawn uniformly from `learnt.path` (1 -/+ jitter).

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> kernel = mt.kernels.rotating_hmc(target)
        >>> learnt = kernel.complete(mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(1.0)))
        >>> learnt = kernel.share(jax.random.key(0), learnt)  # draws the path length
        >>> state = kernel.init(jax.random.key(1), jnp.ones(2), learnt)
        >>> state, info = kernel.step(jax.random.key(2), state, learnt)
        >>> bool(abs(info.stats["energy_error"]) < 1e-5)
        True
    """
    check_target(target)
    check_between(0.0, 1.0, jitter=jitter)
    init, step = Partial(init_at, target), Partial(_step, target)
    share, complete = Partial(_draw_path, jitter), Partial(_complete, target.initial)
    return Kernel(init, step, share=share, complete=complete)


def _complete(initial: Vector, learnt: Learnt) -> Learnt:
    """Return `learnt` with a centre and a path. Default: the initial position, a quarter turn."""
    return learnt.with_defaults(centre=initial, path=jnp.asarray(math.pi / 2, initial.dtype))


def _draw_path(jitter: Scalar | float, key: PRNGKey, learnt: Learnt) -> Learnt:
    shift = jax.random.uniform(key, dtype=learnt.path.dtype, minval=-1, maxval=1)
    path = learnt.path * (1 + jitter * shift)
    return learnt.replace(path=path, step_size=path / jnp.ceil(path / learnt.step_size))


def _step(
    target: AnyTarget, key: PRNGKey, state: PointState, learnt: Learnt
) -> tuple[PointState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    momentum_key, accept_key = jax.random.split(key)
    num_steps = jnp.round(learnt.path / step_size).astype(int)

    start = PhasePoint(state.position, mass.sample(momentum_key), state.logdensity, state.gradient)

    def advance(share: Scalar, point: PhasePoint) -> PhasePoint:
        step = share * step_size
        return rotating_trajectory(target.logdensity, mass, learnt.centre, step, num_steps, point)

    def energy(point: PhasePoint) -> Scalar:
        return mass.kinetic_energy(point.momentum) - point.logdensity

    path = refined_path(advance, energy, start)
    taken = num_steps * path.num_parts
    state, info = accept_or_stay(accept_key, mass, start, path.end, taken, path.is_reversible)
    refined = {"refinement_level": path.level, "coarse_acceptance_rate": path.coarse_rate}
    refined["diverging"] = info.stats["diverging"] | path.is_lost
    x, g = mass.unfold(state.position - learnt.centre), mass.whiten(state.gradient)
    farthest = jnp.argmax(jnp.abs(x))
    tail = {"reach": jnp.abs(x[farthest]), "tail_index": -x[farthest] * g[farthest] - 1}
    return state, info._replace(stats=info.stats | refined | tail)

"""Riemannian HMC (Girolami and Calderhead 2011): the mass is a metric, M = G(theta).

    H(theta, p) = -L(theta) + log |G(theta)| / 2 + p' G(theta)^-1 p / 2

is not separable, so the first two lines of its leapfrog, the generalised leapfrog, are implicit:

    p½     = p + (eps/2) force(theta, p½)
    theta' = theta + (eps/2) [G(theta)^-1 + G(theta')^-1] p½
    p'     = p½ + (eps/2) force(theta', p½)

The force is that of moves.py. If both lines are solved exactly, the step is reversible and
symplectic, and a Metropolis step makes the draws exact.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.kernels.metropolis import accept_move
from momentem.riemannian.ensemble import RiemannianKernel
from momentem.riemannian.fixed_points import FixedPoint, until
from momentem.riemannian.metrics import Metric
from momentem.riemannian.moves import RiemannPoint, at, check_riemannian, drift, force, kick
from momentem.targets._minibatch import AnyTarget
from momentem.types import Count, Flag, Info, PRNGKey, Scalar, Vector

__all__ = ["rhmc"]


def rhmc(
    target: AnyTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    fixed_point: FixedPoint | None = None,
) -> RiemannianKernel:
    """Build the RHMC kernel. Its mass is its metric, so nothing is left for EM to learn.

    Args:
        target: the density to sample.
        metric: G, from `momentem.metrics`.
        step_size: step size of the generalised leapfrog; of order 1 where G whitens the posterior.
        num_steps: leapfrog steps per draw.
        fixed_point: how to solve the implicit steps; None is `until(1e-10)`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> metric = mt.metrics.metric(lambda x: 1.0 + x**2)
        >>> kernel = mt.riemannian.rhmc(target, metric, step_size=0.1, num_steps=3)
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2))
        >>> state, info = kernel.step(jax.random.key(1), state)
        >>> bool(info.stats["acceptance_rate"] > 0.9)
        True
    """
    fixed_point = until() if fixed_point is None else fixed_point
    check_riemannian(target, metric, step_size, num_steps, fixed_point)
    step = Partial(_step, target, metric, step_size, num_steps, fixed_point)
    return RiemannianKernel(Partial(_init, target, metric), step)


def evaluate(target: AnyTarget, metric: Metric, position: Vector) -> RiemannPoint:
    """Return the log density, its gradient and the geometry at a position."""
    value, gradient = jax.value_and_grad(target.logdensity)(position)
    return RiemannPoint(position, value, gradient, *at(metric, position))


def generalised_leapfrog(
    target: AnyTarget,
    metric: Metric,
    step_size: Scalar,
    fixed_point: FixedPoint,
    point: RiemannPoint,
    momentum: Vector,
) -> tuple[RiemannPoint, Vector, Flag]:
    """Take one step. Return its end, and whether both implicit lines were solved."""
    half = step_size / 2
    momentum, is_kicked = kick(metric, fixed_point, half, point, momentum)
    position, is_moved = drift(metric, fixed_point, half, point, momentum)
    point = evaluate(target, metric, position)
    return point, momentum + half * force(metric, point, momentum), is_kicked & is_moved


def energy(point: RiemannPoint, momentum: Vector) -> Scalar:
    """Return H."""
    kinetic = jnp.vdot(momentum, point.factor.velocity(momentum)) / 2
    return kinetic + point.log_determinant / 2 - point.logdensity


def _init(target: AnyTarget, metric: Metric, key: PRNGKey, position: Vector) -> RiemannPoint:
    del key
    return evaluate(target, metric, position)


def _step(
    target: AnyTarget,
    metric: Metric,
    step_size: Scalar | float,
    num_steps: Count | int,
    fixed_point: FixedPoint,
    key: PRNGKey,
    state: RiemannPoint,
) -> tuple[RiemannPoint, Info]:
    momentum_key, accept_key = jax.random.split(key)
    dtype = state.position.dtype
    eps = jnp.asarray(step_size, dtype)
    normals = jax.random.normal(momentum_key, state.position.shape, dtype)
    start = state.factor.colour(normals)

    def leap(_: Any, carry: tuple) -> tuple:
        point, momentum, is_solved = carry
        new = generalised_leapfrog(target, metric, eps, fixed_point, point, momentum)
        return *new[:2], is_solved & new[2]

    end, momentum, is_solved = jax.lax.fori_loop(0, num_steps, leap, (state, start, True))
    energies = energy(state, start), energy(end, momentum)
    is_finite = is_solved & jnp.isfinite(end.gradient).all()
    is_accepted, stats = accept_move(accept_key, *energies, is_finite)
    here, momentum = jax.tree.map(
        lambda new, old: jnp.where(is_accepted, new, old), (end, momentum), (state, start)
    )
    stats = {"lp": here.logdensity, **stats, "n_steps": jnp.asarray(num_steps), "step_size": eps}
    return here, Info(here.position, momentum, here.gradient, stats)

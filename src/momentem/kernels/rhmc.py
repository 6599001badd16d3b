"""Riemannian HMC (Girolami and Calderhead 2011): the mass follows the position, M = G(theta).

    H(theta, p) = -L(theta) + log |G(theta)| / 2 + p' G(theta)^-1 p / 2

is not separable, so that the leapfrog is implicit in its first two lines (generalised leapfrog):

    p½     = p + (eps/2) force(theta, p½)
    theta' = theta + (eps/2) [G(theta)^-1 + G(theta')^-1] p½
    p'     = p½ + (eps/2) force(theta', p½)

    force_i(theta, p) = d_i L - tr(G^-1 d_i G) / 2 + v' d_i G v / 2,      v = G^-1 p

Solved exactly it is reversible and symplectic; a Metropolis step then makes the draws exact. All of
the force that does not depend on p is found once per point, with the factor of G, and carried to
the next step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_count, check_instance, check_positive
from momentem.fixed_points import FixedPoint, until
from momentem.kernels.hmc import metropolis
from momentem.metrics import Metric, factorise
from momentem.targets.minibatch import AnyTarget
from momentem.types import Count, Flag, Info, PRNGKey, RiemannianKernel, Scalar, Vector

__all__ = ["RiemannPoint", "force", "rhmc"]


class RiemannPoint(NamedTuple):
    """A position, with all that is known of density and metric there."""

    position: Vector
    logdensity: Scalar
    gradient: Vector
    factor: Any  # of G
    log_determinant: Scalar  # log |G|
    trace_force: Vector  # -grad log |G| / 2


def rhmc(
    target: AnyTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    fixed_point: FixedPoint | None = None,
) -> RiemannianKernel:
    """The RHMC kernel. Its mass is its metric: nothing is left open, and nothing can be learnt.

    Args:
        target: what is sampled.
        metric: G, from `momentem.metrics`.
        step_size: of the generalised leapfrog; where G whitens, of order 1.
        num_steps: leapfrog steps per draw.
        fixed_point: how implicit steps are solved; None is `until(1e-10)`.
    """
    fixed_point = check_riemannian(target, metric, step_size, num_steps, fixed_point)
    return RiemannianKernel(
        Partial(_init, target, metric),
        Partial(_step, target, metric, step_size, num_steps, fixed_point),
    )


def check_riemannian(
    target: AnyTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    fixed_point: FixedPoint | None,
) -> FixedPoint:
    """Checks what Riemannian factories take; gives the default for `fixed_point`."""
    fixed_point = until() if fixed_point is None else fixed_point
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    check_instance(Metric, "build it with a factory from momentem.metrics", metric=metric)
    check_instance(FixedPoint, "use fixed_points.iterations or until", fixed_point=fixed_point)
    check_positive(step_size=step_size)
    check_count(1, num_steps=num_steps)
    shape, dim = jax.eval_shape(metric.matrix, target.initial).shape, len(target.initial)
    if shape not in ((dim,), (dim, dim)):
        raise ValueError(
            f"metric must give a ({dim}, {dim}) matrix or the {dim} entries of a diagonal for this "
            f"target, got shape {shape}"
        )
    return fixed_point


def at(metric: Metric, position: Vector) -> tuple[Any, Scalar, Vector]:
    """G's factor at a point, log |G|, and -grad log |G| / 2: one pass forwards and one back."""
    matrix, pull_back = jax.vjp(metric.matrix, position)
    factor = factorise(matrix)
    return factor, factor.log_determinant(), pull_back(-factor.inverse() / 2)[0]


def bend(metric: Metric, position: Vector, velocity: Vector) -> Vector:
    """grad (v' G(theta) v) / 2 with v held: the part of the force that depends on the momentum."""
    return jax.grad(metric.quadratic)(position, velocity) / 2


def force(metric: Metric, point: RiemannPoint, momentum: Vector) -> Vector:
    """-dH/dtheta."""
    return (
        point.gradient
        + point.trace_force
        + bend(metric, point.position, point.factor.velocity(momentum))
    )


def kick(
    metric: Metric, fixed_point: FixedPoint, half: Scalar, point: RiemannPoint, momentum: Vector
) -> tuple[Vector, Flag]:
    """p½ = p + half force(theta, p½)."""
    return fixed_point.solve(lambda p: momentum + half * force(metric, point, p), momentum)


def drift(
    metric: Metric,
    fixed_point: FixedPoint,
    half: Scalar,
    point: RiemannPoint,
    momentum: Vector,
    scale: Scalar | float = 1.0,
) -> tuple[Vector, Flag]:
    """theta' = theta + half [G(theta)^-1 + G(theta')^-1 / scale] p½."""
    velocity = point.factor.velocity(momentum)

    def move(position: Vector) -> Vector:
        there = factorise(metric.matrix(position)).velocity(momentum)
        return point.position + half * (velocity + there / scale)

    return fixed_point.solve(move, point.position + 2 * half * velocity)


def evaluate(target: AnyTarget, metric: Metric, position: Vector) -> RiemannPoint:
    """All that is known of a position."""
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
    """One step, and whether both implicit lines were solved."""
    half = step_size / 2
    momentum, is_kicked = kick(metric, fixed_point, half, point, momentum)
    position, is_moved = drift(metric, fixed_point, half, point, momentum)
    point = evaluate(target, metric, position)
    return point, momentum + half * force(metric, point, momentum), is_kicked & is_moved


def energy(point: RiemannPoint, momentum: Vector) -> Scalar:
    """H."""
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
    is_accepted, stats = metropolis(accept_key, *energies, is_finite)
    here, momentum = jax.tree.map(
        lambda new, old: jnp.where(is_accepted, new, old), (end, momentum), (state, start)
    )
    stats = {"lp": here.logdensity, **stats, "n_steps": jnp.asarray(num_steps)}
    stats["step_size"] = eps
    return here, Info(here.position, momentum, here.gradient, stats)

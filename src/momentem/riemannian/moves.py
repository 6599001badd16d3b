"""What Riemannian kernels share: a point with its geometry, and the two implicit moves.

    kick    p½     = p + (eps/2) force(theta, p½)
    drift   theta' = theta + (eps/2) [G(theta)^-1 + G(theta')^-1 / s] p½

    force_i(theta, p) = d_i L - tr(G^-1 d_i G) / 2 + v' d_i G v / 2,      v = G^-1 p

The part of the force that does not depend on p is computed once per point, with the factor of G,
and carried to the next step.
"""

from typing import Any, NamedTuple

import jax

from momentem.checks import check_count, check_instance, check_positive
from momentem.riemannian.fixed_points import FixedPoint
from momentem.riemannian.metrics import Metric, factorise
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.types import Flag, Scalar, Vector

__all__ = ["RiemannPoint", "at", "check_riemannian", "drift", "force", "kick"]


class RiemannPoint(NamedTuple):
    """A position, with the log density, its gradient and the geometry there."""

    position: Vector
    logdensity: Scalar
    gradient: Vector
    factor: Any  # the factor of G
    log_determinant: Scalar  # log |G|
    trace_force: Vector  # -grad log |G| / 2


def check_riemannian(
    target: AnyTarget, metric: Metric, step_size: float, num_steps: int, fixed_point: FixedPoint
) -> None:
    """Check the arguments that all Riemannian factories take."""
    check_target(target)
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


def at(metric: Metric, position: Vector) -> tuple[Any, Scalar, Vector]:
    """Return the geometry at a position: the factor of G, log |G|, and -grad log |G| / 2."""
    matrix, pull_back = jax.vjp(metric.matrix, position)
    factor = factorise(matrix)
    return factor, factor.log_determinant(), pull_back(-factor.inverse() / 2)[0]


def bend(metric: Metric, position: Vector, velocity: Vector) -> Vector:
    """Return grad (v' G(theta) v) / 2 with v fixed: the part of the force that depends on p."""
    return jax.grad(metric.quadratic)(position, velocity) / 2


def force(metric: Metric, point: RiemannPoint, momentum: Vector) -> Vector:
    """Return -dH/dtheta."""
    constant = point.gradient + point.trace_force
    return constant + bend(metric, point.position, point.factor.velocity(momentum))


def kick(
    metric: Metric, fixed_point: FixedPoint, half: Scalar, point: RiemannPoint, momentum: Vector
) -> tuple[Vector, Flag]:
    """Solve p½ = p + half force(theta, p½). Return p½, and whether it converged."""
    return fixed_point.solve(lambda p: momentum + half * force(metric, point, p), momentum)


def drift(
    metric: Metric,
    fixed_point: FixedPoint,
    half: Scalar,
    point: RiemannPoint,
    momentum: Vector,
    scale: Scalar | float = 1.0,
) -> tuple[Vector, Flag]:
    """Solve theta' = theta + half [G(theta)^-1 + G(theta')^-1 / scale] p½.

    Return theta', and whether it converged.
    """
    velocity = point.factor.velocity(momentum)

    def move(position: Vector) -> Vector:
        there = factorise(metric.matrix(position)).velocity(momentum)
        return point.position + half * (velocity + there / scale)

    return fixed_point.solve(move, point.position + 2 * half * velocity)

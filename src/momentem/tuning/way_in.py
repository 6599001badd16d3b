"""The way in: from any start to where the posterior is, before any mass is trusted.

Every chain climbs from its own start, in a frame of its own: a square root R of an inverse Hessian.

Measure. With unit steps along the columns of R, each uphill, s_j = +-1, the differences of scores

    A_ij = -s_j (R' [g(theta + s_j R e_j) - g(theta)])_i,      made symmetric, = V diag(lambda) V'

are the Hessian in the frame, and R <- R V |lambda|^-1/2 makes it the identity up to signs. Where a
step was too long or too short to be trusted, it is measured again in the new frame. So scales and
correlations need not be known, and a condition number of 1e8 is no problem in single precision: the
numbers that are compared are always near 1.

Climb. theta <- theta + t R R' g, with backtracking, and R is updated as in BFGS, in factors:

    R <- R - s w'R,      w = y / s'y - t g / sqrt(t s'g s'y),      s = t R R' g,  y = g_old - g_new

Arrive. In the bulk of a Gaussian |R' g|^2 has mean D and variance 2 D. A chain has arrived where it
is at most D + 4 sqrt(2 D), with R measured there. It does not look for the mode, which may be at
infinity.

Spread. The chain is then drawn from the local normal, N(theta + R R' g, R R'), or nearer to theta
if the density is much lower there. So chains from different modes stay apart, and others start
where they would be found later.

One loop does all of this, with one gradient per turn, so that little has to be compiled.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.types import Count, Flag, Matrix, PRNGKey, Scalar, Vector
from momentem.xla.once import run_if_due

__all__ = ["Place", "climb", "leave_behind", "pool_roots"]

LOOK, MEASURE, CLIMB, SPREAD, DONE = range(5)  # what a chain does
MOST_GRADIENTS = 1000
MOST_ROUNDS = 8  # of measuring and climbing
MOST_PASSES = 6  # of measuring in one place
TOO_LONG = 16.0  # curvature in the frame above which a step was too long to be trusted
LONGER = 1e-4  # least curvature in the frame: steps become at most 100 times longer in a pass
ENOUGH = 1e-4  # share of the predicted rise that a step must reach (Armijo)
MOST_TRIES = 12
NOWHERE = 30.0  # in logarithms
LEAST_CURVATURE = 0.05  # of what was expected, in BFGS updates


class Place(NamedTuple):
    """Where a chain is on its way, and what it knows there."""

    position: Vector
    logdensity: Scalar
    gradient: Vector
    root: Matrix  # R
    differences: Matrix  # columns of -A that were measured
    phase: Count
    step: Scalar  # t
    num_done: Count  # columns measured, steps climbed or tries made, in this phase
    tries: Count  # of the current step
    passes: Count  # of measuring in this place
    rounds: Count
    num_gradients: Count
    has_arrived: Flag
    is_flat: Flag  # no curvature was found in some direction, however long the step
    evidence: Scalar  # of the place, as if it were normal: log density of its top and volume


def climb(
    evaluate: Callable[[Vector], tuple[Scalar, Vector]], key: PRNGKey, start: Vector
) -> Place:
    """Return where a chain arrives from a start.

    Args:
        evaluate: position -> the log density and its gradient.
        key: for the spread.
        start: where both are finite.
    """
    dim, dtype = len(start), start.dtype
    noise = jax.random.normal(key, start.shape, dtype)
    none, zero = jnp.zeros((), int), jnp.zeros((), dtype)
    matrix = jnp.eye(dim, dtype=dtype)
    first = Place(
        *(start, zero, jnp.zeros_like(start), matrix, jnp.zeros_like(matrix)),
        *(
            none,
            jnp.ones((), dtype),
            none,
            none,
            none,
            none,
            none,
            jnp.array(False),
            jnp.array(False),
        ),
        evidence=zero - jnp.inf,
    )

    def goes_on(place: Place) -> Flag:
        return (place.phase != DONE) & (place.num_gradients < MOST_GRADIENTS)

    def turn(old: Place) -> Place:
        up = old.root @ (old.root.T @ old.gradient)
        column = _uphill(old) * old.root[:, jnp.minimum(old.num_done, dim - 1)]
        moves = jnp.stack(
            [jnp.zeros_like(up), column, old.step * up, old.step * (up + old.root @ noise)]
        )
        trial = old.position + moves[jnp.minimum(old.phase, SPREAD)]
        value, gradient = evaluate(trial)
        is_finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
        old = old._replace(num_gradients=old.num_gradients + 1)
        afterwards = (
            _begin(old, value, gradient),
            _measured(old, gradient, is_finite),
            _climbed(old, trial, value, gradient, is_finite),
            _spread(old, trial, value, gradient, is_finite),
        )
        place = jax.tree.map(
            lambda *options: jnp.stack(options)[jnp.minimum(old.phase, SPREAD)], *afterwards
        )
        is_measured = (place.phase == MEASURE) & (place.num_done == dim)
        return run_if_due(is_measured, _turn_frame, jax.random.key(0), place)

    return jax.lax.while_loop(goes_on, turn, first)


def leave_behind(places: Place) -> Place:
    """Return the places of all chains, with that of the best chain for those that are nowhere.

    Chains that came to a place whose share of the posterior is below exp(-NOWHERE), if it and the
    best are about normal, move to the best: a ridge, a saddle or a negligible mode.
    """
    best = jnp.argmax(places.evidence)
    is_somewhere = places.evidence >= places.evidence[best] - NOWHERE
    chosen = jnp.where(is_somewhere, jnp.arange(len(is_somewhere)), best)
    moved = jax.tree.map(lambda leaf: leaf[chosen], places)
    return moved._replace(num_gradients=places.num_gradients)


def pool_roots(roots: Float[Array, "chains dim dim"]) -> Matrix:
    """Return R with (R R')^-1 the mean of the chains' (R R')^-1."""
    inverses = jnp.linalg.inv(roots).reshape(-1, roots.shape[2]) / len(roots) ** 0.5
    return jnp.linalg.inv(jnp.linalg.qr(inverses, mode="r"))


def bulk(dim: int) -> float:
    """Return the largest |R' g|^2 at which a chain has arrived."""
    return dim + 4 * math.sqrt(2 * dim)


def _begin(old: Place, value: Scalar, gradient: Vector) -> Place:
    return _measure_next(old._replace(logdensity=value, gradient=gradient))


def _measure_next(old: Place) -> Place:
    """Measure here, unless this has been done often enough."""
    none = jnp.zeros_like(old.num_done)
    phase = jnp.where(old.rounds < MOST_ROUNDS, MEASURE, SPREAD)
    rounds, step = old.rounds + 1, jnp.ones_like(old.step)
    return old._replace(
        phase=phase, num_done=none, tries=none, passes=none, rounds=rounds, step=step
    )


def _uphill(old: Place) -> Scalar:
    """Return the sign of the slope along the column that is measured."""
    column = old.root[:, jnp.minimum(old.num_done, len(old.position) - 1)]
    return jnp.where(column @ old.gradient < 0, -1.0, 1.0).astype(column.dtype)


def _measured(old: Place, gradient: Vector, is_finite: Flag) -> Place:
    """Note a column. A step to where the density is not finite was far too long."""
    difference = _uphill(old) * (old.root.T @ (gradient - old.gradient))
    own = jnp.arange(len(difference)) == old.num_done
    difference = jnp.where(is_finite, difference, jnp.where(own, -1 / LONGER, 0.0))
    columns = jnp.where(own[None], difference[:, None], old.differences)
    return old._replace(differences=columns, num_done=old.num_done + 1)


def _turn_frame(key: PRNGKey, old: Place) -> Place:
    """Make the measured Hessian the identity, up to signs. Then measure again, climb or arrive."""
    del key
    dtype = old.root.dtype
    curvatures, turn = jnp.linalg.eigh(-(old.differences + old.differences.T) / 2)
    sizes = jnp.abs(curvatures)
    least = jnp.maximum(LONGER, math.sqrt(jnp.finfo(dtype).eps) * jnp.max(sizes))
    root = (old.root @ turn) / jnp.sqrt(jnp.maximum(sizes, least))[None]
    is_usable = jnp.isfinite(root).all()
    root = jnp.where(is_usable, root, old.root / 10)
    is_trusted = is_usable & (jnp.max(sizes) <= TOO_LONG) & jnp.all(sizes >= least)
    is_again = ~is_trusted & (old.passes + 1 < MOST_PASSES)
    slope = jnp.sum((root.T @ old.gradient) ** 2)
    has_arrived = ~is_again & (slope <= bulk(len(root)))
    top = old.logdensity + jnp.minimum(slope, bulk(len(root))) / 2
    none = jnp.zeros_like(old.num_done)
    return old._replace(
        root=root,
        phase=jnp.where(is_again, MEASURE, jnp.where(has_arrived, SPREAD, CLIMB)),
        step=jnp.ones_like(old.step),
        num_done=none,
        tries=none,
        passes=old.passes + 1,
        has_arrived=has_arrived,
        is_flat=jnp.min(sizes) < LONGER,
        evidence=top + jnp.linalg.slogdet(root)[1],
    )


def _climbed(old: Place, trial: Vector, value: Scalar, gradient: Vector, is_finite: Flag) -> Place:
    slope = jnp.sum((old.root.T @ old.gradient) ** 2)
    rise, predicted = value - old.logdensity, old.step * slope
    slack = 4 * jnp.finfo(value.dtype).eps * jnp.abs(old.logdensity)  # rounding
    is_accepted = is_finite & (rise >= ENOUGH * predicted - slack)
    # refused: where a parabola through both values has its top, within limits
    top = old.step * jnp.clip(predicted / (2 * (predicted - rise)), 0.1, 0.5)
    shorter = old._replace(step=jnp.where(is_finite, top, old.step / 10), tries=old.tries + 1)
    root = _update_root(old, gradient)
    higher = old._replace(
        position=trial,
        logdensity=value,
        gradient=gradient,
        root=jnp.where(jnp.isfinite(root).all(), root, old.root),
        step=jnp.ones_like(old.step),
        num_done=old.num_done + 1,
        tries=jnp.zeros_like(old.tries),
    )
    new = _choose(is_accepted, higher, shorter)
    is_near = jnp.sum((new.root.T @ new.gradient) ** 2) <= bulk(len(trial))
    is_long = new.num_done >= 20 + 2 * len(trial)
    is_over = (is_accepted & (is_near | is_long)) | (new.tries > MOST_TRIES)
    return _choose(is_over, _measure_next(new), new)


def _update_root(old: Place, gradient: Vector) -> Matrix:
    g, t = old.gradient, old.step
    whitened = old.root.T @ g
    s, y = t * (old.root @ whitened), g - gradient
    expected = t**2 * jnp.sum(whitened**2)  # s'y, if R R' is the inverse Hessian
    lacking = jnp.maximum(0.0, LEAST_CURVATURE * expected - s @ y) / expected
    y = y + lacking * t * g
    w = y / (s @ y) - t * g / jnp.sqrt((s @ y) * expected)
    return old.root - s[:, None] * (w @ old.root)[None]


def _spread(old: Place, trial: Vector, value: Scalar, gradient: Vector, is_finite: Flag) -> Place:
    half = len(trial) / 2
    is_accepted = is_finite & (value >= old.logdensity - half - 4 * math.sqrt(half))
    there = old._replace(position=trial, logdensity=value, gradient=gradient)
    new = _choose(is_accepted, there, old._replace(step=old.step / 2, tries=old.tries + 1))
    is_over = is_accepted | (new.tries > MOST_TRIES)
    return new._replace(phase=jnp.where(is_over, DONE, SPREAD))


def _choose(condition: Flag, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)

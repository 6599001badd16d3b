"""The way in: from any start to where the posterior is, before any mass is trusted.

Every chain climbs from its own start, in a frame of its own: a square root R of an inverse Hessian.

Measure. With unit steps along the columns of R, each uphill, s_j = +-1, the differences of scores

    A_ij = -s_j (R' [g(theta + s_j R e_j) - g(theta)])_i

are the Hessian in the frame. It is made symmetric, with weights min(1, 1 / |A_jj|): a step that was
far too long tells nothing of the others. With its diagonal S and S^-1/2 A S^-1/2 = V diag(l) V',
R <- R S^-1/2 V |l|^-1/2 makes it the identity up to signs. Where a step was too long or too short
to be trusted, it is measured again in the new frame. So scales and correlations need not be known,
and a condition number of 1e8 is no problem in single precision: the numbers that are compared are
always near 1.

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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.masses.protocol import Root
from momentem.targets._ascent import bulk
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
    num_done: Count  # columns measured or steps climbed, in this phase
    tries: Count  # of the current step
    passes: Count  # of measuring in this place
    rounds: Count
    num_gradients: Count
    num_not_finite: Count  # of them, or of values
    is_flat: Flag  # no curvature was found in some direction, however long the step
    volume: Scalar  # log |det R|
    evidence: Scalar  # of the place, as if it were normal: log density of its top, and volume


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
        *(start, zero, jnp.zeros_like(start), matrix, jnp.zeros_like(matrix), none),
        *(zero + 1, none, none, none, none, none, none),
        *(jnp.array(False), zero, zero - jnp.inf),
    )

    def goes_on(place: Place) -> Flag:
        return (place.phase != DONE) & (place.num_gradients < MOST_GRADIENTS)

    def turn(old: Place) -> Place:
        column = (jnp.arange(dim) == old.num_done).astype(dtype)
        slopes = old.root.T @ old.gradient
        sign = jnp.where(slopes @ column < 0, -1.0, 1.0).astype(dtype)  # uphill
        ahead = slopes + jnp.where(old.phase == SPREAD, noise, jnp.zeros_like(noise))
        whitened = jnp.where(old.phase == MEASURE, sign * column, old.step * ahead)
        move = old.root @ jnp.where(old.phase == LOOK, jnp.zeros_like(whitened), whitened)
        value, gradient = evaluate(old.position + move)
        difference = sign * (old.root.T @ (gradient - old.gradient))
        place = _walk(_note(old, column, difference), old, move, slopes, value, gradient)
        is_measured = (place.phase == MEASURE) & (place.num_done == dim)
        return run_if_due(is_measured, _turn_frame, jax.random.key(0), place)

    return jax.lax.while_loop(goes_on, turn, first)


def _note(old: Place, column: Vector, difference: Vector) -> Place:
    """Note a column that was measured. A step to where the density is not finite was far too
    long."""
    is_finite = jnp.isfinite(difference).all()
    difference = jnp.where(is_finite, difference, -column / LONGER)
    is_own = (column > 0) & (old.phase == MEASURE)
    columns = jnp.where(is_own[None], difference[:, None], old.differences)
    return old._replace(differences=columns)


def _walk(
    noted: Place, old: Place, move: Vector, slopes: Vector, value: Scalar, gradient: Vector
) -> Place:
    """Take the step or make it shorter, and decide what comes next."""
    dim, half = len(move), len(move) / 2
    is_climbing, is_measuring = old.phase == CLIMB, old.phase == MEASURE
    is_finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
    slope, rise = jnp.sum(slopes**2), value - old.logdensity
    predicted = old.step * slope
    slack = 4 * jnp.finfo(value.dtype).eps * jnp.abs(old.logdensity)  # rounding
    least = jnp.where(is_climbing, ENOUGH * predicted - slack, -half - 4 * math.sqrt(half))
    is_high = (rise >= least) | (old.phase == LOOK)
    is_taken = is_finite & is_high & ~is_measuring
    is_climbed = is_taken & is_climbing
    # refused: where a parabola through both values has its top, within limits
    top = jnp.clip(predicted / (2 * (predicted - rise)), 0.1, 0.5)
    shorter = old.step * jnp.where(is_climbing & is_finite, top, jnp.where(is_climbing, 0.1, 0.5))
    tries = jnp.where(is_taken | is_measuring, 0, old.tries + 1)

    root, volume = _update_root(old, move, slope, gradient)
    is_usable = is_climbed & jnp.isfinite(root).all() & jnp.isfinite(volume)
    root, volume = jnp.where(is_usable, root, old.root), jnp.where(is_usable, volume, old.volume)
    num_done = old.num_done + (is_measuring | is_climbed).astype(int)
    is_near = jnp.sum((root.T @ gradient) ** 2) <= bulk(dim)
    is_over = is_climbed & (is_near | (num_done >= 20 + 2 * dim))
    is_over = (old.phase == LOOK) | (is_climbing & (is_over | (tries > MOST_TRIES)))
    is_done = (old.phase == SPREAD) & (is_taken | (tries > MOST_TRIES))
    phase = jnp.where(is_done, DONE, old.phase)
    # measure, unless this has been done often enough
    phase = jnp.where(is_over, jnp.where(old.rounds < MOST_ROUNDS, MEASURE, SPREAD), phase)
    return noted._replace(
        position=jnp.where(is_taken, old.position + move, old.position),
        logdensity=jnp.where(is_taken, value, old.logdensity),
        gradient=jnp.where(is_taken, gradient, old.gradient),
        root=root,
        volume=volume,
        phase=phase,
        step=jnp.where(is_taken | is_measuring | is_over, jnp.ones_like(shorter), shorter),
        num_done=jnp.where(is_over, 0, num_done),
        tries=jnp.where(is_over, 0, tries),
        passes=jnp.where(is_over, 0, old.passes),
        rounds=old.rounds + is_over.astype(int),
        num_gradients=old.num_gradients + 1,
        num_not_finite=old.num_not_finite + (~is_finite).astype(int),
    )


def _update_root(old: Place, s: Vector, slope: Scalar, gradient: Vector) -> tuple[Matrix, Scalar]:
    """Return R and log |det R| after a BFGS update; |det (I - s w')| = |1 - s'w|."""
    g, t = old.gradient, old.step
    expected = t**2 * slope  # s'y, if R R' is the inverse Hessian
    y = g - gradient
    y = y + jnp.maximum(0.0, LEAST_CURVATURE * expected - s @ y) / expected * t * g
    w = y / (s @ y) - t * g / jnp.sqrt((s @ y) * expected)
    root = old.root - s[:, None] * (w @ old.root)[None]
    return root, old.volume + jnp.log(jnp.abs(1 - s @ w))


def _turn_frame(key: PRNGKey, old: Place) -> Place:
    """Make the measured Hessian the identity, up to signs. Then measure again, climb or arrive."""
    del key
    dim, dtype = len(old.root), old.root.dtype
    sizes = jnp.abs(jnp.diagonal(old.differences))
    weights = 1 / jnp.maximum(1.0, sizes)
    total = weights[:, None] + weights[None]
    hessian = -(old.differences * weights[None] + old.differences.T * weights[:, None]) / total
    hessian = hessian + jnp.diag(jnp.where(sizes < LONGER, LONGER - jnp.diagonal(hessian), 0))
    widths = 1 / jnp.sqrt(jnp.maximum(sizes, LONGER))
    curvatures, turn = jnp.linalg.eigh(widths[:, None] * hessian * widths[None])
    least = math.sqrt(jnp.finfo(dtype).eps) * jnp.max(jnp.abs(curvatures))
    scales = jnp.sqrt(jnp.maximum(jnp.abs(curvatures), least))
    root = ((old.root * widths[None]) @ turn) / scales[None]
    volume = old.volume + jnp.sum(jnp.log(widths)) - jnp.sum(jnp.log(scales))
    is_usable = jnp.isfinite(root).all()
    root = jnp.where(is_usable, root, old.root / 10)
    volume = jnp.where(is_usable, volume, old.volume - dim * math.log(10))
    is_level = jnp.any(sizes < LONGER) | jnp.any(jnp.abs(curvatures) < least)
    is_trusted = is_usable & (jnp.max(sizes) <= TOO_LONG) & ~is_level
    is_again = ~is_trusted & (old.passes + 1 < MOST_PASSES)
    slope = jnp.sum((root.T @ old.gradient) ** 2)
    has_arrived = ~is_again & (slope <= bulk(dim))
    return old._replace(
        root=root,
        phase=jnp.where(is_again, MEASURE, jnp.where(has_arrived, SPREAD, CLIMB)),
        num_done=jnp.zeros_like(old.num_done),
        passes=old.passes + 1,
        is_flat=is_level,
        volume=volume,
        evidence=old.logdensity + jnp.minimum(slope, bulk(dim)) / 2 + volume,
    )


def leave_behind(places: Place) -> Place:
    """Return the places of all chains, with that of the best chain for those that are nowhere.

    Chains that came to a place whose share of the posterior is below exp(-NOWHERE), if it and the
    best are about normal, move to the best: a ridge, a saddle or a negligible mode.
    """
    best = jnp.argmax(places.evidence)
    is_somewhere = places.evidence >= places.evidence[best] - NOWHERE
    chosen = jnp.where(is_somewhere, jnp.arange(len(is_somewhere)), best)
    moved = jax.tree.map(lambda leaf: leaf[chosen], places)
    return moved._replace(num_gradients=places.num_gradients, num_not_finite=places.num_not_finite)


def pool_roots(roots: Float[Array, "chains dim dim"]) -> Root:
    """Return R with R R' the mean of the chains' R R'."""
    return jnp.concatenate(list(roots), axis=1) / len(roots) ** 0.5

"""The ascent to the posterior's bulk, by gradients alone, from ever larger parts of the data.

With many rows a log density has fewer correct digits than a line search needs: in float32 and with
N = 10^6 its rounding error is larger than a step of a standard deviation is worth. Its gradient has
as many as it needs, so only gradients are compared here.

Frame. R is a root of the inverse Hessian of -L. It is measured by exact products of the Hessian
with the columns of R, made symmetric, scaled to a unit diagonal, and decomposed; then
R <- R S^-1/2 V |lambda|^-1/2. Directions that rounding hides in one frame are seen in the next.

Step. s = t R R' g. It is kept if the slope at its end is not steeply downhill, and else shortened
to where a parabola has its top.

Parts. The first part of the data is a few minibatches, and there the Hessian is measured after
every step. Each part that follows is GROWTH times as large, so its bulk is a few steps from that of
the last, and R is kept up as in BFGS, in factors:

    R <- R - s w'R,      w = y / s'y - t g / sqrt(t s'g s'y),      y = g_old - g_new

The last part is all data. So the ascent costs a few gradients of all data, however long it is.

Arrival. |R' g|^2 is the squared distance from the mode in standard deviations. Chains that are
within `tolerance` per dimension of it stop; those within the bulk, D + 4 sqrt(2 D), have arrived.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from momentem.pytrees import Static
from momentem.targets._minibatch import AnyTarget, StochasticTarget, whole_gradient
from momentem.targets.streams import is_stream
from momentem.types import Count, Flag, Matrix, Scalars, Vector, Vectors
from momentem.xla.keys import key
from momentem.xla.once import run_if_due

__all__ = [
    "Place",
    "arrival",
    "ascend",
    "bulk",
    "fixed_batch",
    "gradients_of_part",
    "parts",
]

FIRST_ROWS, FIRST_PER_DIMENSION = 1000, 20  # rows of the first part
GROWTH = 8  # of the parts
MOST_TURNS, MOST_LATER = 300, 40  # gradients on the first part, and on each of the others
MOST_TRIES = 16  # of one step
STEEP = 0.5  # slope at the end of a step, in units of that at its start
LEAST_CURVATURE = 0.05  # of what was expected, in updates of R


class Place(NamedTuple):
    """Where the chains are, and what they know there."""

    position: Vectors
    gradient: Vectors
    root: Float[Array, "chains dim dim"]  # R
    step: Scalars  # t; 0 to look where it is
    tries: Int[Array, " chains"]
    is_measured: Bool[Array, " chains"]  # here, with nothing hidden by rounding
    distance: Scalars  # |R' g|^2
    num_not_finite: Int[Array, " chains"]  # gradients that were met


class Part(NamedTuple):
    """The part of the data in use."""

    num_batches: Count
    is_whole: Flag
    turns: Count


def bulk(dim: int) -> float:
    """Return the largest |R' g|^2 in the bulk of a Gaussian: mean D, variance 2 D."""
    return dim + 4 * math.sqrt(2 * dim)


def arrival(place: Place) -> Bool[Array, " chains"]:
    """Return whether each chain has arrived in the bulk."""
    return jnp.isfinite(place.distance) & (place.distance <= bulk(place.position.shape[1]))


def ascend(target: AnyTarget, starts: Vectors, tolerance: float) -> Place:
    """Return where chains arrive from their starts.

    Args:
        target: what to ascend.
        starts: one per chain, where the gradient is finite.
        tolerance: squared distance per dimension from the mode, in standard deviations, at which a
            chain stops.
    """
    number, dim = starts.shape
    first, most = parts(target, dim)
    is_endless = is_stream(target)  # there is no last row: most of them must do
    gradients = partial(gradients_of_part, target)

    def goes_on(carry: tuple[Place, Part]) -> Flag:
        place, part = carry
        is_last = part.is_whole | ((part.num_batches >= most) & is_endless)
        return ~(is_last & _is_over(place, part, tolerance))

    def turn(carry: tuple[Place, Part]) -> tuple[Place, Part]:
        place, part = _next_part(*carry, tolerance, most, is_endless)
        is_first = part.num_batches == first
        wanted = is_first & (place.step > 0) & ~place.is_measured & (place.tries == 0)
        change = partial(_measure, target, part, wanted)
        place = run_if_due(jnp.any(wanted), change, jax.random.key(0), place)
        whitened = jnp.einsum("cij,ci->cj", place.root, place.gradient)
        is_moving = (place.step > 0) & ~_is_near(place, tolerance)
        step = jnp.where(is_moving, place.step, 0.0)
        moves = step[:, None] * jnp.einsum("cij,cj->ci", place.root, whitened)
        there = gradients(part, place.position + moves)
        place = _judge(place, is_moving, moves, there, ~is_first)
        return place, part._replace(turns=part.turns + 1)

    identity = jnp.broadcast_to(jnp.eye(dim, dtype=starts.dtype), (number, dim, dim))
    none, nowhere = jnp.zeros(number, starts.dtype), jnp.full(number, jnp.inf, starts.dtype)
    is_not = jnp.zeros(number, bool)
    tries = jnp.zeros(number, int)
    place = Place(starts, jnp.zeros_like(starts), identity, none, tries, is_not, nowhere, tries)
    part = Part(jnp.array(first), jnp.array(first == 0), jnp.array(0))
    return jax.lax.while_loop(goes_on, turn, (place, part))[0]


def parts(target: AnyTarget, dim: int) -> tuple[int, int]:
    """Return the minibatches of the first part, and the most there may be before all data are used;
    0 if all data are used at once."""
    if not isinstance(target, StochasticTarget):
        return 0, 0
    if target.sizes is None:
        return 0, 0
    num_rows, batch_size = (size.value for size in target.sizes)
    first = -(-max(FIRST_ROWS, FIRST_PER_DIMENSION * dim) // batch_size)
    return first, max(first, num_rows // (2 * batch_size))


def gradients_of_part(target: AnyTarget, part: Any, positions: Vectors) -> Vectors:
    """Return the chains' gradients of a part of the data."""
    if part.num_batches is None or not isinstance(target, StochasticTarget) or not target.sizes:
        return jax.vmap(lambda x: whole_gradient(target, x)[1])(positions)
    of_part = partial(jax.vmap(partial(_part_gradient, target), (None, 0)), part.num_batches)
    if is_stream(target):
        return of_part(positions)
    of_all = jax.vmap(lambda x: whole_gradient(target, x)[1])
    return jax.lax.cond(part.is_whole, of_all, of_part, positions)


def _part_gradient(target: StochasticTarget, num_batches: Count, position: Vector) -> Vector:
    """Return the mean gradient of the first `num_batches` minibatches of a fixed sequence."""

    def add(i: Any, mean: Vector) -> Vector:
        new = target.noisy_gradient(fixed_batch(target, i), position).gradient
        return mean + (new - mean) / (i + 1)

    return jax.lax.fori_loop(0, num_batches, add, jnp.zeros_like(position))


def fixed_batch(target: StochasticTarget, i: Any) -> Any:
    """Return minibatch i of a fixed sequence."""
    batches = target.batches(jax.random.fold_in(key(0), i), Static(1))
    return jax.tree.map(lambda leaf: leaf[0], batches)


def _next_part(
    place: Place, part: Part, tolerance: float, most: int, is_endless: bool
) -> tuple[Place, Part]:
    """Take a larger part of the data if this one has no more to say."""
    is_over = _is_over(place, part, tolerance) & ~part.is_whole
    larger = part.num_batches * GROWTH
    is_whole = part.is_whole | (is_over & (larger > most) & (not is_endless))
    number = jnp.where(is_over, jnp.minimum(larger, most), part.num_batches)
    place = place._replace(step=jnp.where(is_over, 0.0, place.step))
    turns = jnp.where(is_over, 0, part.turns)
    return place, Part(number, is_whole, turns)


def _is_near(place: Place, tolerance: float) -> Bool[Array, " chains"]:
    return place.is_measured & (place.distance <= tolerance * place.position.shape[1])


def _is_over(place: Place, part: Part, tolerance: float) -> Flag:
    is_stuck = place.tries > MOST_TRIES
    is_done = jnp.all((place.step > 0) & (_is_near(place, tolerance) | is_stuck))
    return is_done | (part.turns >= jnp.where(place.is_measured.all(), MOST_LATER, MOST_TURNS))


def _measure(target: AnyTarget, part: Part, wanted: Array, key: Any, place: Place) -> Place:
    """Make R a root of the inverse Hessian of -L, in the chains that want it."""
    del key

    def products(position: Vector, root: Matrix) -> Matrix:
        def gradient(x: Vector) -> Vector:
            return gradients_of_part(target, part, x[None])[0]

        def product(column: Vector) -> Vector:
            return jax.jvp(gradient, (position,), (column,))[1]

        return -root.T @ jax.lax.map(product, root.T, batch_size=32).T

    curvature = jax.vmap(products)(place.position, place.root)
    root, is_trusted = jax.vmap(_turn)(place.root, curvature)
    distance = jnp.sum(jnp.einsum("cij,ci->cj", root, place.gradient) ** 2, axis=1)
    return place._replace(
        root=jnp.where(wanted[:, None, None], root, place.root),
        is_measured=jnp.where(wanted, is_trusted, place.is_measured),
        distance=jnp.where(wanted, distance, place.distance),
    )


def _turn(root: Matrix, curvature: Matrix) -> tuple[Matrix, Flag]:
    """Return R in whose frame this Hessian is the identity up to signs, and whether to trust it."""
    symmetric = (curvature + curvature.T) / 2
    diagonal = jnp.abs(jnp.diagonal(symmetric))
    floor = math.sqrt(jnp.finfo(root.dtype).eps)
    scale = jnp.sqrt(jnp.maximum(diagonal, floor * floor * jnp.max(diagonal)))
    curvatures, turn = jnp.linalg.eigh(symmetric / jnp.outer(scale, scale))
    sizes = jnp.abs(curvatures)
    least = floor * jnp.max(sizes)
    new = ((root / scale[None]) @ turn) / jnp.sqrt(jnp.maximum(sizes, least))[None]
    is_usable = jnp.isfinite(new).all()
    is_trusted = is_usable & jnp.all(sizes >= least)
    return jnp.where(is_usable, new, root), is_trusted


def _judge(old: Place, is_moving: Array, moves: Vectors, there: Vectors, is_kept_up: Any) -> Place:
    """Keep the steps that are good, and shorten the others."""
    slope, end = jnp.sum(old.gradient * moves, axis=1), jnp.sum(there * moves, axis=1)
    is_finite = jnp.isfinite(there).all(axis=1)
    is_looking = old.step == 0
    is_good = is_finite & (is_looking | ~is_moving | (end >= -STEEP * slope))
    top = jnp.clip(slope / (slope - end), 0.05, 0.5)
    shorter = old.step * jnp.where(is_finite, top, 0.1)
    updated = jax.vmap(_update_root)(old.root, old.gradient, there, moves, old.step)
    is_updated = is_kept_up & is_good & is_moving & jnp.isfinite(updated).all(axis=(1, 2))
    root = jnp.where(is_updated[:, None, None], updated, old.root)
    gradient = jnp.where(is_good[:, None], there, old.gradient)
    return Place(
        position=jnp.where((is_good & is_moving)[:, None], old.position + moves, old.position),
        gradient=gradient,
        root=root,
        step=jnp.where(is_good, 1.0, shorter).astype(old.step.dtype),
        tries=jnp.where(is_good, 0, old.tries + 1),
        is_measured=old.is_measured & (is_kept_up | ~(is_good & is_moving)),
        distance=jnp.sum(jnp.einsum("cij,ci->cj", root, gradient) ** 2, axis=1),
        num_not_finite=old.num_not_finite + (~is_finite).astype(int),
    )


def _update_root(root: Matrix, g: Vector, there: Vector, s: Vector, t: Any) -> Matrix:
    y = g - there
    expected = t * (s @ g)  # s'y, if R R' is the inverse Hessian
    lacking = jnp.maximum(0.0, LEAST_CURVATURE * expected - s @ y) / expected
    y = y + lacking * t * g
    w = y / (s @ y) - t * g / jnp.sqrt((s @ y) * expected)
    return root - s[:, None] * (w @ root)[None]

"""The ascent in many dimensions: O(D) memory, by ever larger parts of the data.

As in `_ascent`, by gradients alone. The frame is that of L-BFGS (Nocedal 1980): MEMORY pairs of
steps s and differences of gradients y, on top of a diagonal h that is measured when a part of the
data is begun,

    h = 1 / ((n/N) Var(noise) + prior curvature)

which is the inverse of the Fisher information's diagonal. The same products give the evidence of
arrival: g' H g is the squared distance from the mode in standard deviations, as far as the pairs
know. Chains stop where it is at most NEAR per dimension.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from momentem.targets._ascent import (
    GROWTH,
    MOST_TRIES,
    STEEP,
    bulk,
    fixed_batch,
    gradients_of_part,
    parts,
)
from momentem.targets._minibatch import StochasticTarget
from momentem.targets.streams import is_stream
from momentem.types import Count, Flag, Scalars, Vector, Vectors
from momentem.xla.once import run_if_due

__all__ = ["MEMORY", "MOST_TRIES", "LongPlace", "ascend_far", "keep_or_shorten", "times_inverse"]

MEMORY = 10
MOST_TURNS, MOST_LATER = 400, 100  # gradients on the first part, and on each of the others
NUM_PROBES = 16  # minibatches that the diagonal is measured with
NEAR = 0.1
ENOUGH_CURVATURE = 1e-3  # of what was expected, for a pair to be kept


class LongPlace(NamedTuple):
    """Where the chains are, and what they know there."""

    position: Vectors
    gradient: Vectors
    diagonal: Vectors  # h
    steps: Float[Array, "chains memory dim"]  # s, the last first
    changes: Float[Array, "chains memory dim"]  # y
    counts: Bool[Array, "chains memory"]  # whether there is a pair
    step: Scalars  # t; 0 to look where it is
    tries: Int[Array, " chains"]
    distance: Scalars  # g' H g
    num_not_finite: Int[Array, " chains"]  # gradients that were met


class Part(NamedTuple):
    """The part of the data in use."""

    num_batches: Count
    is_whole: Flag
    turns: Count
    is_new: Flag


def ascend_far(
    target: StochasticTarget, starts: Vectors
) -> tuple[LongPlace, Bool[Array, " chains"]]:
    """Return where chains arrive from their starts, and whether each has arrived in the bulk."""
    (number, dim), dtype = starts.shape, starts.dtype
    first, most = parts(target, 0)
    is_endless = is_stream(target)

    def is_over(place: LongPlace, part: Part) -> Flag:
        is_done = (place.step > 0) & ((place.distance <= NEAR * dim) | (place.tries > MOST_TRIES))
        limit = jnp.where(part.num_batches == first, MOST_TURNS, MOST_LATER)
        return ~part.is_new & (jnp.all(is_done) | (part.turns >= limit))

    def goes_on(carry: tuple[LongPlace, Part]) -> Flag:
        place, part = carry
        is_last = part.is_whole | (is_endless & (part.num_batches >= most))
        return ~(is_last & is_over(place, part))

    def turn(carry: tuple[LongPlace, Part]) -> tuple[LongPlace, Part]:
        place, part = carry
        is_next = is_over(place, part)
        larger = part.num_batches * GROWTH
        part = Part(
            jnp.where(is_next, jnp.minimum(larger, most), part.num_batches),
            part.is_whole | (is_next & (larger > most) & (not is_endless)),
            jnp.where(is_next, 0, part.turns),
            part.is_new | is_next,
        )
        measure = partial(_measure, target)
        place = run_if_due(part.is_new, measure, jax.random.key(0), place)
        up = jax.vmap(times_inverse)(place)
        is_moving = (place.step > 0) & (place.distance > NEAR * dim)
        moves = jnp.where(is_moving, place.step, 0.0)[:, None] * up
        there = gradients_of_part(target, part, place.position + moves)
        place = keep_or_shorten(place, is_moving, moves, there)
        return place, part._replace(turns=part.turns + 1, is_new=jnp.array(False))

    pairs = jnp.zeros((number, MEMORY, dim), dtype)
    none = jnp.zeros(number, dtype)
    counts, tries = jnp.zeros((number, MEMORY), bool), jnp.zeros(number, int)
    one = jnp.ones_like(starts)
    nowhere = none + jnp.inf
    place = LongPlace(starts, 0 * one, one, pairs, pairs, counts, none, tries, nowhere, tries)
    part = Part(jnp.array(first), jnp.array(False), jnp.array(0), jnp.array(True))
    place, _ = jax.lax.while_loop(goes_on, turn, (place, part))
    return place, jnp.isfinite(place.distance) & (place.distance <= bulk(dim))


def _measure(target: StochasticTarget, key: Any, place: LongPlace) -> LongPlace:
    """Measure h, and forget all pairs."""
    del key

    def of_chain(position: Vector, old: Vector) -> Vector:
        def add(i: Any, total: Vector) -> Vector:
            # from the end of the sequence: the first part holds its beginning
            noisy = target.noisy_gradient(fixed_batch(target, 2**30 + i), position)
            return total + noisy.noise**2 / NUM_PROBES

        variances = jax.lax.fori_loop(0, NUM_PROBES, add, jnp.zeros_like(position))
        prior = jnp.maximum(target.prior_curvature(position), 0)
        diagonal = 1 / (target.information_scale * variances + prior)
        return jnp.where(jnp.isfinite(diagonal), diagonal, old)

    diagonal = jax.vmap(of_chain)(place.position, place.diagonal)
    return place._replace(
        diagonal=diagonal, counts=jnp.zeros_like(place.counts), step=0 * place.step
    )


def times_inverse(place: LongPlace) -> Vector:
    """Return H g of one chain, by the two loops of L-BFGS."""
    inner = jnp.sum(place.steps * place.changes, axis=1)
    rho = jnp.where(place.counts, 1 / jnp.where(place.counts, inner, 1.0), 0.0)
    last = place.changes[0]
    scale = inner[0] / jnp.vdot(last, place.diagonal * last)
    scale = jnp.where(place.counts[0], scale, 1.0)
    q, alphas = place.gradient, []
    for i in range(MEMORY):
        alphas.append(rho[i] * jnp.vdot(place.steps[i], q))
        q = q - alphas[i] * place.changes[i]
    r = scale * place.diagonal * q
    for i in reversed(range(MEMORY)):
        r = r + place.steps[i] * (alphas[i] - rho[i] * jnp.vdot(place.changes[i], r))
    return r


def keep_or_shorten(old: LongPlace, is_moving: Array, moves: Vectors, there: Vectors) -> LongPlace:
    """Keep the steps that are good, and shorten the others. `there` are the gradients at their
    ends."""
    slope, end = jnp.sum(old.gradient * moves, axis=1), jnp.sum(there * moves, axis=1)
    is_finite = jnp.isfinite(there).all(axis=1)
    is_good = is_finite & ((old.step == 0) | ~is_moving | (end >= -STEEP * slope))
    is_step = is_good & is_moving
    change = old.gradient - there
    is_pair = is_step & (slope - end >= ENOUGH_CURVATURE * slope)

    def pushed(rows: Array, new: Array) -> Array:
        where = is_pair.reshape(-1, *[1] * (rows.ndim - 1))
        return jnp.where(where, jnp.concatenate([new[:, None], rows[:, :-1]], axis=1), rows)

    top = jnp.where(is_finite, jnp.clip(slope / (slope - end), 0.05, 0.5), 0.1)
    gradient = jnp.where(is_good[:, None], there, old.gradient)
    new = LongPlace(
        position=jnp.where(is_step[:, None], old.position + moves, old.position),
        gradient=gradient,
        diagonal=old.diagonal,
        steps=pushed(old.steps, moves),
        changes=pushed(old.changes, change),
        counts=pushed(old.counts, is_pair),
        step=jnp.where(is_good, 1.0, old.step * top).astype(old.step.dtype),
        tries=jnp.where(is_good, 0, old.tries + 1),
        distance=old.distance,
        num_not_finite=old.num_not_finite + (~is_finite).astype(int),
    )
    return new._replace(distance=jnp.sum(gradient * jax.vmap(times_inverse)(new), axis=1))

"""The way in, in many dimensions: O(D) memory, by gradients alone.

The frame is that of L-BFGS (Nocedal 1980), as on the way in of minibatch targets
(`targets._long_ascent`): the last steps and differences of gradients, on top of a diagonal h, which
is measured first. With signs xi = +-1, drawn anew for each of PROBES gradients in a pass,

    d = g(theta + sqrt(h) xi) - g(theta),        h <- sqrt(h) / rms(d)

which finds 1 / |H_ii| of a diagonal Hessian H in one pass, and otherwise
1 / (|H_ii| sqrt(1 + sum over j of r_ij^2)) as passes go on, r the correlations of H: each pass
squares the distance in scale. The diagonal is never too long by more than noise, so steps are safe.
Where no curvature is seen, h grows until there is some.

Chains climb until g' H g is that of the bulk, in a few rounds of measuring and climbing, because
scales are others where they come to. All move together, and each has a frame of its own. What is
left of the way in directions that H does not know, because parameters are strongly correlated, is
left to the E-steps, which do not grow as long as the log density rises.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from momentem.targets._ascent import bulk
from momentem.targets._long_ascent import (
    MEMORY,
    MOST_TRIES,
    LongPlace,
    keep_or_shorten,
    times_inverse,
)
from momentem.types import Count, Flag, PRNGKey, Vectors

__all__ = ["FarPlace", "climb_far"]

PROBES, PASSES = 4, 6
MOST_ROUNDS, MOST_TURNS = 6, 60  # of climbing in a round
SHORTER = 1e-4  # of h, where a probe went to where the density is not finite
LEAST_CURVATURE = 1e-12  # h |H_ii| below which none is seen
LONGER, LONGEST = 1e8, 1e24  # of h, where none was seen


class FarPlace(NamedTuple):
    """Where the chains are on their way."""

    place: LongPlace
    squares: Vectors  # sum of d^2 in this pass
    turn: Count  # in this round
    round: Count
    num_gradients: Count
    is_flat: Bool[Array, " chains"]  # no curvature was found in some direction


def climb_far(gradient: Callable[[Vectors], Vectors], key: PRNGKey, starts: Vectors) -> FarPlace:
    """Return where chains arrive from their starts.

    Args:
        gradient: positions of all chains -> their scores.
        key: for the probes.
        starts: where the scores are finite.
    """
    (number, dim), dtype = starts.shape, starts.dtype
    most = bulk(dim)
    measuring = 1 + PROBES * PASSES  # the first turn looks where the chains are

    def is_over(far: FarPlace) -> Flag:
        place = far.place
        is_done = (place.distance <= most) | (place.tries > MOST_TRIES)
        return (far.turn >= measuring) & (jnp.all(is_done) | (far.turn >= measuring + MOST_TURNS))

    def goes_on(far: FarPlace) -> Flag:
        # arrived, and measured there: no step was taken since
        has_arrived = (far.turn == measuring) & jnp.all(far.place.distance <= most)
        return ~has_arrived & ~(is_over(far) & (far.round == MOST_ROUNDS))

    def turn(old: FarPlace) -> FarPlace:
        is_next = is_over(old)
        turn, rounds = jnp.where(is_next, 0, old.turn), old.round + is_next.astype(int)
        place, is_looking, is_measuring = old.place, turn == 0, turn < measuring
        probe_key = jax.random.fold_in(key, old.num_gradients)
        signs = jax.random.rademacher(probe_key, starts.shape, dtype)
        is_moving = place.distance > most
        climb = jnp.where(is_moving, place.step, 0.0)[:, None] * jax.vmap(times_inverse)(place)
        moves = jnp.where(is_measuring, jnp.sqrt(place.diagonal) * signs, climb)
        moves = jnp.where(is_looking, jnp.zeros_like(moves), moves)
        there = gradient(place.position + moves)
        squares, diagonal, is_flat = _measure(old, turn, there - place.gradient)
        measured = place._replace(
            gradient=jnp.where(is_looking, there, place.gradient),
            diagonal=diagonal,
            counts=jnp.zeros_like(place.counts),
            step=jnp.ones_like(place.step),
            tries=jnp.zeros_like(place.tries),
            num_not_finite=place.num_not_finite + (~jnp.isfinite(there).all(axis=1)).astype(int),
        )
        square = jnp.sum(measured.gradient * jax.vmap(times_inverse)(measured), axis=1)
        measured = measured._replace(distance=square)
        climbed = keep_or_shorten(place, is_moving, moves, there)
        place = jax.tree.map(lambda a, b: jnp.where(is_measuring, a, b), measured, climbed)
        return FarPlace(place, squares, turn + 1, rounds, old.num_gradients + 1, is_flat)

    none = jnp.zeros(number, dtype)
    pairs = jnp.zeros((number, MEMORY, dim), dtype)
    counts, tries = jnp.zeros((number, MEMORY), bool), jnp.zeros(number, int)
    one, zero = jnp.ones_like(starts), jnp.zeros((), int)
    place = LongPlace(
        starts, 0 * one, one, pairs, pairs, counts, none + 1, tries, none + jnp.inf, tries
    )
    far = FarPlace(place, 0 * one, zero, zero + 1, zero, none == 1)
    return jax.lax.while_loop(goes_on, turn, far)


def _measure(
    old: FarPlace, turn: Count, difference: Vectors
) -> tuple[Vectors, Vectors, Bool[Array, " chains"]]:
    """Return the squares, h and whether the density is level, after one more probe."""
    is_probe = (turn > 0) & (turn <= PROBES * PASSES)
    squares = jnp.where(is_probe, old.squares + difference**2 / PROBES, jnp.zeros_like(difference))
    diagonal = old.place.diagonal
    is_finite = jnp.isfinite(squares).all(axis=1, keepdims=True)
    is_level = squares * diagonal < LEAST_CURVATURE**2
    found = jnp.sqrt(diagonal / jnp.where(is_level | ~is_finite, 1.0, squares))
    found = jnp.where(is_level, jnp.minimum(LONGER * diagonal, LONGEST), found)
    is_due = is_probe & (turn % PROBES == 0)
    diagonal = jnp.where(is_due, jnp.where(is_finite, found, SHORTER * diagonal), diagonal)
    is_flat = jnp.where(is_due, (is_finite & is_level).any(axis=1), old.is_flat)
    return jnp.where(is_due, jnp.zeros_like(squares), squares), diagonal, is_flat

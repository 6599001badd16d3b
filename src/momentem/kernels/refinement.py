"""Shorter steps where they are needed: a path is refined until its energy is kept.

A path of n steps is tried at level 0. If the energy H changes by more than TOLERANCE along it, it
is tried again at level 1, from the same start and over the same time, with twice as many steps of
half the size, and so on up to level LEVELS. Let l(z) be the first level that keeps H from the start
z, or LEVELS if none does. The proposal z' is the end of the path at level l(z). Seen from z' with
its momentum turned round, the same path has the same energies, so it keeps H too; but a coarser one
might. The move is reversible if

    l(-z') = l(z)

which is checked by trying the coarser levels from the end, and is refused otherwise. Where level 0
keeps H, it does so from both ends: nothing is checked, and the move is that of the kernel without
refinement.

H is looked at after every n steps: once at level 0, 2^l times at level l. (WALNUTS, Bou-Rabee et
al. 2025, refines each step of a trajectory in this way.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from momentem.kernels.integrators import PhasePoint
from momentem.kernels.metropolis import DIVERGENCE_THRESHOLD
from momentem.types import Count, Flag, Scalar

__all__ = ["LEVELS", "Proposal", "refined_path"]

LEVELS = 6  # steps are at most 64 times shorter
TOLERANCE = 3.0  # of H: a path that just passes is accepted once in twenty times


class Proposal(NamedTuple):
    """The end of a path, and how it was found."""

    end: PhasePoint
    level: Count
    is_reversible: Flag
    coarse_rate: Scalar  # at which level 0 would be accepted; 0 if it does not keep H
    is_lost: Flag  # no level keeps H
    num_parts: Count  # times n steps, for all levels that were tried


class _Search(NamedTuple):
    here: PhasePoint
    origin: PhasePoint  # the start, and later the end of the path, turned round
    base: Scalar  # H there
    level: Count  # that is tried
    chosen: Count  # l(z), once it is known
    part: Count  # of the path at this level
    low: Scalar
    high: Scalar
    coarse_rate: Scalar  # at which level 0 would be accepted; 0 if it does not keep H
    num_parts: Count
    is_back: Flag  # trying coarser levels from the end
    is_reversible: Flag
    is_lost: Flag
    is_over: Flag


def refined_path(
    advance: Callable[[Any, PhasePoint], PhasePoint],
    energy: Callable[[PhasePoint], Scalar],
    start: PhasePoint,
) -> Proposal:
    """Return the end of the path from `start` at the level that it needs.

    Args:
        advance: (share of the step size, point) -> the point n steps further.
        energy: H of a point.
        start: with a fresh momentum.
    """
    first = energy(start)
    none, no = jnp.zeros((), int), jnp.array(False)
    search = _Search(
        *(start, start, first, none, none, none, first, first, jnp.zeros_like(first), none),
        *(no, jnp.array(True), no, no),
    )

    def goes_on(search: _Search) -> Flag:
        return ~search.is_over

    def go_on(old: _Search) -> _Search:
        here = advance(0.5 ** old.level.astype(first.dtype), old.here)
        h, part = energy(here), old.part + 1
        low, high = jnp.minimum(old.low, h), jnp.maximum(old.high, h)
        is_kept = (high - low <= TOLERANCE) & jnp.isfinite(here.gradient).all()  # false for NaN
        is_last = (old.level == LEVELS) & ~old.is_back
        is_tried = (part == 2**old.level) | (~is_kept & ~is_last)
        # forward: the level is found, or the next is tried; back: every coarser level must fail
        is_found = is_tried & ~old.is_back & (is_kept | is_last)
        is_against = is_tried & old.is_back & is_kept
        is_hopeless = is_found & ~(h - first <= DIVERGENCE_THRESHOLD)
        coarse_rate = jnp.where(is_kept, jnp.exp(jnp.minimum(0.0, first - h)), 0.0)
        chosen = jnp.where(is_found, old.level, old.chosen)
        is_back = old.is_back | is_found
        level = jnp.where(is_found, 0, old.level + is_tried.astype(int))
        origin = _choose(is_found, here._replace(momentum=-here.momentum), old.origin)
        base = jnp.where(is_found, h, old.base)
        return _Search(
            here=_choose(is_tried, origin, here),
            origin=origin,
            base=base,
            level=level,
            chosen=chosen,
            part=jnp.where(is_tried, 0, part),
            low=jnp.where(is_tried, base, low),
            high=jnp.where(is_tried, base, high),
            coarse_rate=jnp.where(old.num_parts == 0, coarse_rate, old.coarse_rate),
            num_parts=old.num_parts + 1,
            is_back=is_back,
            is_reversible=old.is_reversible & ~is_against,
            is_lost=old.is_lost | (is_found & ~is_kept),
            is_over=is_hopeless | is_against | (is_back & is_tried & (level == chosen)),
        )

    found = jax.lax.while_loop(goes_on, go_on, search)
    return Proposal(
        end=found.origin._replace(momentum=-found.origin.momentum),
        level=found.chosen,
        is_reversible=found.is_reversible,
        coarse_rate=found.coarse_rate,
        is_lost=found.is_lost,
        num_parts=found.num_parts,
    )


def _choose(condition: Flag, new: PhasePoint, old: PhasePoint) -> PhasePoint:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)

"""Warm-up with minibatches: a way in, what is learnt by EM, and an end by evidence.

Way in. Up to DENSE dimensions the chains ascend to the posterior's bulk, by ever larger parts of
the data (`targets._ascent`), and are then drawn from the local normal N(theta + R R' g, R R'): near
their modes at first, but not at them. Control variates are anchored at the mean of where they
arrived. Above, chains start where they are told, and the first steps of EM are the way in.

EM. The `noise` M-step learns mass, noise and step size, and keeps the control variates if they pay.

End. Warm-up ends after an M-step if, in the E-step before it,

    temperature   v_i^2 / (M_I)_ii has the mean 1 within its error, in every block of parameters
    noise         its mean over directions, and the step size, changed by no more than CHANGE
    chains        the variance of their means is at most DISAGREEMENT times their mean variance

and whether control variates pay was known before.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from momentem.em import EMState
from momentem.moments import Moments, add_samples
from momentem.pytrees import Static
from momentem.targets._ascent import arrival, ascend
from momentem.targets._long_ascent import ascend_far
from momentem.targets._minibatch import StochasticTarget
from momentem.targets.control_variates import anchor_at
from momentem.types import EnsembleInfo, Flag, Info, Learnt, PRNGKey, Sampler, Scalar, Vectors

__all__ = ["TunedState", "tuned_by_minibatches"]

DENSE = 100  # most dimensions in which chains ascend
TOLERANCE = 0.01  # squared distance from the mode, per dimension, at which they stop
WARM, ERRORS = 0.02, 4.0  # of the temperature: error that is allowed, and standard errors besides
CHANGE, DISAGREEMENT = 0.1, 0.1
MOST_WATCHED, MOST_BLOCKS = 512, 32  # coordinates in which chains are compared; blocks


class Heat(NamedTuple):
    """Sums over the draws of an E-step of the temperature of every block."""

    num_samples: Array
    total: Float[Array, " blocks"]
    square: Float[Array, " blocks"]
    product: Float[Array, " blocks"]  # of each draw's and the next one's
    last: Float[Array, "chains blocks"]


class TunedState(NamedTuple):
    """What EM holds, the evidence in this E-step, and whether warm-up may end."""

    em: EMState
    heat: Heat
    places: Moments  # of the positions, per chain
    has_arrived: Bool[Array, " chains"]
    not_finite: Int[Array, " chains"]  # gradients on the way in
    is_settled: Flag


def tuned_by_minibatches(sampler: Sampler, target: StochasticTarget) -> Sampler:
    """Return a sampler that goes the way in, learns by EM, and ends its warm-up by evidence.

    Args:
        sampler: one that learns by `monte_carlo_em`, from the `noise` M-step.
        target: that it samples, without control variates.
    """
    leaves = jax.tree.leaves(target.unravel(target.initial))
    sizes = [leaf.size for leaf in leaves]
    sizes = [*sizes[: MOST_BLOCKS - 1], sum(sizes[MOST_BLOCKS - 1 :])]
    blocks = tuple(size for size in sizes if size)
    return Sampler(
        Partial(_init, sampler, target, Static(len(blocks))),
        Partial(_step, sampler, tuple(map(Static, blocks))),
        Partial(_freeze, sampler),
        Partial(_learnt),
        Partial(_is_settled),
    )


def _init(
    sampler: Sampler, target: StochasticTarget, blocks: Static, key: PRNGKey, starts: Vectors
) -> TunedState:
    spread_key, em_key = jax.random.split(key)
    centre, has_arrived = jnp.mean(starts, axis=0), jnp.zeros(len(starts), bool)
    not_finite = jnp.zeros(len(starts), int)
    if starts.shape[1] <= DENSE:
        place = ascend(target, starts, TOLERANCE)
        has_arrived, not_finite = arrival(place), place.num_not_finite
        normals = jax.random.normal(spread_key, starts.shape, starts.dtype)
        moves = jnp.einsum("cij,cj->ci", place.root, normals)
        weights = jnp.where(has_arrived.any(), has_arrived, True).astype(starts.dtype)
        centre = weights @ place.position / jnp.sum(weights)
        starts = place.position + jnp.where(has_arrived[:, None], moves, 0)
    elif target.sizes is not None:
        place, has_arrived = ascend_far(target, starts)
        not_finite = place.num_not_finite
        normals = jax.random.normal(spread_key, starts.shape, starts.dtype)
        centre = jnp.mean(place.position, axis=0)
        starts = place.position + jnp.sqrt(place.diagonal) * normals
    em = sampler.init(em_key, starts)
    if "anchor" in em.learnt:
        anchor = em.learnt.anchor | anchor_at(target, centre)
        em = em._replace(learnt=em.learnt.replace(anchor=anchor))
    watched = _watched(starts)
    none = jnp.zeros((len(starts), blocks.value), starts.dtype)
    heat = Heat(jnp.array(0), none[0], none[0], none[0], none)
    places, is_settled = Moments.fresh(watched, watched), jnp.array(False)
    return TunedState(em, heat, places, has_arrived, not_finite, is_settled)


def _watched(positions: Vectors) -> Array:
    return positions[:, :: -(-positions.shape[1] // MOST_WATCHED)]


def _step(
    sampler: Sampler, blocks: tuple[Static, ...], key: PRNGKey, state: TunedState
) -> tuple[TunedState, EnsembleInfo]:
    old = state.em
    em, info = sampler.step(key, old)
    is_m_step = info.learning["is_m_step"]
    heat = _add_heat(state.heat, _temperatures(blocks, info.chains, old.learnt))
    places = add_samples(state.places, _watched(info.chains.position)[None])
    temperatures, errors = _mean_heat(heat)
    is_warm = jnp.all(jnp.abs(temperatures - 1) <= WARM + ERRORS * errors)
    is_warm &= jnp.all(errors <= WARM)
    is_settled = is_m_step & is_warm & _do_agree(places) & _is_same(old.learnt, em.learnt)
    row = {
        "block_temperature": temperatures,
        "has_arrived": jnp.all(state.has_arrived),
        "way_in_not_finite": state.not_finite,
        "is_warm": is_warm,
        "do_chains_agree": _do_agree(places),
    }
    if _is_optional(em.learnt):
        row["control_variates"] = em.learnt.anchor["is_used"]
    empty = jnp.where(is_m_step, 0, heat.num_samples), jnp.where(is_m_step, 0, places.num_samples)
    heat, places = heat._replace(num_samples=empty[0]), places._replace(num_samples=empty[1])
    entered = state.has_arrived, state.not_finite
    state = TunedState(em, heat, places, *entered, is_settled)
    return state, info._replace(learning=info.learning | row)


def _temperatures(blocks: tuple[Static, ...], info: Info, learnt: Learnt) -> Array:
    """Return the mean of v_i^2 / (M_I)_ii over the parameters of every block."""
    velocities = jax.vmap(learnt.mass.velocity)(info.momentum)
    squares = velocities**2 / learnt.mass.inverse_mass_diagonal()[None]
    first, means = 0, []
    for size in blocks:
        means.append(jnp.mean(squares[:, first : first + size.value], axis=1))
        first += size.value
    return jnp.stack(means, axis=1)


def _add_heat(old: Heat, new: Array) -> Heat:
    is_first = old.num_samples == 0
    kept = [jnp.where(is_first, 0.0, total) for total in old[1:4]]
    last = jnp.where(is_first, new, old.last)
    added = (new, new**2, new * last)
    sums = [total + jnp.sum(each, axis=0) for total, each in zip(kept, added, strict=True)]
    return Heat(old.num_samples + len(new), *sums, last=new)


def _mean_heat(heat: Heat) -> tuple[Array, Array]:
    """Return mean temperatures and their standard errors, of draws correlated as in an AR(1)."""
    n = jnp.maximum(heat.num_samples, 1).astype(heat.total.dtype)
    mean = heat.total / n
    variance = jnp.maximum(heat.square / n - mean**2, 0.0)
    rho = jnp.clip((heat.product / n - mean**2) / variance, 0.0, 0.99)
    return mean, jnp.sqrt(variance / n * (1 + rho) / (1 - rho))


def _do_agree(places: Moments) -> Flag:
    between, within = jnp.var(places.mean, axis=0), jnp.mean(places.covariance, axis=0)
    return jnp.mean(between / within) <= DISAGREEMENT


def _is_optional(learnt: Learnt) -> bool:
    """Return whether EM decides if control variates are used."""
    return "anchor" in learnt and "is_used" in learnt.anchor


def _is_same(old: Learnt, new: Learnt) -> Flag:
    def is_near(a: Scalar, b: Scalar) -> Flag:
        return jnp.abs(jnp.log(a / b)) <= CHANGE

    is_same = is_near(jnp.mean(new.noise), jnp.mean(old.noise))
    is_same &= is_near(new.step_size, old.step_size)
    if _is_optional(new):
        is_same &= new.anchor["is_used"] == old.anchor["is_used"]
    return is_same


def _freeze(sampler: Sampler, state: TunedState) -> tuple[Sampler, Any]:
    return sampler.freeze(state.em)


def _learnt(state: TunedState) -> Learnt:
    return state.em.learnt


def _is_settled(state: TunedState) -> Flag:
    return state.is_settled

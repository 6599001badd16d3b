"""Warm-up of HMC-EM: mass and centre by EM, step size by dual averaging, path length by a rule, and
an end by evidence.

Mass. Before the first iteration, from the starts themselves: the spread of their positions over the
spread of their scores, M_I = diag sd(theta) / sd(grad L), which is the variance of a Gaussian
wherever the starts are. Then by EM, in E-steps each twice as long as the one before.

Step size. In every iteration, from the acceptance rate of all chains; anew after each M-step.

A chain that is refused again and again takes shorter steps of its own, until it moves (`refusals`).

Path. In a whitened posterior every direction swings with period 2 pi, and a quarter of it, pi / 2,
carries a draw to where it is independent of its start. If a parameter is seen to turn more slowly,
the path is longer, up to half as long again (`turns`). In the first E-steps, before there is a mass
to trust, a path may take only so many steps: twice as many in each.

End. An M-step from S >= max(LEAST, PER_DIMENSION D) draws that changes the mass no more than
Monte Carlo error would,

    rms (lambda - 1) <= TOLERANCE + NOISE sqrt(D / S),        lambda: eigenvalues of M_old M_new^-1

while the chains agree on the log density (the variance of their means is at most DISAGREEMENT times
the mean of their variances) and none is stuck, has nothing left to learn. Draws then come from the
same compiled program, in which no E-step ends any more.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_instance
from momentem.em._em import EMState
from momentem.moments import Moments, observe
from momentem.tuning import path_length as turns
from momentem.tuning import stuck_chains as refusals
from momentem.tuning.step_size import LONGEST, DualAveraging, restarted, started, updated
from momentem.types import EnsembleInfo, Flag, Learnt, PRNGKey, Sampler, Scalar, Scalars, Vectors
from momentem.xla.compile import program

__all__ = ["PATH", "TunedState", "tuned"]

PATH = math.pi / 2
FIRST_ITERATIONS = 10  # of the first E-step, at least
FIRST_STEPS = 8.0  # most steps of a path in the first E-step
MOST_STEPS = 1000.0  # of any path
TOLERANCE, NOISE = 0.1, 0.5
LEAST, PER_DIMENSION = 100, 4.0
DISAGREEMENT = 0.1
WHOLE_COMPARISON = 512  # dimension up to which masses are compared in all directions


class TunedState(NamedTuple):
    """What EM holds, the step size on its way, and whether warm-up may end or has ended."""

    em: EMState
    averaging: DualAveraging
    moments: Moments  # of the log density, per chain, in this E-step
    refusals: Scalars
    turns: turns.Turns  # in this E-step
    path: Scalar  # that all steps together should have
    is_settled: Flag
    is_frozen: Flag


def tuned(sampler: Sampler, acceptance: float = 0.8) -> Sampler:
    """An EM sampler of `kernels.rotating_hmc`, with step size, path and length of warm-up tuned.

    Args:
        sampler: from `monte_carlo_em`.
        acceptance: rate that the step size is tuned to.
    """
    check_instance(Sampler, "build it by momentem.monte_carlo_em", sampler=sampler)
    check_between(0.0, 1.0, acceptance=acceptance)
    return Sampler(
        Partial(_init, sampler),
        Partial(_step, sampler, acceptance),
        Partial(_freeze, sampler, acceptance),
        Partial(_learnt),
        Partial(_is_settled),
    )


def _init(sampler: Sampler, key: PRNGKey, positions: Vectors) -> TunedState:
    em = sampler.init(key, positions)
    averaging = started(em.learnt.step_size)
    first = _of_starts(em.learnt, em.chains.position, em.chains.gradient)
    path = jnp.full_like(averaging.log_step, PATH)
    first = first._replace(path=_reached(path, averaging, jnp.array(0)))
    size = jnp.maximum(em.e_step.size, FIRST_ITERATIONS * len(positions))
    em = em._replace(learnt=first, e_step=em.e_step._replace(size=size))
    no, none = jnp.array(False), jnp.zeros_like(positions[:, 0])
    turning = turns.fresh(first.centre)
    return TunedState(em, averaging, _no_moments(positions), none, turning, path, no, no)


def _of_starts(learnt: Learnt, positions: Vectors, scores: Vectors) -> Learnt:
    """Mass and centre from the spread of the starts over that of their scores; of one start, from
    the score's size."""
    if len(positions) == 1:
        variances = 1 / jnp.abs(scores[0])
    else:
        variances = jnp.std(positions, axis=0) / jnp.std(scores, axis=0)
    is_usable = jnp.isfinite(variances) & (variances > 0)
    mass = learnt.mass.with_variances(jnp.where(is_usable, variances, 1.0))
    centre = jnp.mean(positions, axis=0) + mass.velocity(jnp.mean(scores, axis=0))
    return learnt._replace(mass=mass, centre=centre)


def _no_moments(positions: Vectors) -> Moments:
    return Moments.fresh({"lp": positions[0, 0]}, len(positions))


def _reached(path: Scalar, averaging: DualAveraging, num_m_steps: Any) -> Scalar:
    """The path, or as much of it as the steps allowed so far reach."""
    step_size = jnp.exp(averaging.log_step)
    most = jnp.minimum(MOST_STEPS, FIRST_STEPS * 2.0 ** num_m_steps.astype(step_size.dtype))
    return jnp.minimum(path, most * step_size)


def _step(
    sampler: Sampler, acceptance: Any, key: PRNGKey, state: TunedState
) -> tuple[TunedState, EnsembleInfo]:
    em, info = sampler.step(key, state.em)
    is_m_step, stats = info.learning["is_m_step"], info.chains.stats
    rates = stats["acceptance_rate"]
    averaging = updated(state.averaging, jnp.mean(rates), acceptance)
    refused = jnp.where(state.is_frozen, 0.0, refusals.summed(state.refusals, rates))
    moments = observe(state.moments, {"lp": stats["lp"]})
    centre, before, after = state.em.learnt.centre, state.em.chains, info.chains.position
    turning = turns.seen(state.turns, centre, before.position, after, before.pace)
    is_settled, path = jax.lax.cond(
        is_m_step,
        lambda: _judged(state, em, moments, refused, turning),
        lambda: (state.is_settled, state.path),
    )
    averaging = _where(is_m_step, restarted(averaging), averaging)
    moments = _where(is_m_step, _no_moments(after), moments)
    turning = _where(is_m_step, turns.fresh(centre), turning)
    adjusted = em.learnt._replace(
        step_size=jnp.exp(averaging.log_step),
        path=_reached(path, averaging, info.learning["num_m_steps"]),
    )
    em = em._replace(
        learnt=_where(state.is_frozen, em.learnt, adjusted),
        chains=em.chains._replace(pace=refusals.pace(refused)),
    )
    new = TunedState(em, averaging, moments, refused, turning, path, is_settled, state.is_frozen)
    return new, info


def _where(condition: Flag, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _judged(
    old: TunedState, em: EMState, moments: Moments, refused: Scalars, turning: turns.Turns
) -> tuple[Flag, Scalar]:
    """After an M-step: whether there is nothing left to learn, and the path from now on."""
    num_chains, dim = em.chains.position.shape
    size = (old.em.statistic.num_samples + num_chains).astype(em.learnt.step_size.dtype)
    change = _change(old.em.learnt.mass, em.learnt.mass)
    is_same = change <= TOLERANCE + NOISE * jnp.sqrt(dim / size)
    is_telling = (size >= max(LEAST, PER_DIMENSION * dim)) & _do_agree(moments)
    path = turns.lengthened(turning, old.em.learnt.path, PATH, LONGEST)
    is_settled = is_telling & is_same & ~refusals.is_any_stuck(refused)
    return is_settled, jnp.where(is_telling, path, old.path)


def _do_agree(moments: Moments) -> Flag:
    return jnp.var(moments.mean["lp"]) <= DISAGREEMENT * jnp.mean(moments.variance["lp"])


def _change(old: Any, new: Any) -> Scalar:
    """The root mean square of lambda - 1."""
    diagonal = new.inverse_mass_diagonal()
    if len(diagonal) > WHOLE_COMPARISON:
        return jnp.sqrt(jnp.mean((diagonal / old.inverse_mass_diagonal() - 1) ** 2))
    identity = jnp.eye(len(diagonal), dtype=diagonal.dtype)
    turned = jax.vmap(lambda y: new.whiten(old.colour(y)))(identity)  # rows F_new^-1 F_old e_i
    return jnp.linalg.norm(turned @ turned.T - identity) / len(diagonal) ** 0.5


def _freeze(sampler: Sampler, acceptance: Any, state: TunedState) -> tuple[Sampler, TunedState]:
    """The same sampler, so that its program is compiled once."""
    return tuned(sampler, acceptance), _frozen(state)


@program
def _frozen(state: TunedState) -> TunedState:
    learnt = state.em.learnt
    step_size = jnp.exp(state.averaging.log_average)
    learnt = learnt._replace(
        step_size=step_size, path=jnp.minimum(state.path, MOST_STEPS * step_size)
    )
    size = state.em.e_step.size
    endless = state.em.e_step._replace(size=jnp.full_like(size, jnp.iinfo(size.dtype).max))
    none = jnp.zeros_like(state.refusals)
    chains = state.em.chains._replace(pace=refusals.pace(none))
    em = state.em._replace(chains=chains, learnt=learnt, e_step=endless)
    return state._replace(em=em, refusals=none, is_frozen=jnp.array(True))


def _learnt(state: TunedState) -> Learnt:
    return state.em.learnt


def _is_settled(state: TunedState) -> Flag:
    return state.is_settled & ~state.is_frozen

"""Warm-up of HMC-EM: mass by EM, step size by dual averaging, path length by a rule, and an end by
evidence.

Mass. Before the first iteration, from the starts themselves: their scores g and positions theta
give M_I = diag sd(theta) / sd(g), which is the variance of a Gaussian wherever the starts are.
Then by EM, in E-steps that grow by half each time.

Step size. In every iteration, from the acceptance rate of all chains; anew after each M-step.

Path. In a whitened posterior every direction swings with period 2 pi, and a quarter of it, pi / 2,
carries a draw to where it is independent of its start. Until the mass is learnt a path may take
only so many steps, twice as many in each E-step.

End. An M-step that changes the mass by no more than its own Monte Carlo error, D coordinates
learnt from S draws,

    rms (lambda - 1) <= TOLERANCE + sqrt(D / S),        lambda: eigenvalues of M_old M_new^-1

while the chains agree on the log density (variance of their means over the mean of their variances
<= DISAGREEMENT), has nothing more to learn. Sampling starts there: with the same compiled program,
in which learning has come to an end.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_between
from momentem.em.wrapper import EMState
from momentem.tuning.step_size import DualAveraging, restarted, started, updated
from momentem.types import EnsembleInfo, Flag, Learnt, Mass, PRNGKey, Sampler, Scalar, Vectors

__all__ = ["TunedState", "tuned"]

PATH = math.pi / 2
FIRST_ITERATIONS = 10  # of the first E-step
FIRST_STEPS = 8.0  # most steps of a path in the first E-step
TOLERANCE = 0.1
DISAGREEMENT = 0.1
WHOLE_COMPARISON = 512  # masses are compared in all directions up to this dimension


class ChainMoments(NamedTuple):
    """Mean of the log density of each chain in this E-step, and the sum of squares around it."""

    count: Scalar
    mean: Float[Array, " chains"]
    total: Float[Array, " chains"]


class TunedState(NamedTuple):
    """What EM holds, the step size on its way, and whether warm-up may end."""

    em: EMState
    averaging: DualAveraging
    moments: ChainMoments
    is_settled: Flag
    is_frozen: Flag


def tuned(sampler: Sampler, acceptance: float = 0.8) -> Sampler:
    """An EM sampler of `kernels.path_hmc`, with its step size, path and length of warm-up tuned.

    Args:
        sampler: from `monte_carlo_em`.
        acceptance: rate that the step size is tuned to.
    """
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
    mass = _mass_of_starts(em.learnt.mass, em.chains.position, em.chains.gradient)
    averaging = started(em.learnt.step_size)
    learnt = em.learnt._replace(mass=mass, path=_path(averaging, jnp.array(0), em.learnt))
    size = jnp.full_like(em.e_step.size, FIRST_ITERATIONS * len(positions))
    em, no = em._replace(learnt=learnt, e_step=em.e_step._replace(size=size)), jnp.array(False)
    return TunedState(em, averaging, _no_moments(positions), no, no)


def _mass_of_starts(like: Any, positions: Vectors, scores: Vectors) -> Mass:
    """Every start's distance from the others over its score's; of one start, 1 over its score."""
    if len(positions) == 1:
        variances = 1 / jnp.abs(scores[0])
    else:
        variances = jnp.std(positions, axis=0) / jnp.std(scores, axis=0)
    variances = jnp.where(jnp.isfinite(variances) & (variances > 0), variances, 1.0)
    return like.with_variances(variances)


def _no_moments(positions: Vectors) -> ChainMoments:
    zeros = jnp.zeros_like(positions[:, 0])
    return ChainMoments(jnp.zeros_like(zeros[0]), zeros, zeros)


def _seen(moments: ChainMoments, values: Float[Array, " chains"]) -> ChainMoments:
    count = moments.count + 1
    shift = values - moments.mean
    mean = moments.mean + shift / count
    return ChainMoments(count, mean, moments.total + shift * (values - mean))


def _path(averaging: DualAveraging, num_m_steps: Any, learnt: Learnt) -> Scalar:
    """The rule's length, or as far as the steps allowed so far reach."""
    most = FIRST_STEPS * 2.0 ** num_m_steps.astype(learnt.step_size.dtype)
    return jnp.minimum(PATH, most * jnp.exp(averaging.log_step))


def _step(
    sampler: Sampler, acceptance: Any, key: PRNGKey, state: TunedState
) -> tuple[TunedState, EnsembleInfo]:
    em, info = sampler.step(key, state.em)
    is_m_step, num_m_steps = info.learning["is_m_step"], info.learning["num_m_steps"]
    averaging = updated(
        state.averaging, jnp.mean(info.chains.stats["acceptance_rate"]), acceptance
    )
    moments = _seen(state.moments, info.chains.stats["lp"])
    is_settled = jax.lax.cond(
        is_m_step & ~state.is_frozen,
        lambda: _agree(moments) & _is_same(state.em, em.learnt),
        lambda: state.is_settled,
    )
    averaging = _where(is_m_step, restarted(averaging), averaging)
    moments = _where(is_m_step, _no_moments(info.chains.position), moments)
    learnt = em.learnt._replace(
        step_size=jnp.exp(averaging.log_step), path=_path(averaging, num_m_steps, em.learnt)
    )
    learnt = _where(state.is_frozen, em.learnt, learnt)
    em = em._replace(learnt=learnt)
    return TunedState(em, averaging, moments, is_settled, state.is_frozen), info


def _where(condition: Flag, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _agree(moments: ChainMoments) -> Flag:
    between = jnp.var(moments.mean)
    within = jnp.mean(moments.total) / moments.count
    return between <= DISAGREEMENT * within


def _is_same(old: EMState, new: Learnt) -> Flag:
    dim = len(new.mass.precision_diagonal())
    size = old.statistic.num_samples.astype(new.step_size.dtype) + len(old.chains.position)
    return _change(old.learnt.mass, new.mass) <= TOLERANCE + jnp.sqrt(dim / size)


def _change(old: Mass, new: Mass) -> Scalar:
    """The root mean square of lambda - 1."""
    if len(new.precision_diagonal()) > WHOLE_COMPARISON:
        ratios = new.precision_diagonal() / old.precision_diagonal()
        return jnp.sqrt(jnp.mean((ratios - 1) ** 2))
    identity = jnp.eye(len(new.precision_diagonal()), dtype=new.precision_diagonal().dtype)
    turned = jax.vmap(lambda y: new.whiten(old.colour(y)))(identity)  # rows F_new^-1 F_old e_i
    return jnp.linalg.norm(turned @ turned.T - identity) / jnp.sqrt(len(identity))


def _freeze(sampler: Sampler, acceptance: Any, state: TunedState) -> tuple[Sampler, TunedState]:
    """The same sampler, so that its program is compiled once; its E-step never ends."""
    learnt = state.em.learnt._replace(
        step_size=jnp.exp(state.averaging.log_average), path=jnp.full_like(state.em.learnt.path, PATH)
    )
    endless = jnp.full_like(state.em.e_step.size, jnp.iinfo(state.em.e_step.size.dtype).max)
    em = state.em._replace(learnt=learnt, e_step=state.em.e_step._replace(size=endless))
    return tuned(sampler, acceptance), state._replace(em=em, is_frozen=jnp.array(True))


def _learnt(state: TunedState) -> Learnt:
    return state.em.learnt


def _is_settled(state: TunedState) -> Flag:
    return state.is_settled

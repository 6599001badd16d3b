"""Warm-up of HMC-EM: the way in, then mass and centre by EM, step size by dual averaging, path
length by a rule, and an end by evidence.

Way in. Every chain climbs from its start to where the posterior is, and brings a mass from there
(`way_in`, and above DENSE dimensions `long_way_in`). The first M_I is the mean of theirs.

Mass. By EM, in E-steps each twice as long as the one before. As long as the log density still rises
from one E-step to the next, by more than its standard deviation, they do not grow.

Step size. In every iteration, from the acceptance rate of all chains; it starts again after each
M-step. It is the rate of paths as they are before they are refined (`kernels.refinement`), so that
the step size suits the bulk, and shorter steps are taken where they are needed.

Path. In a whitened posterior every direction swings with period 2 pi, and a quarter of it, pi / 2,
carries a draw to where it is independent of its start. If a parameter is seen to turn more slowly,
the path is longer, up to half as long again (`path_length`). In the first E-steps, before there is
a mass to trust, a path may take only a few steps: FIRST_STEPS in the first, twice as many in each
of the next.

End. Warm-up ends after an M-step from S >= max(LEAST, PER_DEGREE d) draws that is not refused and
changes the mass no more than Monte Carlo error would,

    rms (lambda - 1) <= TOLERANCE + NOISE sqrt(d / S),        lambda: eigenvalues of M_old M_new^-1

where d is D for a dense mass, 1 for a diagonal one and the window's size for one of low rank,

if the chains agree on the log density (the variance of their means is at most DISAGREEMENT times
the median of their variances) and it does not rise. Where the mass goes on changing, because draws
are slow and its estimates noisy, BUDGET gradients per chain are enough; where the chains do not
agree, because they are in separate places, PATIENCE are. Draws then come from the same compiled
program, in which no M-step is taken any more.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_between, check_instance
from momentem.em import EMState, e_steps, m_steps, monte_carlo_em, schedules
from momentem.em.ensemble import check_learnt, over_chains
from momentem.em.m_steps import MStep
from momentem.masses import WindowMass
from momentem.moments import Moments, add_samples
from momentem.pytrees import where
from momentem.tuning import long_way_in, path_length, step_size, way_in
from momentem.tuning.step_size import LONGEST, DualAveraging
from momentem.types import (
    EnsembleInfo,
    Flag,
    Kernel,
    Learnt,
    PRNGKey,
    Sampler,
    Scalar,
    Vectors,
)
from momentem.xla.compile import program

__all__ = ["TunedState", "tuned_em"]

FIRST_ITERATIONS = 10  # of the first E-step, at least
FIRST_STEPS = 8.0  # most steps of a path in the first E-step
MOST_STEPS = 1000.0  # of any path
TOLERANCE, NOISE = 0.1, 0.5
LEAST, PER_DEGREE = 100, 4
DISAGREEMENT = 0.1
BUDGET = 1000.0  # gradients per chain after which the mass need not stay the same
PATIENCE = 1500.0  # after which the chains need not agree
DENSE = 200  # dimension up to which the way in measures all correlations
WHOLE_COMPARISON = 512  # dimension up to which masses are compared in all directions
WINDOW = 5  # draws in the window of a low-rank mass, per direction


class TunedState(NamedTuple):
    """What EM holds, the step size on its way, and whether warm-up may end."""

    em: EMState
    averaging: DualAveraging
    moments: Moments  # of the log density, per chain, in this E-step
    height: Scalar  # mean log density in the E-step before
    way_in: dict[str, Array]  # of each chain: its gradients, and whether it was flat
    spent: Scalar  # gradients per chain since then
    turns: path_length.Turns  # in this E-step
    path: Scalar  # that all steps together should have
    is_settled: Flag


def tuned_em(
    kernel: Kernel, learnt: Learnt, m_step: MStep | None = None, acceptance: float = 0.8
) -> Sampler:
    """Return a sampler that learns by EM and tunes step size, path length and length of warm-up.

    Args:
        kernel: one that leaves open a `centre` and a `path`, such as `kernels.rotating_hmc`.
        learnt: where to start; the mass decides the structure of the learnt one.
        m_step: how the mass is learnt. Default: `m_steps.fisher()`, or `m_steps.fisher_low_rank` if
            the mass needs it. The centre is always learnt too.
        acceptance: rate that the step size is tuned to.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> learnt = mt.Learnt(mt.dense_mass(jnp.eye(2)), 1.0)
        >>> sampler = mt.tuned_em(mt.kernels.rotating_hmc(target), learnt)
    """
    check_instance(Kernel, "build it with momentem.kernels.rotating_hmc", kernel=kernel)
    check_between(0.0, 1.0, acceptance=acceptance)
    _check_kernel(kernel, learnt)
    window = _degrees(learnt.mass) if isinstance(learnt.mass, WindowMass) else 0
    if m_step is None:
        m_step = m_steps.fisher_low_rank(window) if window else m_steps.fisher()
    sampler = monte_carlo_em(
        kernel,
        learnt,
        m_steps.with_centre(m_step),
        e_steps.geometric(max(10, window), factor=2.0),
        schedules.latest(),
    )
    start = Partial(_start, kernel, check_learnt(kernel, learnt))
    return _tuned(sampler, start, acceptance, shortest=kernel.complete(learnt).path)


def _check_kernel(kernel: Kernel, learnt: Learnt) -> None:
    """Refuse a kernel without what is tuned, or that does not report what tuning needs."""
    if missing := [name for name in ("centre", "path") if name not in kernel.complete(learnt)]:
        raise TypeError(
            f"kernel must leave open a centre and a path to be tuned, and this one has no "
            f"{missing[0]}; use momentem.kernels.rotating_hmc, or monte_carlo_em for others"
        )

    def one_step(learnt: Learnt) -> tuple[Any, dict]:
        key = jax.random.key(0)
        state = kernel.init(key, learnt.centre, learnt)
        own = learnt if kernel.share is None else kernel.share(key, learnt)
        return state, kernel.step(key, state, own)[1].stats

    step = jnp.asarray(learnt.step_size, jax.eval_shape(learnt.mass.inverse_mass_diagonal).dtype)
    state, stats = jax.eval_shape(one_step, kernel.complete(learnt.replace(step_size=step)))
    needed = "position", "logdensity", "gradient"
    lacking = [name for name in needed if not hasattr(state, name)]
    lacking += [name for name in ("acceptance_rate", "lp") if name not in stats]
    if lacking:
        raise TypeError(
            f"kernel must keep {', '.join(needed)} in its state and report acceptance_rate and "
            f"lp to be tuned, and this one lacks {lacking[0]}; use momentem.kernels.rotating_hmc"
        )


def _tuned(sampler: Sampler, start: Any, acceptance: Any, shortest: Any) -> Sampler:
    return Sampler(
        Partial(_init, sampler, start),
        Partial(_step, sampler, acceptance, shortest),
        Partial(_freeze, sampler, start, acceptance, shortest),
        Partial(_learnt),
        Partial(_is_settled),
    )


def _init(sampler: Sampler, start: Any, key: PRNGKey, positions: Vectors) -> TunedState:
    start_key, init_key = jax.random.split(key)
    positions, to_mass, entered = start(start_key, positions)
    em = sampler.init(init_key, positions)
    averaging, path = step_size.start(em.learnt.step_size), em.learnt.path
    chains, mass = em.chains, to_mass(em.learnt.mass)
    centre = jnp.mean(chains.position, axis=0) + mass.velocity(jnp.mean(chains.gradient, axis=0))
    first = em.learnt.replace(mass=mass, centre=centre)
    first = first.replace(path=_reach(path, averaging, jnp.array(0)))
    size = jnp.maximum(em.e_step.size, FIRST_ITERATIONS * len(positions))
    em = em._replace(learnt=first, e_step=em.e_step._replace(size=size))
    none = jnp.zeros_like(positions[:, 0])
    moments, turns = Moments.fresh(none, none), path_length.no_turns(first.centre)
    height = jnp.mean(chains.logdensity)
    is_settled, spent = jnp.array(False), jnp.zeros_like(height)
    return TunedState(em, averaging, moments, height, entered, spent, turns, path, is_settled)


def _start(kernel: Kernel, learnt: Learnt, key: PRNGKey, positions: Vectors) -> tuple:
    """Return where chains arrive, what makes the first mass of one, and a record of their ways."""

    def evaluate(key: PRNGKey, position: Any) -> tuple[Scalar, Any]:
        state = kernel.init(key, position, learnt)
        return state.logdensity, state.gradient

    def climb(key: PRNGKey, start: Any) -> way_in.Place:
        init_key, climb_key = jax.random.split(key)
        return way_in.climb(Partial(evaluate, init_key), climb_key, start)

    def score(init_key: PRNGKey, position: Any) -> Any:
        return evaluate(init_key, position)[1]

    keys = jax.random.split(key, len(positions))
    if positions.shape[1] > DENSE:
        scores = lambda there: over_chains(score, (keys, there))  # noqa: E731
        way = long_way_in.climb_far(scores, key, positions)
        variances = 1 / jnp.mean(1 / way.place.diagonal, axis=0)  # steps that are safe for all
        taken = jnp.full(len(positions), way.num_gradients)
        entered = _entered(taken, way.place.num_not_finite, way.is_flat)
        return way.place.position, lambda mass: mass.with_variances(variances), entered
    places = way_in.leave_behind(over_chains(climb, (keys, positions)))
    root = way_in.pool_roots(places.root)
    entered = _entered(places.num_gradients, places.num_not_finite, places.is_flat)
    return places.position, lambda mass: mass.with_root(root), entered


def _entered(num_gradients: Array, num_not_finite: Array, is_flat: Array) -> dict[str, Array]:
    return {
        "way_in_gradients": num_gradients,
        "way_in_not_finite": num_not_finite,
        "way_in_is_flat": is_flat,
    }


def _reach(path: Scalar, averaging: DualAveraging, num_m_steps: Any) -> Scalar:
    """Return the path, or as much of it as the steps allowed so far reach."""
    step = jnp.exp(averaging.log_step)
    most = jnp.minimum(MOST_STEPS, FIRST_STEPS * 2.0 ** num_m_steps.astype(step.dtype))
    return jnp.minimum(path, most * step)


def _step(
    sampler: Sampler, acceptance: Any, shortest: Any, key: PRNGKey, state: TunedState
) -> tuple[TunedState, EnsembleInfo]:
    old = state.em
    em, info = sampler.step(key, old)
    is_m_step, stats = info.learning["is_m_step"], info.chains.stats
    rates = stats.get("coarse_acceptance_rate", stats["acceptance_rate"])
    averaging = step_size.add_rate(state.averaging, jnp.mean(rates), acceptance)
    moments = add_samples(state.moments, stats["lp"][None])
    spent = state.spent + jnp.mean(stats.get("n_steps", jnp.ones_like(rates)).astype(rates.dtype))
    before, after = old.chains.position, info.chains.position
    turns = path_length.add_moves(state.turns, old.learnt.centre, before, after)
    is_settled, path, em, height = jax.lax.cond(
        is_m_step,
        lambda: _judge(state, em, moments, turns, spent, shortest),
        lambda: (state.is_settled, state.path, em, state.height),
    )
    averaging = where(is_m_step, step_size.restart(averaging), averaging)
    moments = moments._replace(num_samples=jnp.where(is_m_step, 0, moments.num_samples))
    turns = where(is_m_step, path_length.no_turns(old.learnt.centre), turns)
    adjusted = em.learnt.replace(
        step_size=jnp.exp(averaging.log_step),
        path=_reach(path, averaging, info.learning["num_m_steps"]),
    )
    em = em._replace(learnt=where(old.is_learning, adjusted, em.learnt))
    info = info._replace(learning=info.learning | state.way_in)
    rest = moments, height, state.way_in, spent, turns, path, is_settled
    return TunedState(em, averaging, *rest), info


def _judge(
    old: TunedState,
    em: EMState,
    moments: Moments,
    turns: path_length.Turns,
    spent: Scalar,
    shortest: Any,
) -> tuple[Flag, Scalar, EMState, Scalar]:
    """Return, after an M-step, whether there is nothing left to learn, the path from now on, EM
    with the E-step that suits, and the mean log density."""
    num_chains = len(em.chains.position)
    size = (old.em.statistic.num_samples + num_chains).astype(em.learnt.step_size.dtype)
    change = _change(old.em.learnt.mass, em.learnt.mass)
    degrees = _degrees(em.learnt.mass)
    is_same = (change <= TOLERANCE + NOISE * jnp.sqrt(degrees / size)) | (spent > BUDGET)
    height = jnp.mean(moments.mean)
    is_rising = height - old.height > jnp.sqrt(_typical_variance(moments))
    is_enough = size >= max(LEAST, PER_DEGREE * degrees)
    is_telling = is_enough & (_do_agree(moments) | (spent > PATIENCE))
    path = path_length.lengthen(turns, old.em.learnt.path, shortest, LONGEST)
    is_settled = is_telling & is_same & ~is_rising & ~em.learning["is_refused"]
    size = jnp.where(is_rising, old.em.e_step.size, em.e_step.size)
    em = em._replace(e_step=em.e_step._replace(size=size))
    return is_settled, jnp.where(is_telling, path, old.path), em, height


def _degrees(mass: Any) -> int:
    """Return the number of coordinates that an entry of the mass depends on, or of draws."""
    return WINDOW * mass.rank if isinstance(mass, WindowMass) else mass.degrees


def _do_agree(moments: Moments) -> Flag:
    return jnp.var(moments.mean) <= DISAGREEMENT * _typical_variance(moments)


def _typical_variance(moments: Moments) -> Scalar:
    """Return the variance within the chain in the middle: a chain that is on its way has a large
    one."""
    return jnp.median(moments.covariance)


def _change(old: Any, new: Any) -> Scalar:
    """Return the root mean square of lambda - 1."""
    diagonal = new.inverse_mass_diagonal()
    if len(diagonal) > WHOLE_COMPARISON:
        return jnp.sqrt(jnp.mean((diagonal / old.inverse_mass_diagonal() - 1) ** 2))
    identity = jnp.eye(len(diagonal), dtype=diagonal.dtype)
    turned = jax.vmap(lambda y: new.whiten(old.colour(y)))(identity)  # rows F_new^-1 F_old e_i
    return jnp.linalg.norm(turned @ turned.T - identity) / len(diagonal) ** 0.5


def _freeze(
    sampler: Sampler, start: Any, acceptance: Any, shortest: Any, state: TunedState
) -> tuple[Sampler, TunedState]:
    """Return the same sampler, whose program is compiled already, and a state that learns no
    more."""
    return _tuned(sampler, start, acceptance, shortest), _stop_learning(state)


@partial(program, is_brief=True)
def _stop_learning(state: TunedState) -> TunedState:
    step = jnp.exp(state.averaging.log_average)
    path = jnp.minimum(state.path, MOST_STEPS * step)
    learnt = state.em.learnt.replace(step_size=step, path=path)
    return state._replace(em=state.em._replace(learnt=learnt, is_learning=jnp.array(False)))


def _learnt(state: TunedState) -> Learnt:
    return state.em.learnt


def _is_settled(state: TunedState) -> Flag:
    return state.is_settled & state.em.is_learning

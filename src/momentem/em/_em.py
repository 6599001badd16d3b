"""From a kernel to a sampler that learns by Monte Carlo EM.

    E-step    every chain moves with the same (M, eps), until S draws, pooled over chains, are seen
    M-step    M_I <- (1 - kappa_k) M_I + kappa_k M_I_est; momenta are transported; S may grow

The E-step counter is one number for the whole ensemble, and its O(D^3) M-step is paid once per
E-step. An estimate that is not positive definite is refused, not repaired: the mass stays, and
`is_refused` in the learning trace says so.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_instance, check_key
from momentem.em._fixed import FixedState, fixed
from momentem.em.e_steps import EStep
from momentem.em.ensemble import check_learnt, move_chains, num_keys, over_chains, start_chains
from momentem.em.m_steps.contract import MStep
from momentem.em.schedules import Schedule, polynomial
from momentem.pytrees import where
from momentem.types import (
    Count,
    EnsembleInfo,
    Flag,
    Kernel,
    Learnt,
    PRNGKey,
    Sampler,
    Scalar,
    Vectors,
)
from momentem.xla.once import run_if_due

__all__ = ["EMState", "forever", "monte_carlo_em"]


class EMState(NamedTuple):
    """Where the chains are, what is learnt, and what the current E-step has gathered."""

    chains: Any
    learnt: Learnt
    statistic: Any
    e_step: Any
    learning: dict[str, Array]  # of the last M-step
    is_learning: Flag  # False: no M-step is taken any more


def monte_carlo_em(
    kernel: Kernel, learnt: Learnt, m_step: MStep, e_step: EStep, averaging: Schedule | None = None
) -> Sampler:
    """Return the sampler that learns what `kernel` leaves open by Monte Carlo EM over its chains.

    Args:
        kernel: how one chain moves.
        learnt: where to start; the initial mass decides the structure of the learnt one.
        m_step: how the mass is learnt, from `momentem.m_steps`.
        e_step: how many draws it is learnt from, from `momentem.e_steps`.
        averaging: kappa_k, from `momentem.schedules`. Default: `polynomial()`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> sampler = mt.monte_carlo_em(
        ...     mt.kernels.hmc(target, num_steps=8),
        ...     mt.Learnt(mt.dense_mass(jnp.eye(2)), 0.2),
        ...     m_step=mt.m_steps.fisher(),
        ...     e_step=mt.e_steps.growing(100),
        ... )
    """
    learnt = check_learnt(kernel, learnt)
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    check_instance(EStep, "choose one from momentem.e_steps", e_step=e_step)
    averaging = polynomial() if averaging is None else averaging
    check_instance(Partial, "choose one from momentem.schedules", averaging=averaging)
    # refuses a mass or a size that the M-step cannot work with
    jax.eval_shape(lambda mass: m_step.init(mass, e_step.size), learnt.mass)
    return Sampler(
        Partial(_init, kernel, learnt, m_step, e_step),
        Partial(_step, kernel, m_step, e_step, averaging),
        Partial(_freeze, kernel),
        Partial(_learnt),
    )


def forever(sampler: Sampler) -> Sampler:
    """Return the same sampler, never frozen: it goes on learning after warm-up, as in the paper.

    Its draws are exact only in the limit, as kappa_k -> 0.

    Args:
        sampler: one that learns.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> sampler = mt.forever(mt.hmc_em(target, step_size=0.5, num_steps=5))
    """
    check_instance(Sampler, "e.g. momentem.hmc_em(target, ...)", sampler=sampler)
    return sampler._replace(freeze=Partial(_never_freeze, sampler))


def _init(
    kernel: Kernel, learnt: Learnt, m_step: MStep, e_step: EStep, key: PRNGKey, positions: Vectors
) -> EMState:
    check_key(key)
    chains_key, e_key = jax.random.split(key)
    none = jnp.zeros_like(learnt.step_size)
    size = jnp.asarray(e_step.size, int)
    return EMState(
        chains=start_chains(kernel, learnt, chains_key, positions),
        learnt=learnt,
        statistic=m_step.init(learnt.mass, e_step.size),
        e_step=e_step.init(e_key, e_step.size, learnt),
        learning=_learning_row(jnp.array(0), size, none, learnt, jnp.array(False)),
        is_learning=jnp.array(True),
    )


def _learning_row(
    num_m_steps: Count, size: Count, rate: Scalar, learnt: Learnt, is_refused: Any
) -> dict[str, Array]:
    """Return what an M-step adds to the learning trace: every number that is learnt, and what
    describes the mass."""
    return {
        "num_m_steps": num_m_steps,
        "e_step_size": size,
        "averaging_rate": rate,
        "step_size": learnt.step_size,
        **{name: x for name, x in learnt.others.items() if _is_number(x)},
        "inverse_mass_diagonal": learnt.mass.inverse_mass_diagonal(),
        "condition_number": learnt.mass.condition_number(),
        "is_refused": is_refused,
    }


def _is_number(entry: Any) -> bool:
    return isinstance(entry, jax.Array) and entry.ndim == 0


def _step(
    kernel: Kernel, m_step: MStep, e_step: EStep, averaging: Schedule, key: PRNGKey, state: EMState
) -> tuple[EMState, EnsembleInfo]:
    keys = jax.random.split(key, num_keys(kernel, state.chains) + 2)  # one call: calls are the cost
    move_keys, observe_key, renew_key = keys[:-2], keys[-2], keys[-1]
    chains, info = move_chains(kernel, state.learnt, move_keys, state.chains)
    statistic = m_step.update(state.statistic, info, state.learnt)
    watched = e_step.observe(observe_key, state.e_step, info, state.learnt)

    def maximise(key: PRNGKey, carried: Any) -> Any:
        chains, old, watched, learning = carried
        k = learning["num_m_steps"] + 1
        rate = jnp.asarray(averaging(k.astype(old.step_size.dtype)), old.step_size.dtype)
        estimate = m_step.estimate(statistic, old)
        averaged = m_step.average(old, estimate, rate)
        is_refused = ~(estimate.is_proper() & averaged.mass.is_proper())
        learnt = where(is_refused, old, averaged)
        chains = over_chains(kernel.transport, (chains,), old, learnt)
        learning = _learning_row(k, watched.size, rate, learnt, is_refused)
        return chains, learnt, e_step.renew(key, watched, learnt), learning

    is_over = state.is_learning & (statistic.num_samples >= watched.size)
    chains, learnt, watched, learning = run_if_due(
        is_over, maximise, renew_key, (chains, state.learnt, watched, state.learning)
    )
    is_emptied = is_over | ~state.is_learning
    statistic = statistic._replace(num_samples=jnp.where(is_emptied, 0, statistic.num_samples))
    state = EMState(chains, learnt, statistic, watched, learning, state.is_learning)
    return state, EnsembleInfo(info, {"is_m_step": is_over} | learning)


def _freeze(kernel: Kernel, state: EMState) -> tuple[Sampler, FixedState]:
    return fixed(kernel, state.learnt), FixedState(state.chains)


def _learnt(state: EMState) -> Learnt:
    return state.learnt


def _never_freeze(sampler: Sampler, state: Any) -> tuple[Sampler, Any]:
    return forever(sampler), state

"""From a kernel to a sampler: with what is learnt held fixed, or learnt by Monte Carlo EM.

    E-step    every chain moves with the same (M, eps), until S draws, pooled over chains, are seen
    M-step    M_I <- (1 - kappa_k) M_I + kappa_k M_I_est; momenta are transported; S may grow

The E-step counter is one number for the whole ensemble, and its O(D^3) M-step is paid once per
E-step. An estimate that is not positive
definite is refused, not repaired: the mass stays, and `is_refused` says so in the learning trace.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_instance, check_key, check_positive, is_traced
from momentem.em.e_steps import EStep
from momentem.em.m_steps.all import MStep
from momentem.em.rarely import rarely
from momentem.em.schedules import Schedule, polynomial
from momentem.types import (
    Count,
    EnsembleInfo,
    Info,
    Kernel,
    Learnt,
    Mass,
    PRNGKey,
    PRNGKeys,
    RiemannianKernel,
    Sampler,
    Scalar,
    Static,
    Vectors,
)

__all__ = ["EMState", "FixedState", "fixed", "forever", "monte_carlo_em", "unlearnt"]


class FixedState(NamedTuple):
    """The chains' states alone: nothing is learnt."""

    chains: Any


class EMState(NamedTuple):
    """Where the chains are, what is learnt, and what the current E-step has gathered."""

    chains: Any
    learnt: Learnt
    statistic: Any
    e_step: Any
    learning: dict[str, Array]  # of the last M-step


def fixed(kernel: Kernel, learnt: Learnt) -> Sampler:
    """The sampler that moves every chain by `kernel` with what is learnt held fixed.

    Args:
        kernel: how one chain moves.
        learnt: the mass and step size.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.2)
        >>> sampler = mt.fixed(mt.kernels.hmc(target, num_steps=8), learnt)
    """
    learnt = _check(kernel, learnt)
    return Sampler(
        Partial(_fixed_init, kernel, learnt),
        Partial(_fixed_step, kernel, learnt),
        Partial(_fixed_freeze, kernel, learnt),
        Partial(_fixed_learnt, learnt),
    )


def unlearnt(kernel: RiemannianKernel, dim: int) -> Sampler:
    """The sampler that moves every chain by a kernel that has nothing to learn.

    Args:
        kernel: how one chain moves.
        dim: of its positions.
    """
    return Sampler(
        Partial(_unlearnt_init, kernel, Static(dim)),
        Partial(_unlearnt_step, kernel),
        Partial(_unlearnt_freeze, kernel, Static(dim)),
        Partial(_nothing),
    )


def monte_carlo_em(
    kernel: Kernel, learnt: Learnt, m_step: MStep, e_step: EStep, averaging: Schedule | None = None
) -> Sampler:
    """The sampler that learns the mass of `kernel` by Monte Carlo EM over its ensemble of chains.

    Args:
        kernel: how one chain moves.
        learnt: where to start; the initial mass decides the structure of the learnt one.
        m_step: how the mass is learnt, from `momentem.m_steps`.
        e_step: how many draws it is learnt from, from `momentem.e_steps`.
        averaging: kappa_k, from `momentem.schedules`; None is `polynomial()`.

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
    learnt = _check(kernel, learnt)
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    check_instance(EStep, "choose one from momentem.e_steps", e_step=e_step)
    averaging = polynomial() if averaging is None else averaging
    check_instance(Partial, "choose one from momentem.schedules", averaging=averaging)
    # refuses a mass or a size that the M-step cannot work with
    jax.eval_shape(lambda mass: m_step.init(mass, e_step.size), learnt.mass)
    return Sampler(
        Partial(_em_init, kernel, learnt, m_step, e_step),
        Partial(_em_step, kernel, m_step, e_step, averaging),
        Partial(_em_freeze, kernel),
        Partial(_em_learnt),
    )


def forever(sampler: Sampler) -> Sampler:
    """The same sampler, never frozen: it goes on learning after warm-up, as in the paper.

    Its draws are exact only in the limit, as kappa_k -> 0.

    Args:
        sampler: one that learns.
    """
    check_instance(Sampler, "e.g. momentem.hmc_em(target, ...)", sampler=sampler)
    return sampler._replace(freeze=Partial(_never_freeze, sampler))


def _check(kernel: Any, learnt: Learnt) -> Learnt:
    if isinstance(kernel, RiemannianKernel):
        raise TypeError(
            "kernel must have a mass to set, and the mass of a Riemannian kernel is its metric; "
            "use momentem.rhmc or momentem.sgr_nphmc as they are, or learn the mass of "
            "kernels.hmc or kernels.sg_nphmc instead"
        )
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    check_instance(Learnt, "build it as momentem.Learnt(mass, step_size)", learnt=learnt)
    check_instance(
        Mass, "build it with diagonal_mass, dense_mass or low_rank_mass", mass=learnt.mass
    )
    check_positive(step_size=learnt.step_size)
    diagonal = jax.eval_shape(learnt.mass.inverse_mass_diagonal)
    (dim,), dtype = diagonal.shape, diagonal.dtype
    noise = jnp.asarray(np.zeros(dim) if learnt.noise is None else learnt.noise, dtype)
    if noise.shape != (dim,) or (not is_traced(noise) and not np.all(np.asarray(noise) >= 0)):
        raise ValueError(f"noise must be {dim} variances >= 0, got {learnt.noise}")
    thermostat_mass = dim if learnt.thermostat_mass is None else learnt.thermostat_mass
    check_positive(thermostat_mass=thermostat_mass)
    return Learnt(
        learnt.mass,
        jnp.asarray(learnt.step_size, dtype),
        noise,
        jnp.asarray(thermostat_mass, dtype),
        None if learnt.centre is None else jnp.asarray(learnt.centre, dtype),
        None if learnt.path is None else jnp.asarray(learnt.path, dtype),
        learnt.anchor,
    )


def _start(kernel: Kernel, learnt: Learnt, key: PRNGKey, positions: Vectors) -> Any:
    diagonal = learnt.mass.inverse_mass_diagonal()
    if positions.ndim != 2 or positions.shape[1] != len(diagonal):
        raise ValueError(
            f"positions must have shape (chains, {len(diagonal)}) to fit the mass, got "
            f"{positions.shape}"
        )
    if positions.dtype != diagonal.dtype:
        raise TypeError(
            f"positions and mass must share a dtype, got {positions.dtype} and {diagonal.dtype}"
        )
    keys = jax.random.split(key, len(positions))
    return _over_chains(kernel.init, (keys, positions), learnt)


def _over_chains(function: Any, of_chains: tuple, *shared: Any) -> Any:
    """`function` of every chain. One chain is not mapped: gathers and scatters over an axis of one
    cost XLA twice as much on a CPU as without it."""
    if _num_chains(of_chains) > 1:
        return jax.vmap(lambda own: function(*own, *shared))(of_chains)
    own = jax.tree.map(lambda leaf: leaf[0], of_chains)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*own, *shared))


def _num_chains(chains: Any) -> int:
    return len(jax.tree.leaves(chains)[0])


def _num_keys(kernel: Kernel, chains: Any) -> int:
    return _num_chains(chains) + (kernel.share is not None)


def _move(kernel: Kernel, learnt: Learnt, keys: PRNGKeys, chains: Any) -> tuple[Any, Info]:
    """Every chain by one step, each with its own key; what they share has the last."""
    if kernel.share is not None:
        keys, learnt = keys[:-1], kernel.share(keys[-1], learnt)
    chains, info = _over_chains(kernel.step, (keys, chains), learnt)
    step_sizes = jnp.broadcast_to(learnt.step_size, keys.shape)
    return chains, info._replace(stats=info.stats | {"step_size": step_sizes})


def _fixed_init(kernel: Kernel, learnt: Learnt, key: PRNGKey, positions: Vectors) -> FixedState:
    check_key(key)
    return FixedState(_start(kernel, learnt, key, positions))


def _fixed_step(
    kernel: Kernel, learnt: Learnt, key: PRNGKey, state: FixedState
) -> tuple[FixedState, EnsembleInfo]:
    keys = jax.random.split(key, _num_keys(kernel, state.chains))
    chains, info = _move(kernel, learnt, keys, state.chains)
    return FixedState(chains), EnsembleInfo(info, {})


def _fixed_freeze(kernel: Kernel, learnt: Learnt, state: FixedState) -> tuple[Sampler, FixedState]:
    return fixed(kernel, learnt), state


def _fixed_learnt(learnt: Learnt, state: FixedState) -> Learnt:
    del state
    return learnt


def _unlearnt_init(
    kernel: RiemannianKernel, dim: Static, key: PRNGKey, positions: Vectors
) -> FixedState:
    check_key(key)
    if positions.ndim != 2 or positions.shape[1] != dim.value:
        raise ValueError(f"positions must have shape (chains, {dim.value}), got {positions.shape}")
    keys = jax.random.split(key, len(positions))
    return FixedState(_over_chains(kernel.init, (keys, positions)))


def _unlearnt_step(
    kernel: RiemannianKernel, key: PRNGKey, state: FixedState
) -> tuple[FixedState, EnsembleInfo]:
    keys = jax.random.split(key, _num_chains(state.chains))
    chains, info = _over_chains(kernel.step, (keys, state.chains))
    return FixedState(chains), EnsembleInfo(info, {})


def _unlearnt_freeze(
    kernel: RiemannianKernel, dim: Static, state: FixedState
) -> tuple[Sampler, FixedState]:
    return unlearnt(kernel, dim.value), state


def _nothing(state: FixedState) -> None:
    del state


def _em_init(
    kernel: Kernel, learnt: Learnt, m_step: MStep, e_step: EStep, key: PRNGKey, positions: Vectors
) -> EMState:
    check_key(key)
    chains_key, e_key = jax.random.split(key)
    return EMState(
        chains=_start(kernel, learnt, chains_key, positions),
        learnt=learnt,
        statistic=m_step.init(learnt.mass, e_step.size),
        e_step=e_step.init(e_key, e_step.size, learnt),
        learning=_learning(
            jnp.array(0),
            jnp.asarray(e_step.size, int),
            jnp.zeros_like(learnt.step_size),
            learnt,
            jnp.array(False),
        ),
    )


def _learning(
    num_m_steps: Count, size: Count, rate: Scalar, learnt: Learnt, is_refused: Any
) -> dict[str, Array]:
    """The row that an M-step adds to the learning trace."""
    return {
        "num_m_steps": num_m_steps,
        "e_step_size": size,
        "averaging_rate": rate,
        "step_size": learnt.step_size,
        "inverse_mass_diagonal": learnt.mass.inverse_mass_diagonal(),
        "condition_number": learnt.mass.condition_number(),
        "bias_scale": learnt.step_size**2 / 2 * jnp.max(learnt.noise),
        "is_refused": is_refused,
    }


def _em_step(
    kernel: Kernel, m_step: MStep, e_step: EStep, averaging: Schedule, key: PRNGKey, state: EMState
) -> tuple[EMState, EnsembleInfo]:
    num_keys = _num_keys(kernel, state.chains) + 2  # in one call: a call is what costs
    keys = jax.random.split(key, num_keys)
    move_keys, observe_key, renew_key = keys[:-2], keys[-2], keys[-1]
    chains, info = _move(kernel, state.learnt, move_keys, state.chains)
    statistic = m_step.update(state.statistic, info, state.learnt)
    watched = e_step.observe(observe_key, state.e_step, info, state.learnt)

    def maximise(key: PRNGKey, carried: Any) -> Any:
        chains, old, watched, learning = carried
        k = learning["num_m_steps"] + 1
        rate = jnp.asarray(averaging(k.astype(old.step_size.dtype)), old.step_size.dtype)
        estimate = m_step.estimate(statistic, old)
        averaged = m_step.average(old, estimate, rate)
        is_refused = ~(estimate.is_proper() & averaged.mass.is_proper())
        learnt = jax.tree.map(lambda new, old: jnp.where(is_refused, old, new), averaged, old)
        chains = _over_chains(kernel.transport, (chains,), old, learnt)
        learning = _learning(k, watched.size, rate, learnt, is_refused)
        return chains, learnt, e_step.renew(key, watched, learnt), learning

    is_over = statistic.num_samples >= watched.size
    chains, learnt, watched, learning = rarely(
        is_over, maximise, renew_key, (chains, state.learnt, watched, state.learning)
    )
    statistic = statistic._replace(num_samples=jnp.where(is_over, 0, statistic.num_samples))
    state = EMState(chains, learnt, statistic, watched, learning)
    return state, EnsembleInfo(info, {"is_m_step": is_over} | learning)


def _em_freeze(kernel: Kernel, state: EMState) -> tuple[Sampler, FixedState]:
    return fixed(kernel, state.learnt), FixedState(state.chains)


def _em_learnt(state: EMState) -> Learnt:
    return state.learnt


def _never_freeze(sampler: Sampler, state: Any) -> tuple[Sampler, Any]:
    return forever(sampler), state

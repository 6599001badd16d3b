"""NUTS that tunes itself: BlackJAX's kernel, the mass by Monte Carlo EM, and the step size by dual
averaging.

    E-step    twice as long as the one before
    M-step    fisher, or fisher_low_rank for a low-rank mass; the latest estimate counts
    step      follows the acceptance rate in every iteration, and starts again after each M-step

The first mass is that of the starts, M_I = diag sd(theta) / sd(grad L), which is the variance of a
Gaussian wherever the starts are.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.bridges.blackjax import from_blackjax
from momentem.checks import check_between, check_count
from momentem.em import EMState, e_steps, m_steps, monte_carlo_em, schedules
from momentem.masses import WindowMass
from momentem.pytrees import where
from momentem.samplers import identity_mass
from momentem.targets._minibatch import AnyTarget, StochasticTarget, check_target
from momentem.tuning import step_size
from momentem.tuning.step_size import DualAveraging
from momentem.types import EnsembleInfo, Learnt, Mass, PRNGKey, Sampler, Vectors

__all__ = ["nuts"]

WINDOW = 5  # draws in the window of a low-rank mass, per direction


class NutsState(NamedTuple):
    """What EM holds, and the step size on its way."""

    em: EMState
    averaging: DualAveraging


def nuts(
    target: AnyTarget, mass: Mass | None = None, acceptance: float = 0.8, max_depth: int = 10
) -> Sampler:
    """Return a NUTS sampler that tunes itself: `momentem.sample(target, momentem.nuts(target))`.

    The kernel is BlackJAX's, which the extra `blackjax` installs.

    Args:
        target: the target to sample. All data are used.
        mass: the initial mass, which sets the structure of what is learnt. Default: dense up to 200
            dimensions, and a diagonal corrected in 20 directions above.
        acceptance: rate that the step size is tuned to.
        max_depth: doublings of a trajectory, at most.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * jnp.sum(x**2), initial=jnp.zeros(3))
        >>> trace = mt.sample(target, mt.nuts(target), num_draws=200, num_warmup=200)
    """
    check_target(target)
    check_between(0.0, 1.0, acceptance=acceptance)
    check_count(1, max_depth=max_depth)
    if isinstance(target, StochasticTarget):
        raise TypeError(
            "target must use all data in every gradient for NUTS, got a minibatch target; leave "
            "out batch_size, or leave out the sampler: the default is made for minibatches"
        )
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            f"nuts needs BlackJAX, which cannot be imported: {error}; install it with "
            "pip install 'momentem[blackjax]'"
        ) from error
    kernel = from_blackjax(blackjax.nuts, target, max_num_doublings=max_depth)
    dim, dtype = len(target.initial), target.initial.dtype
    mass = identity_mass(dim, dtype) if mass is None else mass
    window = WINDOW * mass.rank if isinstance(mass, WindowMass) else 0
    learning = monte_carlo_em(
        kernel,
        Learnt(mass, jnp.asarray(dim**-0.25, dtype)),
        m_steps.fisher_low_rank(window) if window else m_steps.fisher(),
        e_steps.geometric(max(40, window), factor=2.0),
        schedules.latest(),
    )
    return Sampler(
        Partial(_init, learning),
        Partial(_step, learning, acceptance),
        Partial(_freeze, learning),
        Partial(_learnt),
    )


def _init(learning: Sampler, key: PRNGKey, positions: Vectors) -> NutsState:
    em: EMState = learning.init(key, positions)
    scores = em.chains.logdensity_grad
    variances = jnp.std(positions, axis=0) / jnp.std(scores, axis=0)
    is_usable = jnp.isfinite(variances) & (variances > 0)
    mass = em.learnt.mass.with_variances(jnp.where(is_usable, variances, 1.0))
    em = em._replace(learnt=em.learnt.replace(mass=mass))
    return NutsState(em, step_size.start(em.learnt.step_size))


def _step(
    learning: Sampler, acceptance: Any, key: PRNGKey, state: NutsState
) -> tuple[NutsState, EnsembleInfo]:
    em, info = learning.step(key, state.em)
    rate = jnp.mean(info.chains.stats["acceptance_rate"])
    averaging = step_size.add_rate(state.averaging, rate, acceptance)
    averaging = where(info.learning["is_m_step"], step_size.restart(averaging), averaging)
    learnt = em.learnt.replace(step_size=jnp.exp(averaging.log_step))
    return NutsState(em._replace(learnt=learnt), averaging), info


def _freeze(learning: Sampler, state: NutsState) -> tuple[Sampler, Any]:
    step = jnp.exp(state.averaging.log_average)
    return learning.freeze(state.em._replace(learnt=state.em.learnt.replace(step_size=step)))


def _learnt(state: NutsState) -> Learnt:
    return state.em.learnt

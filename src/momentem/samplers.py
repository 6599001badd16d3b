"""Ready-made samplers: common compositions of kernels, M-steps and E-steps."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from momentem import kernels, riemannian
from momentem.checks import check_positive
from momentem.em import e_steps, fixed, m_steps, monte_carlo_em
from momentem.em.e_steps import EStep
from momentem.em.m_steps.contract import MStep, target_of
from momentem.em.schedules import Schedule, latest
from momentem.masses import DenseMass, DiagonalMass, LowRankMass, MatrixMass, WindowMass
from momentem.pytrees import find_node
from momentem.riemannian.ensemble import as_sampler
from momentem.riemannian.fixed_points import FixedPoint
from momentem.riemannian.metrics import Metric
from momentem.targets._minibatch import AnyTarget, StochasticTarget
from momentem.targets.control_variates import Anchor, try_control
from momentem.targets.streams import is_stream
from momentem.tuning import tuned_by_minibatches, tuned_em
from momentem.tuning.minibatches import DENSE
from momentem.types import Kernel, Learnt, Mass, Sampler

__all__ = [
    "hmc",
    "hmc_em",
    "identity_mass",
    "nphmc",
    "rhmc",
    "self_tuned",
    "sg_nphmc",
    "sg_nphmc_em",
    "sghmc",
    "sghmc_em",
    "sgnht",
    "sgnht_em",
    "sgr_nphmc",
    "tuned_hmc_em",
    "tuned_sghmc_em",
]


def hmc(
    target: AnyTarget,
    step_size: float,
    num_steps: int,
    mass: Mass | None = None,
    jitter: float = 0.0,
) -> Sampler:
    """Return a sampler for Hamiltonian Monte Carlo with a fixed mass.

    Args:
        target: the target to sample.
        step_size: of the leapfrog steps. It is of order 1 if the mass whitens the posterior.
        num_steps: leapfrog steps per draw.
        mass: the mass. Default: the identity.
        jitter: of the number of steps, see `momentem.kernels.hmc`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> trace = mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=5), num_draws=200)
    """
    kernel = kernels.hmc(target, num_steps, jitter)
    return fixed(kernel, _learnt(_identity_diagonal(target, mass), step_size))


def hmc_em(
    target: AnyTarget,
    step_size: float,
    num_steps: int,
    mass: Mass | None = None,
    m_step: MStep | None = None,
    e_step: EStep | None = None,
    averaging: Schedule | None = None,
    jitter: float = 0.0,
) -> Sampler:
    """Return a sampler for HMC whose mass is learnt by Monte Carlo EM (the paper's Algorithm 1).

    The step size stays fixed while the mass changes. Give it in the units of the learnt mass: of
    order 1 for a mass that whitens the posterior. Start from a mass that is heavy enough for it,
    i.e. from an inverse mass below the posterior's smallest variance.

    Args:
        target: the target to sample.
        step_size: of the leapfrog steps.
        num_steps: leapfrog steps per draw.
        mass: the initial mass, which also sets the structure of what is learnt. Default: a dense
            identity.
        m_step: how the mass is learnt. Default: `m_steps.fisher()`. The paper's is
            `m_steps.momentum()`.
        e_step: how long E-steps are. Default: `e_steps.growing` from the larger of 100 and 2 D
            draws.
        averaging: how estimates are averaged. Default: `schedules.polynomial()`.
        jitter: of the number of steps, see `momentem.kernels.hmc`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> scales = jnp.array([0.1, 10.0])
        >>> target = mt.density(lambda x: -0.5 * jnp.sum((x / scales) ** 2), initial=jnp.zeros(2))
        >>> heavy = mt.dense_mass(0.01 * jnp.eye(2))
        >>> sampler = mt.hmc_em(target, step_size=0.5, num_steps=5, mass=heavy)
        >>> trace = mt.sample(target, sampler, num_draws=200)
    """
    kernel = kernels.hmc(target, num_steps, jitter)
    dim = len(target.initial)
    mass = (
        DenseMass.from_inverse_mass(jnp.eye(dim, dtype=target.initial.dtype))
        if mass is None
        else mass
    )
    return monte_carlo_em(
        kernel,
        _learnt(mass, step_size),
        m_steps.fisher() if m_step is None else m_step,
        e_steps.growing(max(100, 2 * dim)) if e_step is None else e_step,
        averaging,
    )


def tuned_hmc_em(target: AnyTarget, mass: Mass | None = None, acceptance: float = 0.8) -> Sampler:
    """Return a sampler for HMC-EM that tunes itself.

    It tunes mass, centre, step size and path length, and decides when warm-up may end. Its kernel
    is `kernels.rotating_hmc`. `momentem.tuning.warmup` describes what it tunes, and how.

    Args:
        target: the target to sample.
        mass: the initial mass, which sets the structure of what is learnt. Default: dense up to 200
            dimensions, and a diagonal corrected in 20 directions above.
        acceptance: acceptance rate that the step size is tuned to.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> scales = jnp.logspace(-3, 3, 7)
        >>> target = mt.density(lambda x: -0.5 * jnp.sum((x / scales) ** 2), initial=jnp.zeros(7))
        >>> trace = mt.sample(target, mt.tuned_hmc_em(target), num_draws=200)
    """
    dim, dtype = len(target.initial), target.initial.dtype
    mass = identity_mass(dim, dtype) if mass is None else mass
    learnt = Learnt(mass, jnp.asarray(dim**-0.25, dtype))
    return tuned_em(kernels.rotating_hmc(target), learnt, acceptance=acceptance)


def identity_mass(dim: int, dtype: Any, most_dense: int = 200) -> Mass:
    """Return the identity: dense up to `most_dense` dimensions, and a diagonal with room for 20
    directions above. NumPy builds it, because it has no program to compile."""
    if dim <= most_dense:
        identity = jnp.asarray(np.eye(dim, dtype=dtype))
        return DenseMass(identity, identity, identity)
    parts = np.ones(dim), np.eye(20, dim), np.ones(20)
    return LowRankMass(*(jnp.asarray(part.astype(dtype)) for part in parts))


def sghmc(
    target: StochasticTarget,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    mass: Mass | None = None,
    noise: Any = None,
) -> Sampler:
    """Return a sampler for stochastic-gradient HMC with a fixed mass.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw.
        friction: A, per unit of time.
        mass: the mass. Default: the identity.
        noise: variances of the gradient noise in the mass's frame. Default: no correction for the
            noise.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.sghmc(target, step_size=0.01, num_steps=10, friction=1.0)
    """
    learnt = _learnt(_identity_diagonal(target, mass), step_size, noise=noise)
    return fixed(kernels.sghmc(target, num_steps, friction), learnt)


def sgnht(
    target: StochasticTarget,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    mass: Mass | None = None,
) -> Sampler:
    """Return a sampler for the stochastic-gradient Nose-Hoover thermostat with a fixed mass.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw.
        friction: A, per unit of time.
        mass: the mass. Default: the identity.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.sgnht(target, step_size=0.01, num_steps=10, friction=1.0)
    """
    learnt = _learnt(_identity_diagonal(target, mass), step_size)
    return fixed(kernels.sgnht(target, num_steps, friction), learnt)


def sghmc_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """Return a sampler for SGHMC that tunes itself.

    The `noise` M-step learns mass, gradient noise and step size.

    Args:
        target: a minibatch target.
        num_steps: steps per draw.
        friction: A, per unit of time.
        **options: as for `self_tuned`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> data = jax.random.normal(jax.random.key(0), (1000,))
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, data, 0.0, batch_size=50)
        >>> trace = mt.sample(target, mt.sghmc_em(target), num_draws=200)
    """
    return self_tuned(kernels.sghmc(target, num_steps, friction), **options)


def tuned_sghmc_em(
    target: StochasticTarget,
    num_steps: int = 10,
    friction: float = 0.5,
    mass: Mass | None = None,
    forgetting: float = 0.01,
) -> Sampler:
    """Return a sampler for SGHMC-EM that needs nothing set, the default with minibatches.

    Its chains ascend to the posterior before anything is learnt there. It learns mass, gradient
    noise and step size, uses control variates where they are found to pay, and decides when warm-up
    may end. `momentem.tuning.minibatches` describes how.

    Args:
        target: a minibatch target.
        num_steps: steps per draw.
        friction: A, per unit of time.
        mass: the initial mass, which sets the structure of what is learnt. Default: dense up to 100
            dimensions, and a diagonal corrected in 20 directions above.
        forgetting: the weight of one minibatch in each chain's running estimate of the noise.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> data = jax.random.normal(jax.random.key(0), (1000,))
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, data, 0.0, batch_size=50)
        >>> trace = mt.sample(target, mt.tuned_sghmc_em(target), num_draws=200)
    """
    is_controllable = find_node(Anchor, target) is None and not is_stream(target)
    controlled = try_control(target) if is_controllable else target
    kernel = kernels.sghmc(controlled, num_steps, friction, forgetting)
    # the kinetic energy of a step is 1 / (1 - eps^2 / 4) times too large: by 1 %
    m_step = m_steps.noise(kernel, max_step_size=0.2)
    if mass is None:
        mass = identity_mass(len(target.initial), target.initial.dtype, most_dense=DENSE)
    return tuned_by_minibatches(self_tuned(kernel, mass, m_step), target)


def sgnht_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """Return a sampler for SGNHT that tunes itself.

    It learns as `sghmc_em` does, and its thermostat absorbs the noise that remains.

    Args:
        target: a minibatch target.
        num_steps: steps per draw.
        friction: A, per unit of time.
        **options: as for `self_tuned`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.sgnht_em(target, num_steps=10)
    """
    return self_tuned(kernels.sgnht(target, num_steps, friction), **options)


def nphmc(
    target: AnyTarget,
    step_size: float,
    num_steps: int,
    mass: Mass | None = None,
    thermostat_mass: float | None = None,
) -> Sampler:
    """Return a sampler for Nose-Poincare HMC on all data, the noise-free limit of SG-NPHMC.

    Args:
        target: the target to sample.
        step_size: of every step.
        num_steps: steps per draw.
        mass: the mass. Default: the identity.
        thermostat_mass: Q. Default: the dimension.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> sampler = mt.nphmc(target, step_size=0.3, num_steps=5)
    """
    learnt = _learnt(_identity_diagonal(target, mass), step_size, thermostat_mass=thermostat_mass)
    return fixed(kernels.nphmc(target, num_steps), learnt)


def sg_nphmc(
    target: StochasticTarget,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    mass: Mass | None = None,
    noise: Any = None,
    thermostat_mass: float | None = None,
) -> Sampler:
    """Return a sampler for stochastic-gradient Nose-Poincare HMC, anchored, with fixed masses.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw, with two gradients each.
        friction: A, per unit of time.
        mass: the mass. Default: the identity.
        noise: variances of the gradient noise in the mass's frame. Default: no known noise.
        thermostat_mass: Q. Default: the dimension.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.sg_nphmc(target, step_size=0.01, num_steps=10, friction=1.0)
    """
    others = {"noise": noise, "thermostat_mass": thermostat_mass}
    learnt = _learnt(_identity_diagonal(target, mass), step_size, **others)
    return fixed(kernels.sg_nphmc(target, num_steps, friction), learnt)


def sg_nphmc_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """Return a sampler for SG-NPHMC that tunes itself, as `sghmc_em` does.

    The paper's SG-NPHMC-EM learns both masses from momenta. For it, give
    `m_step=m_steps.with_thermostat(m_steps.momentum())` and a step size.

    Args:
        target: a minibatch target.
        num_steps: steps per draw, with two gradients each.
        friction: A, per unit of time.
        **options: as for `self_tuned`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.sg_nphmc_em(target, num_steps=10)
    """
    return self_tuned(kernels.sg_nphmc(target, num_steps, friction), **options)


def rhmc(
    target: AnyTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    fixed_point: FixedPoint | None = None,
) -> Sampler:
    """Return a sampler for Riemannian HMC, whose mass follows the position.

    Args:
        target: the target to sample.
        metric: G, from `momentem.metrics`.
        step_size: of every step. It is of order 1 if the metric whitens the posterior.
        num_steps: steps per draw.
        fixed_point: how implicit steps are solved, from `momentem.fixed_points`. Default:
            `until(1e-10)`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * jnp.sum(x**4), initial=jnp.ones(2))
        >>> sampler = mt.rhmc(target, mt.metrics.softabs(target, 10.0), 0.3, num_steps=5)
        >>> trace = mt.sample(target, sampler, num_draws=200)
    """
    kernel = riemannian.rhmc(target, metric, step_size, num_steps, fixed_point)
    return as_sampler(kernel, len(target.initial))


def sgr_nphmc(
    target: StochasticTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    noise: float = 0.0,
    thermostat_mass: float | None = None,
    fixed_point: FixedPoint | None = None,
) -> Sampler:
    """Return a sampler for stochastic-gradient Riemannian Nose-Poincare HMC, anchored.

    Args:
        target: a minibatch target.
        metric: G, from `momentem.metrics`.
        step_size: of every step.
        num_steps: steps per draw, with two gradients each.
        friction: A, per unit of time.
        noise: variance of the gradient noise in units of the metric: N/n for the Fisher metric of
            all data. With 0, the thermostat absorbs all of it.
        thermostat_mass: Q. Default: the dimension.
        fixed_point: how implicit steps are solved. Default: `iterations(6)`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu @ mu), (lambda mu, x: -0.5 * (x - mu[0]) ** 2)
        >>> data, start = jnp.arange(100.0), jnp.zeros(1)
        >>> target = mt.dataset(prior, likelihood, data, start, batch_size=10)
        >>> metric = mt.metrics.softabs(target, 10.0)
        >>> sampler = mt.sgr_nphmc(target, metric, step_size=0.05, num_steps=10, noise=10.0)
    """
    options = friction, noise, thermostat_mass, fixed_point
    kernel = riemannian.sgr_nphmc(target, metric, step_size, num_steps, *options)
    return as_sampler(kernel, len(target.initial))


def self_tuned(
    kernel: Kernel,
    mass: Mass | None = None,
    m_step: MStep | None = None,
    e_step: EStep | None = None,
    averaging: Schedule | None = None,
    step_size: float = 1e-8,
) -> Sampler:
    """Return a sampler that learns everything that a stochastic kernel leaves open.

    The steps of the first E-step are so small that the chains stay in place: it only measures. The
    first M-step sets mass, noise and step size, and later ones refine them as the chains move.

    Args:
        kernel: a stochastic kernel.
        mass: the initial mass, which sets the structure of what is learnt. Default: dense up to 100
            dimensions, diagonal above.
        m_step: how mass, noise and step size are learnt. Default: `m_steps.noise(kernel)`.
        e_step: how long E-steps are. Default: `e_steps.geometric` from 100 draws, or 2 D for a
            dense mass if that is more.
        averaging: how estimates are averaged. Default: `schedules.latest()`, which forgets what was
            learnt before the chains reached the bulk of the posterior.
        step_size: of the first E-step, or of all E-steps if the M-step does not set it.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(100.0), 0.0, batch_size=10)
        >>> sampler = mt.self_tuned(mt.kernels.ccadl(target, num_steps=5))
    """
    m_step = m_steps.noise(kernel) if m_step is None else m_step
    target = target_of(kernel)
    dim = len(target.initial)
    if mass is None and dim <= 100:
        mass = DenseMass.from_inverse_mass(jnp.diag(jnp.ones_like(target.initial)))
    start = _identity_diagonal(target, mass)
    anchor = find_node(Anchor, kernel)
    if anchor is not None and anchor.follows.value:
        m_step = m_steps.with_anchor(m_step, kernel)
        kernel = kernels.following(kernel)
    return monte_carlo_em(
        kernel,
        _learnt(start, step_size),
        m_step,
        e_steps.geometric(_first_size(start)) if e_step is None else e_step,
        latest() if averaging is None else averaging,
    )


def _first_size(mass: Any) -> int:
    """Return the draws that a first estimate needs: two per number in a row of the
    mass, or what fills the window of a low-rank one."""
    if isinstance(mass, MatrixMass):
        return max(100, 2 * mass.degrees)
    return max(100, 5 * mass.rank if isinstance(mass, WindowMass) else 0)


def _identity_diagonal(target: AnyTarget, mass: Mass | None) -> Any:
    """Return the mass, or a diagonal identity if it is None."""
    return DiagonalMass(jnp.ones_like(target.initial)) if mass is None else mass


def _learnt(mass: Mass, step_size: float, **others: Any) -> Learnt:
    check_positive(step_size=step_size)
    return Learnt(mass, jnp.asarray(step_size), **others)

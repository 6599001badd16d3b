"""Ready-made samplers: the usual compositions of kernels, M-steps and E-steps, by name."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from momentem import kernels, riemannian
from momentem.checks import check_positive
from momentem.em import e_steps, m_steps
from momentem.em._em import fixed, monte_carlo_em, unlearnt
from momentem.em.e_steps import EStep
from momentem.em.m_steps.all import MStep
from momentem.em.schedules import Schedule, latest
from momentem.masses.all import DenseMass, DiagonalMass, LowRankMass
from momentem.pytrees import found
from momentem.riemannian.fixed_points import FixedPoint
from momentem.riemannian.metrics import Metric
from momentem.targets._minibatch import AnyTarget, StochasticTarget
from momentem.targets.control_variates import Anchor
from momentem.tuning.warmup import PATH, tuned
from momentem.types import Kernel, Learnt, Mass, Sampler

__all__ = [
    "hmc",
    "hmc_em",
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
]


def hmc(
    target: AnyTarget,
    step_size: float,
    num_steps: int,
    mass: Mass | None = None,
    jitter: float = 0.0,
) -> Sampler:
    """Hamiltonian Monte Carlo with a fixed mass.

    Args:
        target: what is sampled.
        step_size: of the leapfrog steps; of order 1 where the mass whitens the posterior.
        num_steps: leapfrog steps per draw.
        mass: None is the identity.
        jitter: of the number of steps, see `momentem.kernels.hmc`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> trace = mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=5), num_draws=200)
    """
    kernel = kernels.hmc(target, num_steps, jitter)
    mass = DiagonalMass(jnp.ones_like(target.initial)) if mass is None else mass
    return fixed(kernel, _learnt(mass, step_size))


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
    """Hamiltonian Monte Carlo whose mass is learnt by Monte Carlo EM (the paper's Algorithm 1).

    The step size stays as given while the mass changes, so give it in the units of the mass to
    come: of order 1 for a mass that whitens the posterior. Start from a mass that is heavy enough
    for it, i.e. from an inverse mass below the posterior's smallest variance.

    Args:
        target: what is sampled.
        step_size: of the leapfrog steps.
        num_steps: leapfrog steps per draw.
        mass: where learning starts, and the structure of what is learnt; None is a dense identity.
        m_step: how the mass is learnt; None is `m_steps.fisher()`. The paper's is
            `m_steps.momentum()`.
        e_step: how long E-steps are; None is `e_steps.growing` from the larger of 100 and 2 D
            draws.
        averaging: how estimates are averaged; None is `schedules.polynomial()`.
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
    """HMC-EM that tunes itself: mass, centre, step size, path length, and when warm-up may end.

    It moves by `kernels.rotating_hmc`; what it tunes and how: `momentem.tuning.warmup`.

    Args:
        target: what is sampled.
        mass: the structure of what is learnt; None is dense up to 200 dimensions, and a diagonal
            corrected in 20 directions above.
        acceptance: rate that the step size is tuned to.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> scales = jnp.logspace(-3, 3, 7)
        >>> target = mt.density(lambda x: -0.5 * jnp.sum((x / scales) ** 2), initial=jnp.zeros(7))
        >>> trace = mt.sample(target, mt.tuned_hmc_em(target), num_draws=200)
    """
    dim, dtype = len(target.initial), target.initial.dtype
    mass = _identity(dim, dtype) if mass is None else mass
    learnt = Learnt(mass, jnp.asarray(dim**-0.25, dtype), centre=target.initial, path=PATH)
    is_low_rank = isinstance(mass, LowRankMass)
    window = 5 * len(mass.eigenvalues) if is_low_rank else 0
    m_step = m_steps.fisher_low_rank(window) if is_low_rank else m_steps.fisher()
    em = monte_carlo_em(
        kernels.rotating_hmc(target),
        learnt,
        m_steps.with_centre(m_step),
        e_steps.geometric(max(10, window), factor=2.0),
        latest(),
    )
    return tuned(em, acceptance)


def _identity(dim: int, dtype: Any) -> Mass:
    """Dense up to 200 dimensions; above, a diagonal with room for 20 directions. Made by NumPy,
    which has no program to compile."""
    if dim <= 200:
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
    """Stochastic-gradient HMC with a fixed mass.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw.
        friction: A, per unit of time.
        mass: None is the identity.
        noise: variances of the gradient noise in the mass's frame; None is no correction.
    """
    return fixed(
        kernels.sghmc(target, num_steps, friction), _stochastic(target, step_size, mass, noise)
    )


def sgnht(
    target: StochasticTarget,
    step_size: float,
    num_steps: int,
    friction: float = 1.0,
    mass: Mass | None = None,
) -> Sampler:
    """Stochastic-gradient Nose-Hoover thermostat with a fixed mass.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw.
        friction: A, per unit of time.
        mass: None is the identity.
    """
    return fixed(
        kernels.sgnht(target, num_steps, friction), _stochastic(target, step_size, mass, None)
    )


def sghmc_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """SGHMC that tunes itself: mass, gradient noise and step size are learnt by the `noise` M-step.

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
    return self_tuned(kernels.sghmc(target, num_steps, friction), target, friction, **options)


def sgnht_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """SGNHT that tunes itself: as `sghmc_em`, with a thermostat that absorbs what noise is left.

    Args:
        target: a minibatch target.
        num_steps: steps per draw.
        friction: A, per unit of time.
        **options: as for `self_tuned`.
    """
    return self_tuned(kernels.sgnht(target, num_steps, friction), target, friction, **options)


def nphmc(
    target: AnyTarget,
    step_size: float,
    num_steps: int,
    mass: Mass | None = None,
    thermostat_mass: float | None = None,
) -> Sampler:
    """Nose-Poincare HMC on all data: the noise-free limit of SG-NPHMC.

    Args:
        target: what is sampled.
        step_size: of every step.
        num_steps: steps per draw.
        mass: None is the identity.
        thermostat_mass: Q; None is the dimension.
    """
    learnt = _stochastic(target, step_size, mass, None)._replace(thermostat_mass=thermostat_mass)
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
    """Stochastic-gradient Nose-Poincare HMC with fixed masses, anchored.

    Args:
        target: a minibatch target.
        step_size: of every step.
        num_steps: steps per draw, of two gradients each.
        friction: A, per unit of time.
        mass: None is the identity.
        noise: variances of the gradient noise in the mass's frame; None: none known.
        thermostat_mass: Q; None is the dimension.
    """
    learnt = _stochastic(target, step_size, mass, noise)._replace(thermostat_mass=thermostat_mass)
    return fixed(kernels.sg_nphmc(target, num_steps, friction), learnt)


def sg_nphmc_em(
    target: StochasticTarget, num_steps: int = 10, friction: float = 0.5, **options: Any
) -> Sampler:
    """SG-NPHMC that tunes itself, as `sghmc_em`.

    The paper's SG-NPHMC-EM learns both masses from momenta: give it
    `m_step=m_steps.with_thermostat(m_steps.momentum())` and a step size.

    Args:
        target: a minibatch target.
        num_steps: steps per draw, of two gradients each.
        friction: A, per unit of time.
        **options: as for `self_tuned`.
    """
    return self_tuned(kernels.sg_nphmc(target, num_steps, friction), target, friction, **options)


def rhmc(
    target: AnyTarget,
    metric: Metric,
    step_size: float,
    num_steps: int,
    fixed_point: FixedPoint | None = None,
) -> Sampler:
    """Riemannian HMC: the mass follows the position.

    Args:
        target: what is sampled.
        metric: G, from `momentem.metrics`.
        step_size: of every step; where the metric whitens, of order 1.
        num_steps: steps per draw.
        fixed_point: how implicit steps are solved, from `momentem.fixed_points`; None is
            `until(1e-10)`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * jnp.sum(x**4), initial=jnp.ones(2))
        >>> sampler = mt.rhmc(target, mt.metrics.softabs(target, 10.0), 0.3, num_steps=5)
        >>> trace = mt.sample(target, sampler, num_draws=200)
    """
    kernel = riemannian.rhmc(target, metric, step_size, num_steps, fixed_point)
    return unlearnt(kernel, len(target.initial))


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
    """Stochastic-gradient Riemannian Nose-Poincare HMC, anchored.

    Args:
        target: a minibatch target.
        metric: G, from `momentem.metrics`.
        step_size: of every step.
        num_steps: steps per draw, of two gradients each.
        friction: A, per unit of time.
        noise: variance of the gradient noise in units of the metric: N/n for the Fisher metric of
            all data; 0 leaves all of it to the thermostat.
        thermostat_mass: Q; None is the dimension.
        fixed_point: how implicit steps are solved; None is `iterations(6)`.
    """
    options = friction, noise, thermostat_mass, fixed_point
    kernel = riemannian.sgr_nphmc(target, metric, step_size, num_steps, *options)
    return unlearnt(kernel, len(target.initial))


def self_tuned(
    kernel: Kernel,
    target: StochasticTarget,
    friction: float,
    mass: Mass | None = None,
    m_step: MStep | None = None,
    e_step: EStep | None = None,
    averaging: Schedule | None = None,
    step_size: float = 1e-8,
) -> Sampler:
    """A stochastic kernel with everything it leaves open learnt.

    The first E-step takes steps so small that the chains stay where they are: it measures. From the
    first M-step on, mass, noise and step size are set, and refined as the chains move.

    Args:
        kernel: a stochastic kernel of `target`.
        target: a minibatch target.
        friction: A of the kernel.
        mass: the structure of what is learnt; None is dense up to 100 dimensions, diagonal above.
        m_step: None is `m_steps.noise(target, friction)`.
        e_step: None is `e_steps.geometric` from the larger of 100 and 2 D draws.
        averaging: None is `schedules.latest()`, which forgets the way in.
        step_size: of the first E-step; with an M-step that does not set the step size, of all.
    """
    dim = len(target.initial)
    identity = DiagonalMass(jnp.ones_like(target.initial))
    if mass is None:
        mass = (
            DenseMass.from_inverse_mass(jnp.diag(identity.inverse_mass)) if dim <= 100 else identity
        )
    learnt = _learnt(mass, step_size)
    m_step = m_steps.noise(target, friction) if m_step is None else m_step
    anchor = found(Anchor, target)
    if anchor is not None and anchor.follows.value:
        kernel, learnt = kernels.following(kernel), learnt._replace(anchor=anchor)
        m_step = m_steps.with_anchor(m_step, target)
    return monte_carlo_em(
        kernel,
        learnt,
        m_step,
        e_steps.geometric(max(100, 2 * dim)) if e_step is None else e_step,
        latest() if averaging is None else averaging,
    )


def _stochastic(target: AnyTarget, step_size: float, mass: Mass | None, noise: Any) -> Learnt:
    mass = DiagonalMass(jnp.ones_like(target.initial)) if mass is None else mass
    return _learnt(mass, step_size)._replace(noise=noise)


def _learnt(mass: Mass, step_size: float) -> Learnt:
    check_positive(step_size=step_size)
    return Learnt(mass, jnp.asarray(step_size))

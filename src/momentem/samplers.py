"""Ready-made samplers: the usual compositions of kernels, M-steps and E-steps, by name."""

import jax.numpy as jnp

from momentem import kernels
from momentem.checks import check_positive
from momentem.em import e_steps, m_steps
from momentem.em.e_steps import EStep
from momentem.em.m_steps import MStep
from momentem.em.schedules import Schedule
from momentem.em.wrapper import fixed, monte_carlo_em
from momentem.masses import DenseMass, DiagonalMass
from momentem.targets.density import Target
from momentem.types import Learnt, Mass, Sampler

__all__ = ["hmc", "hmc_em"]


def hmc(
    target: Target, step_size: float, num_steps: int, mass: Mass | None = None, jitter: float = 0.0
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
    target: Target,
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
    for it, i.e. from a precision below the posterior's smallest variance.

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
        DenseMass.from_precision(jnp.eye(dim, dtype=target.initial.dtype)) if mass is None else mass
    )
    return monte_carlo_em(
        kernel,
        _learnt(mass, step_size),
        m_steps.fisher() if m_step is None else m_step,
        e_steps.growing(max(100, 2 * dim)) if e_step is None else e_step,
        averaging,
    )


def _learnt(mass: Mass, step_size: float) -> Learnt:
    check_positive(step_size=step_size)
    return Learnt(mass, jnp.asarray(step_size))

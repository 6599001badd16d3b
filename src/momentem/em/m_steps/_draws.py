"""The mass from the draws: M_I_est = Cov(theta), as in Stan."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from momentem.em.m_steps.contract import MStep, empty_second_moment, learn_mass
from momentem.moments import Moments, add_samples
from momentem.types import Info, Learnt

__all__ = ["draws", "empty_moments", "shrunk_covariance"]


def draws() -> MStep:
    """Learn the mass from the covariance of the draws.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.draws()
    """
    return learn_mass(empty_moments, _update, _estimate)


def empty_moments(mass: Any, size: Any) -> Moments:
    """Return the moments of no vectors, in the mass's structure."""
    matrix = empty_second_moment(mass, size).total
    return Moments.fresh(jnp.zeros_like(mass.inverse_mass_diagonal()), matrix)


def shrunk_covariance(moments: Moments, mass: Any, power: int) -> Array:
    """Return the unbiased covariance, shrunk as the mass does it."""
    n = moments.num_samples.astype(moments.covariance.dtype)
    return mass.shrink(n / (n - 1) * moments.covariance, moments.num_samples, power)


def _update(statistic: Moments, info: Info, learnt: Learnt) -> Moments:
    return add_samples(statistic, info.position, learnt.mass.outer)


def _estimate(statistic: Moments, learnt: Learnt) -> Any:
    return learnt.mass.from_inverse_mass(shrunk_covariance(statistic, learnt.mass, power=2))

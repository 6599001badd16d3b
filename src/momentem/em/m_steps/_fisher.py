"""The mass from draws and scores together: M_I_est = Cov(theta) # Cov(g)^-1.

A # B is the geometric mean of A and B. The estimate minimises the Fisher divergence between the
posterior and a Gaussian with that covariance, and on a Gaussian it is right wherever the draws are.

Draws and scores are gathered in the frame of the mass that moved them, in which their covariances
are near the identity: so scales that differ by 1e8 are learnt in single precision too, and what is
shrunk is shrunk towards that mass.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from momentem.em.m_steps._draws import empty_moments, shrunk_covariance
from momentem.em.m_steps.contract import MStep, learn_mass
from momentem.moments import Moments, add_samples
from momentem.types import Count, Info, Learnt, Vector

__all__ = ["fisher"]


class DrawsAndScores(NamedTuple):
    """Moments of the draws, from an origin, and of their scores, in the mass's frame."""

    num_samples: Count
    origin: Vector
    draws: Moments
    scores: Moments


def fisher() -> MStep:
    """Learn the mass from draws and scores together.

    Their noise cancels, so that it is shrunk by (D/S)^4 where `draws` and `score` need (D/S)^2.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.fisher()
    """
    return learn_mass(_init, _update, _estimate)


def _init(mass: Any, size: Any) -> DrawsAndScores:
    empty = empty_moments(mass, size)
    return DrawsAndScores(empty.num_samples, empty.mean, empty, empty)


def _update(statistic: DrawsAndScores, info: Info, learnt: Learnt) -> DrawsAndScores:
    mass = learnt.mass
    origin = jnp.where(statistic.num_samples == 0, info.position[0], statistic.origin)
    whitened = (
        jax.vmap(mass.unfold)(info.position - origin[None]),
        jax.vmap(mass.whiten)(info.gradient),
    )
    # one number for both: EM empties a statistic by its outermost num_samples
    draws, scores = (
        add_samples(moments._replace(num_samples=statistic.num_samples), new, mass.outer)
        for moments, new in zip((statistic.draws, statistic.scores), whitened, strict=True)
    )
    return DrawsAndScores(draws.num_samples, origin, draws, scores)


def _estimate(statistic: DrawsAndScores, learnt: Learnt) -> Any:
    mass = learnt.mass
    covariance = shrunk_covariance(statistic.draws, mass, power=4)
    information = shrunk_covariance(statistic.scores, mass, power=4)
    return mass.from_whitened(mass.geometric_mean_inverse(covariance, information))

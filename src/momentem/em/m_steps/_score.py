"""The mass from the scores: M_I_est = (mean g g')^-1, as E[g g'] = -E[hess L] at stationarity."""

from typing import Any

from momentem.em.m_steps.contract import (
    MStep,
    SecondMoment,
    add_outer,
    empty_second_moment,
    learn_mass,
)
from momentem.types import Info, Learnt

__all__ = ["score"]


def score() -> MStep:
    """Learn the mass from the second moment of the scores: the mean curvature of the log density.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.score()
    """
    return learn_mass(empty_second_moment, _update, _estimate)


def _update(statistic: SecondMoment, info: Info, learnt: Learnt) -> SecondMoment:
    return add_outer(statistic, info.gradient, learnt.mass)


def _estimate(statistic: SecondMoment, learnt: Learnt) -> Any:
    mass = learnt.mass
    information = mass.shrink(statistic.mean(), statistic.num_samples, power=2)
    return mass.from_inverse_mass(mass.inverse(information))

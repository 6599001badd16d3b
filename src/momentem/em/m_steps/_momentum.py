"""The mass from the momenta: the paper's M-step, and the same with its bias removed.

    momentum_printed   M_I_est = (mean p p')^-1
    momentum           M_I_est = ((S - D - 1) / S) (mean p p')^-1

E[(mean p p')^-1] = S / (S - D - 1) M_I, so that the printed estimate drifts upwards. At
stationarity p ~ N(0, M) for *every* M: these M-steps learn from transients alone
(docs/methods/mcem.md).
"""

from typing import Any

from momentem.checks import is_traced
from momentem.em.m_steps.contract import (
    MStep,
    SecondMoment,
    add_outer,
    check_matrix_mass,
    empty_second_moment,
    learn_mass,
)
from momentem.types import Info, Learnt

__all__ = ["momentum", "momentum_printed"]


def momentum() -> MStep:
    """Learn the mass from the momenta, without the bias of the paper's M-step.

    Every mass is a fixed point of it at stationarity, so that it learns from transients alone.

    Examples:
        >>> import momentem as mt
        >>> sampler = mt.monte_carlo_em(
        ...     mt.kernels.hmc(mt.density(lambda x: -0.5 * x**2, initial=0.0), num_steps=5),
        ...     mt.Learnt(mt.diagonal_mass([1.0]), 0.5),
        ...     m_step=mt.m_steps.momentum(),
        ...     e_step=mt.e_steps.constant(100),
        ... )
    """
    return learn_mass(_init, _update, _estimate)


def momentum_printed() -> MStep:
    """Learn the mass from the momenta as the paper prints it: M_I drifts upwards.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.momentum_printed()
    """
    return learn_mass(_init, _update, _estimate_printed)


def _init(mass: Any, size: Any) -> SecondMoment:
    check_matrix_mass(mass)
    if not is_traced(size) and size < mass.degrees + 2:
        raise ValueError(
            "the momentum M-step inverts the momenta's second moment, so the E-step needs at least "
            f"{mass.degrees} + 2 draws for a {type(mass).__name__} of this size, got {size}; raise "
            "the size of the E-step"
        )
    return empty_second_moment(mass, size)


def _update(statistic: SecondMoment, info: Info, learnt: Learnt) -> SecondMoment:
    return add_outer(statistic, info.momentum, learnt.mass)


def _estimate_printed(statistic: SecondMoment, learnt: Learnt) -> Any:
    return learnt.mass.from_inverse_mass(learnt.mass.inverse(statistic.mean()))


def _estimate(statistic: SecondMoment, learnt: Learnt) -> Any:
    mass, n = learnt.mass, statistic.num_samples.astype(statistic.total.dtype)
    return mass.from_inverse_mass((n - mass.degrees - 1) / n * mass.inverse(statistic.mean()))

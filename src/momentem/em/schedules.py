"""Schedules: the weight of each new estimate, kappa_k in M_I <- (1 - kappa_k) M_I + kappa_k M_I_est
for k = 1, 2, …

Robbins and Monro's conditions, which the paper's Proposition 1 requires, are

    sum_k kappa_k = inf,    sum_k kappa_k^2 < inf

For kappa_k ~ k^-a they hold exactly when 1/2 < a <= 1.
"""

from collections.abc import Callable

import numpy as np
from jax.tree_util import Partial

from momentem.checks import check_callable, is_traced
from momentem.pytrees import as_partial
from momentem.types import Scalar

__all__ = ["Schedule", "latest", "polynomial", "schedule"]

Schedule = Callable[..., Scalar]  # k -> kappa_k, a Partial


def _power(exponent: Scalar | float, offset: Scalar | float, k: Scalar | float) -> Scalar | float:
    return (k + offset) ** -exponent


def polynomial(exponent: float = 0.7, offset: float = 10.0) -> Schedule:
    """Return the schedule kappa_k = (k + offset)^-exponent.

    With offset 0, the first estimate, which is the worst, replaces the initial mass. The default
    keeps 4/5 of the initial mass.

    Args:
        exponent: in (1/2, 1].
        offset: at least 0.

    Examples:
        >>> float(polynomial(exponent=1.0, offset=10.0)(10.0))
        0.05
    """
    if not is_traced((exponent, offset)):
        if not 0.5 < exponent <= 1:
            raise ValueError(
                "exponent must lie in (1/2, 1] so that sum kappa = inf and sum kappa^2 < inf, "
                f"got {exponent}"
            )
        if not offset >= 0:
            raise ValueError(f"offset must be >= 0, got {offset}")
    return Partial(_power, exponent, offset)


def _one(k: Scalar | float) -> float:
    del k
    return 1.0


def latest() -> Schedule:
    """Return the schedule kappa_k = 1, which uses the last estimate alone.

    Use it only with E-steps that grow without bound. It violates Robbins and Monro's conditions.
    They are not needed if S grows, because the estimates themselves converge (Fort and Moulines
    2003). What was learnt before the chains reached the bulk of the posterior is forgotten.

    Examples:
        >>> latest()(7.0)
        1.0
    """
    return Partial(_one)


def schedule(kappa: Callable[..., Scalar]) -> Schedule:
    """Return a schedule from your own function. Refuse one that violates Robbins and Monro's
    conditions.

    The decay exponent between k = 10^8 and 10^9 is checked. It decides both sums for every schedule
    that varies regularly. Logarithmic factors change it by less than 0.06.

    Args:
        kappa: maps k = 1, 2, … (a scalar, possibly traced) to kappa_k in (0, 1].

    Examples:
        >>> float(schedule(lambda k: 2.0 / (k + 3.0))(1.0))
        0.5
    """
    check_callable(kappa=kappa)
    early = np.array([float(kappa(float(k))) for k in (1, 2, 3, 10)])
    if not ((early > 0) & (early <= 1)).all():
        raise ValueError(f"kappa must lie in (0, 1], got {early} at k = 1, 2, 3, 10")
    late, later = float(kappa(1e8)), float(kappa(1e9))
    exponent = np.log10(late / later) if later > 0 else np.inf
    if not exponent <= 1.06:
        raise ValueError(
            f"kappa must decay no faster than 1/k, got k^-{exponent:.2f}, for which sum kappa is "
            "finite; let it decay more slowly"
        )
    if not exponent > 0.5:
        raise ValueError(
            f"kappa must decay faster than k^-1/2, got k^-{exponent:.2f}, for which sum kappa^2 is "
            "infinite; let it decay faster"
        )
    return as_partial(kappa)

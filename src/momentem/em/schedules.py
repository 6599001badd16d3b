"""How fast estimates are averaged: kappa_k in M_I <- (1 - kappa_k) M_I + kappa_k M_I_est, for k =
1, 2, …

Robbins and Monro's conditions, which the paper's Proposition 1 asks for, are

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
    """kappa_k = (k + offset)^-exponent.

    With offset 0 and exponent 1 the first estimate, the worst, replaces the initial mass
    altogether; the default keeps 4/5 of it.

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
    """kappa_k = 1: the last estimate alone. For E-steps that grow without bound, and only those.

    It breaks Robbins and Monro's conditions, and needs them no more where S grows: the estimates
    themselves converge (Fort and Moulines 2003), and what was learnt on the way in is forgotten.
    """
    return Partial(_one)


def schedule(kappa: Callable[..., Scalar]) -> Schedule:
    """A schedule from a function of your own, refused if it breaks Robbins and Monro's conditions.

    The check is of the decay exponent between k = 10^8 and 10^9, which decides both sums for every
    schedule that varies regularly; logarithmic factors count within 0.06.

    Args:
        kappa: maps k = 1, 2, … (a scalar, maybe traced) to kappa_k in (0, 1].

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
            f"kappa decays like k^-{exponent:.2f}: sum kappa is finite; decay no faster than 1/k"
        )
    if not exponent > 0.5:
        raise ValueError(
            f"kappa decays like k^-{exponent:.2f}: sum kappa^2 is infinite; decay faster than "
            "k^-1/2"
        )
    return as_partial(kappa)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentem.em.schedules import polynomial, schedule


@given(st.floats(0.51, 1.0), st.floats(0, 100))
def test_polynomials_pass_the_general_check(exponent, offset):
    kappa = polynomial(exponent, offset)
    assert 0 < float(kappa(1.0)) <= 1
    schedule(kappa)


@pytest.mark.parametrize(
    ("kappa", "message"),
    [
        (lambda k: 0.1, "sum kappa\\^2 is infinite"),
        (lambda k: k**-0.5, "sum kappa\\^2 is infinite"),
        (lambda k: k**-1.5, "sum kappa is finite"),
        (lambda k: float(np.exp(-k)), "sum kappa is finite"),
        (lambda k: 2.0 / k, "must lie in \\(0, 1\\]"),
    ],
)
def test_schedules_that_break_the_conditions_are_refused(kappa, message):
    with pytest.raises(ValueError, match=message):
        schedule(kappa)


@pytest.mark.parametrize("exponent", [0.5, 0.0, 1.01, -1.0])
def test_exponents_outside_the_conditions_are_refused(exponent):
    with pytest.raises(ValueError, match="exponent must lie in"):
        polynomial(exponent)

"""Numerical faults and exceptions by sampler: told, and nothing lost."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import faults
import injections
import momentem as mt
import raised

QUICK = ("hmc",)  # the others compile for long
ALL = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.validate)
    for name in faults.SAMPLERS
]


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("sampler", ALL)
def test_no_fault_is_silent_and_nothing_is_told_without_one(sampler):
    assert not [row for row in faults.trials(sampler) if row[2] in ("SILENT", "SPURIOUS")]


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("sampler", [*ALL, pytest.param("topics", marks=pytest.mark.validate)])
def test_an_exception_loses_nothing(sampler):
    with raised.small_chunks():
        assert not [row for row in raised.trials(sampler) if row[1]]


def test_gradients_on_the_way_in_that_are_not_finite_are_counted():
    target = injections.target("gradient", 1, (38.0, 39.9))
    given = {"x": np.array([[0.0, 0.0], [40.0, 0.0]])}
    told = injections.answer(
        lambda: mt.sample(target, None, 20, 50, 2, positions=given, progress=False)
    )
    assert re.search(r"way in that were not finite, by chain: \[0, [1-9]\d*\]", told)


def test_gradients_on_the_ascent_that_are_not_finite_are_counted():
    from momentem.targets._ascent import ascend

    starts = jnp.array([[2.0, 0.0], [3.0, 1.0]])
    bad, good = (injections.target("gradient", code, (-0.01, 0.01), 10) for code in (1, 0))
    assert (ascend(bad, starts, 0.01).num_not_finite > 0).all()
    assert not ascend(good, starts, 0.01).num_not_finite.any()


def test_blackjax_does_not_stay_where_the_density_is_infinite():
    target = injections.target("value", 2, (0.5, 1e9))
    told = injections.answer(
        lambda: mt.sample(target, mt.nuts(target), 100, 100, 2, spread=0.1, progress=False)
    )
    assert "draws diverged" in told
    assert "not finite" not in told

"""R-hat and ESS of the draws so far, against ArviZ's of the same draws."""

import arviz_stats
import numpy as np
import pytest
from arviz_base import dict_to_dataset

from momentem.run.so_far import SoFar


def chains(correlation, num_draws=4000, shift=0.0):
    """AR(1) of four chains, (draw, chain); the last is shifted."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_draws, 4))
    for t in range(1, num_draws):
        x[t] = correlation * x[t - 1] + (1 - correlation**2) ** 0.5 * x[t]
    return x + shift * np.array([0.0, 0.0, 0.0, 1.0])


def look(x, pieces):
    so_far = SoFar()
    for rows in np.array_split(x, pieces):
        so_far.extend({"x": rows})
    return so_far


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_estimates_are_near_arviz_s(correlation):
    """ESS from 128 to 256 batches in all has a relative error of .09 to .12: 5 of them."""
    x = chains(correlation)
    rhat, ess = look(x, 97).estimates()
    there = dict_to_dataset({"x": x.T})
    assert rhat == pytest.approx(float(arviz_stats.rhat(there)["x"]), abs=0.01)
    assert ess == pytest.approx(float(arviz_stats.ess(there)["x"]), rel=0.6)


def test_chains_apart():
    rhat, ess = look(chains(0.5, shift=3.0), 50).estimates()
    assert rhat > 1.5
    assert ess < 500  # of 16,000: no more than there are batches, roughly


def test_the_pieces_do_not_matter():
    x = chains(0.5, 1234)
    one, other = look(x, 1), look(x, 300)
    assert one.estimates()[0] == pytest.approx(other.estimates()[0], abs=0.02)
    assert one.estimates()[1] == pytest.approx(other.estimates()[1], rel=0.5)


def test_it_is_silent_while_it_is_too_early():
    assert SoFar().estimates() is None
    assert look(chains(0.0, 5), 5).estimates() is None
    assert look(np.ones((0, 4, 2)), 1).estimates() is None  # nothing was kept of a chunk
    assert look(np.ones((50, 4, 0)), 1).estimates() is None
    assert look(np.ones((500, 4)), 5).estimates() is None


def test_draws_that_are_not_finite_are_no_trouble_here():
    x = chains(0.0, 500)
    x[100:] = np.inf
    assert look(x, 5).estimates() is None


def test_memory_is_bounded():
    so_far = look(chains(0.0, 20000), 100)
    assert len(so_far._batches) < 64
    assert len(so_far._rest) < so_far._length

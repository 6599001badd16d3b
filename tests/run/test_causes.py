"""Each sign is seen where it is, and nowhere else."""

import numpy as np
import pytest

from momentem.run import causes

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(4, 1000))
CAUCHY = RNG.standard_cauchy(size=(4, 1000))


def heights(draws):
    return -0.5 * draws**2


def far_out(draws, nu):
    """Reach and tail index of draws whose scores are those of a Student t."""
    return np.abs(draws), draws**2 * (nu + 1) / (nu + draws**2) - 1


def test_nothing_is_wrong_with_normal_draws():
    assert not causes.places("x", NORMAL, heights(NORMAL))
    assert not causes.drift("x", NORMAL)
    assert not causes.coarse(heights(NORMAL).astype(np.float32))
    assert not causes.heavy({"x": NORMAL}, np.abs(NORMAL), NORMAL**2 - 1)
    assert not causes.no_variance({"x": NORMAL, "exp x": np.exp(NORMAL)})
    assert not causes.slow_energy(RNG.gamma(3, size=(4, 1000)))
    assert not causes.stuck(np.diff(NORMAL, axis=1) != 0)


def test_chains_in_separate_places_are_listed():
    apart = NORMAL + np.array([[0.0], [9.0], [0.0], [9.0]])
    said = causes.places("x", apart, heights(NORMAL))
    assert "2 separate places of x" in said
    assert "chains 0, 2 near" in said
    assert "chains 1, 3 near" in said


def test_a_chain_that_changes_places_is_named():
    moving = NORMAL.copy()
    moving[2, :300] += 9
    said = causes.moved("x", moving, heights(NORMAL))
    assert said.startswith("chains 2 went from one place of x to another (near -0.01")
    assert not causes.moved("x", NORMAL, heights(NORMAL))


def test_slow_chains_have_no_places():
    """Autoregressions with a time of 100: one in a hundred may be taken for modes."""
    share, taken = np.exp(-1 / 100), 0
    for _ in range(20):
        slow, noise = np.zeros((4, 1000)), RNG.normal(size=(4, 1000)) * np.sqrt(1 - share**2)
        for t in range(1, 1000):
            slow[:, t] = share * slow[:, t - 1] + noise[:, t]
        taken += bool(causes.moved("x", slow, None))
    assert taken <= 2  # more in one of 1,000 such tests


def test_draws_that_spread_on_and_on_are_seen():
    steps = np.cumsum(np.ones((4, 1000)), axis=1) ** 2 * np.sign(NORMAL[:, :1])
    assert "improper" in causes.drift("x", steps)


def test_a_level_density_names_the_parameter():
    assert "x went to 1e+09" in causes.flat("x", np.full((2, 10), 1e9))


def test_rounding_is_seen_in_single_precision_alone():
    high = 1e7 + heights(NORMAL)
    assert "float32" in causes.coarse(high.astype(np.float32))
    assert not causes.coarse(high)


@pytest.mark.parametrize(("nu", "is_heavy"), [(1, True), (3, False), (10, False)])
def test_a_heavy_tail_is_seen_by_its_scores(nu, is_heavy):
    """Even if draws are not as far out as they should be."""
    draws = np.clip(RNG.standard_t(nu, size=(4, 1000)), -30, 30)
    said = causes.heavy({"y": NORMAL, "x": draws}, *far_out(draws, nu))
    assert bool(said) == is_heavy
    assert not is_heavy or "tail of x" in said


@pytest.mark.parametrize(("nu", "is_heavy"), [(1, True), (1.3, True), (4, False)])
def test_a_tail_without_a_variance_is_seen_by_its_draws(nu, is_heavy):
    said = causes.no_variance({"y": NORMAL, "x": -np.abs(RNG.standard_t(nu, size=(4, 1000)))})
    assert bool(said) == is_heavy
    assert not is_heavy or said.startswith("x has a tail")


def test_energies_that_do_not_change_are_seen():
    assert "chain 2" in causes.slow_energy(
        np.where(np.arange(4)[:, None] == 2, np.cumsum(NORMAL, axis=1), NORMAL)
    )


def test_a_chain_that_stays_is_seen():
    is_moved = np.ones((4, 999), bool)
    is_moved[1, 300:400] = False
    assert "chain 1 stayed at one point for 100" in causes.stuck(is_moved)

"""Moments and effective sample sizes that are updated draw by draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from momentem.run import batch_means as streamed
from momentem.run.batch_means import NUM_BATCHES, Streamed, observe

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_CHAINS = 64


@jax.jit
def _after(draws, before):
    return jax.lax.fori_loop(0, len(draws), lambda i, m: observe(m, {"x": draws[i]}), before)


def _fresh(form):
    return Streamed.fresh({"x": form}, NUM_CHAINS)


@pytest.mark.parametrize("num_draws", [1, 5, NUM_BATCHES, NUM_BATCHES + 1, 2 * NUM_BATCHES, 777])
def test_batches_are_means_of_consecutive_draws(num_draws):
    draws = jax.random.normal(jax.random.key(0), (num_draws, NUM_CHAINS, 3))
    found = _after(draws, _fresh(draws[0, 0]))
    length = next(2**k for k in range(20) if 2**k * NUM_BATCHES >= num_draws)
    for i in range(num_draws // length):
        expected = draws[i * length : (i + 1) * length].mean(0)
        np.testing.assert_allclose(found.batches["x"][:, i], expected, atol=1e-14)
    np.testing.assert_allclose(found.mean["x"], draws.mean(0), atol=1e-14)
    np.testing.assert_allclose(found.variance["x"], draws.var(0), atol=1e-14)


def _autoregressive(correlation, num_draws):
    """Chains of standard normals, all started in their law; their number of effective draws is
    (1 - r) / (1 + r) times that of draws."""
    noise = np.random.default_rng(0).normal(size=(num_draws, NUM_CHAINS))
    for i in range(1, num_draws):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return jnp.asarray(noise)


@pytest.mark.parametrize("correlation", [0.0, 0.9, -0.5])
def test_effective_sample_size_of_an_autoregression(correlation):
    _check_size(correlation)


@pytest.mark.parametrize(
    "broken", [lambda batches: batches, lambda batches: jnp.repeat(batches[:, :16], 2, axis=1)]
)
def test_sabotaged_batches_are_seen(monkeypatch, broken):
    monkeypatch.setattr(streamed, "_merge", broken)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        _check_size(0.9)
    jax.clear_caches()


def _check_size(correlation):
    draws = _autoregressive(correlation, 20_000)
    found = _after(draws, _fresh(draws[0, 0])).ess()["x"]
    expected = draws.size * (1 - correlation) / (1 + correlation)
    num_batches = 20_000 // 1024 * NUM_CHAINS
    # 5 standard errors of a variance of so many numbers: a false alarm in 10^6
    assert abs(found / expected - 1) < 5 * np.sqrt(2 / num_batches)


def test_chains_that_disagree_are_worth_little():
    draws = _autoregressive(0.0, 2_000) + jnp.linspace(-5.0, 5.0, NUM_CHAINS)[None]
    assert _after(draws, _fresh(draws[0, 0])).ess()["x"] < 100 * NUM_CHAINS


def test_what_never_moved_has_no_size():
    after = _after(jnp.ones((100, NUM_CHAINS)), _fresh(jnp.ones(())))
    assert np.isnan(after.ess()["x"])

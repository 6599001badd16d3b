"""In many dimensions too, chains arrive from any start, at any scale, in either precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.targets._ascent import bulk
from momentem.tuning import long_way_in

pytestmark = pytest.mark.usefixtures("quick_compilation")

DIM = 300


def climb(logdensity, starts, dtype):
    scores = jax.vmap(jax.grad(logdensity))
    return jax.jit(lambda x: long_way_in.climb_far(scores, jax.random.key(0), x))(
        jnp.asarray(starts, dtype)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_scales_of_independent_parameters_are_found(dtype, scale):
    """Scales 1e8 apart, starts up to 1e8 standard deviations out."""
    widths = jnp.asarray(scale * np.logspace(-4, 4, DIM), dtype)

    def logdensity(x):
        return -0.5 * jnp.sum((x / widths - 3) ** 2)

    found = climb(logdensity, np.random.default_rng(0).normal(size=(4, DIM)), dtype)
    np.testing.assert_allclose(found.place.diagonal / widths[None] ** 2, 1, rtol=1e-2)
    distances = -2 * np.asarray(jax.vmap(logdensity)(found.place.position))
    assert distances.max() < bulk(DIM)
    assert int(found.num_gradients) < 300  # in float32, 1e8 sds are climbed in several rounds
    assert not np.asarray(found.is_flat).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_correlated_parameters_have_steps_that_are_safe(dtype):
    """An autoregression with a correlation of .9, a thousand times too wide at the start."""
    share = 0.9

    def logdensity(x):
        return -0.5e6 * (x[0] ** 2 * (1 - share**2) + jnp.sum((x[1:] - share * x[:-1]) ** 2))

    starts = np.random.default_rng(1).normal(size=(4, DIM))
    found = climb(logdensity, starts, dtype)
    # h is 1 / (|H_ii| sqrt(1 + the squares of the two correlations)) inside
    curvature = 1e6 * (1 + share**2)
    expected = 1 / (curvature * np.sqrt(1 + 2 * (share / (1 + share**2)) ** 2))
    inside = 1 / np.mean(1 / np.asarray(found.place.diagonal)[:, 1:-1], axis=0)
    np.testing.assert_allclose(np.median(inside), expected, rtol=0.3)
    assert inside.max() < 5 * expected
    # as far as H knows they are there; what is left is in the slowest directions
    assert np.asarray(found.place.distance).max() <= bulk(DIM)
    first, last = (-2 * np.asarray(jax.vmap(logdensity)(x)) for x in (starts, found.place.position))
    assert (last < 1e-4 * first).all()


def test_a_level_direction_is_told():
    found = climb(lambda x: -0.5 * jnp.sum(x[1:] ** 2) + 0 * x[0], np.ones((2, DIM)), np.float64)
    assert np.asarray(found.is_flat).all()


def test_the_default_samples_scales_1e8_apart():
    widths = np.logspace(-4, 4, DIM)
    target = mt.density(lambda x: -0.5 * jnp.sum((x / widths - 3) ** 2), jnp.zeros(DIM))
    trace = mt.sample(target, num_draws=500, seed=0)
    draws = trace["posterior"]["position"].values / widths - 3
    assert abs(draws.mean(axis=(0, 1))).max() < 5 / np.sqrt(1000)
    np.testing.assert_allclose(draws.std(axis=(0, 1)), 1, atol=0.12)
    spent = trace["em"]["way_in_gradients"][0].mean() + trace["warmup_sample_stats"]["n_steps"].sum(
        "draw"
    ).mean("chain")
    assert float(spent) < 400

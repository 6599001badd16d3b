"""The ascent: where the mode is, in single precision too, and what is said if there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.targets._ascent import arrival, ascend
from momentem.targets._long_ascent import ascend_far
from momentem.targets._minibatch import BLOCK, whole_gradient

D = 4
SCALES = np.logspace(-1.5, 1.5, D)


def log_prior(w):
    return -0.5 * jnp.sum((w / 100) ** 2)


def log_likelihood(w, datum):
    z = datum[0] @ w
    return datum[1] * z - jnp.logaddexp(0.0, z)


def problem(num_rows, dtype, batch_size=None):
    """A logistic regression, its mode and a root of the precision there (Newton, float64)."""
    rng = np.random.default_rng(0)
    x = ((rng.normal(size=(num_rows, D)) @ rng.normal(size=(D, D))) * SCALES).astype(dtype)
    weights = rng.normal(size=D) / SCALES / 3
    y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-x @ weights))).astype(dtype)
    options = {} if batch_size is None else {"batch_size": batch_size}
    initial = jnp.zeros(D, dtype)
    target = mt.dataset(log_prior, log_likelihood, (x, y), initial, **options)
    rows = x.astype(float)
    for _ in range(8):
        p = 1 / (1 + np.exp(-rows @ weights))
        precision = (rows * (p * (1 - p))[:, None]).T @ rows + np.eye(D) / 1e4
        gradient = rows.T @ (y - p) - weights / 1e4
        weights = weights + np.linalg.solve(precision, gradient)
    return target, weights, np.linalg.cholesky(precision)


def distances(positions, mode, root):
    """In standard deviations."""
    return np.linalg.norm((np.asarray(positions, float) - mode) @ root, axis=-1)


@pytest.mark.parametrize("batch_size", [None, 100], ids=["all data", "minibatches"])
def test_the_mode_of_many_rows_is_found_in_single_precision(batch_size):
    target, mode, root = problem(300_000, np.float32, batch_size)
    assert distances(mt.mode(target), mode, root) < 0.05


def test_what_is_no_mode_is_not_returned():
    with pytest.raises(ValueError, match="standard deviations"):
        mt.mode(mt.density(lambda x: jnp.sum(x), jnp.zeros(2)))


@pytest.mark.parametrize("num_rows", [10, BLOCK, BLOCK + 1, 3 * BLOCK - 1])
def test_the_whole_gradient_is_that_of_all_rows(num_rows):
    target, _, _ = problem(num_rows, np.float64, 4)
    plain = jax.value_and_grad(target.logdensity)(target.initial + 0.01)
    for a, b in zip(whole_gradient(target, target.initial + 0.01), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_chains_arrive_from_hundreds_of_standard_deviations():
    target, mode, root = problem(30_000, np.float32, 100)
    starts = jax.random.uniform(jax.random.key(0), (4, D), jnp.float32, -1, 1)
    assert distances(starts, mode, root).min() > 100
    place = jax.jit(lambda target, x: ascend(target, x, 0.01))(target, starts)
    assert arrival(place).all()
    assert distances(place.position, mode, root).max() < 1


@pytest.mark.validate
def test_chains_arrive_in_many_dimensions():
    dim, rng = 150, np.random.default_rng(0)
    x = rng.normal(size=(5000, dim)) * np.logspace(-1, 1, dim)
    y = rng.normal(size=5000)
    target = mt.dataset(
        lambda w: -0.5 * w @ w,
        lambda w, datum: -0.5 * (datum[1] - datum[0] @ w) ** 2,
        (x, y),
        jnp.zeros(dim),
        batch_size=100,
    )
    precision = x.T @ x + np.eye(dim)
    mode = np.linalg.solve(precision, x.T @ y)
    starts = jax.random.uniform(jax.random.key(0), (2, dim), minval=-1, maxval=1)
    place, has_arrived = jax.jit(ascend_far)(target, starts)
    assert has_arrived.all()
    assert distances(place.position, mode, np.linalg.cholesky(precision)).max() < dim**0.5

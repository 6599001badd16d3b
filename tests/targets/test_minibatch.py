"""Minibatch gradients: unbiased, with noise samples that have the noise's covariance."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import momentem as mt
from momentem.targets._minibatch import with_replacement

from noisy_targets import logistic

NUM_ROWS, BATCH = 41, 12  # 41 is prime: no block starts where another ends
COVARIATES = np.random.default_rng(0).normal(size=(NUM_ROWS, 2)) * [1.0, 3.0]
LABELS = np.random.default_rng(1).uniform(size=NUM_ROWS) < 0.4
DATA = {"x": COVARIATES, "label": LABELS}
POSITION = jnp.array([0.4, -0.3, 0.2])


def log_prior(parameters):
    return -0.5 * (parameters["slope"] @ parameters["slope"]) / 4 - parameters["scale"]


def log_likelihood(parameters, datum):
    logit = parameters["scale"] * (datum["x"] @ parameters["slope"])
    return jnp.where(datum["label"], logit, 0.0) - jnp.logaddexp(0.0, logit)


def build(**options):
    """A logistic regression on a pytree of data, with a parameter that must be positive."""
    initial = {"slope": jnp.zeros(2), "scale": jnp.ones(())}
    positive = {"scale": dist.constraints.positive}
    options = {"batch_size": BATCH} | options
    return mt.dataset(log_prior, log_likelihood, DATA, initial, positive, **options)


TARGET = build()


def every_pair():
    """All (start, start) pairs of two blocks: each has the same chance."""
    starts = jnp.arange(NUM_ROWS)
    first, second = jnp.meshgrid(starts, starts)
    return jnp.stack([first.ravel(), second.ravel()], axis=1)


def estimates(target, batches, position=POSITION):
    found = jax.jit(jax.vmap(target.noisy_gradient, in_axes=(0, None)))(batches, position)
    return jax.tree.map(np.asarray, found)


def exact(position=POSITION):
    return jax.tree.map(np.asarray, jax.value_and_grad(TARGET.logdensity)(position))


def covariance(samples):
    """About a known mean of zero."""
    return np.asarray(samples.T @ samples) / len(samples)


# --- blocks, by enumeration -------------------------------------------------------------------


def test_gradient_and_logdensity_are_unbiased_over_all_blocks():
    found = estimates(TARGET, every_pair())
    value, gradient = exact()
    np.testing.assert_allclose(found.gradient.mean(axis=0), gradient, rtol=1e-10)
    np.testing.assert_allclose(found.logdensity.mean(), value, rtol=1e-10)


def test_noise_has_the_covariance_of_the_gradients_noise_over_all_blocks():
    found = estimates(TARGET, every_pair())
    np.testing.assert_allclose(found.noise.mean(axis=0), np.zeros(3), atol=1e-10)
    expected = covariance(found.gradient - exact()[1])
    np.testing.assert_allclose(covariance(found.noise), expected, rtol=1e-9)
    assert found.information is None


def test_noise_is_uncorrelated_with_the_gradient():
    found = estimates(TARGET, every_pair())
    across = np.asarray((found.gradient - exact()[1]).T @ found.noise) / NUM_ROWS**2
    np.testing.assert_allclose(across, np.zeros((3, 3)), atol=1e-9 * covariance(found.noise).max())


def test_starts_are_uniform_and_halves_independent():
    starts = np.asarray(TARGET.batches(jax.random.key(0), mt.pytrees.Static(200_000)))
    assert starts.shape == (200_000, 2)
    counts = np.zeros((NUM_ROWS, NUM_ROWS))
    np.add.at(counts, (starts[:, 0], starts[:, 1]), 1)
    expected = 200_000 / NUM_ROWS**2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    degrees = NUM_ROWS**2 - 1
    assert abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)


def test_every_row_is_read_from_some_block():
    """Rows wrap around the end of the copy: each is in BATCH / 2 of the N blocks."""
    data = np.arange(float(NUM_ROWS))
    target = mt.dataset(
        lambda w: 0.0 * w.sum(),
        lambda w, row: w @ jax.nn.one_hot(row.astype(int), NUM_ROWS),
        data,
        jnp.zeros(NUM_ROWS),
        batch_size=BATCH,
    )
    blocks = jnp.stack([jnp.arange(NUM_ROWS)] * 2, axis=1)
    rows = np.asarray(estimates(target, blocks, jnp.zeros(NUM_ROWS)).gradient)
    weight = NUM_ROWS / (BATCH // 2)
    np.testing.assert_allclose(rows.sum(axis=0), np.full(NUM_ROWS, weight * BATCH // 2))
    np.testing.assert_allclose((rows > 0).sum(axis=1), np.full(NUM_ROWS, BATCH // 2))
    # shuffled: neighbours in a block are not neighbours in the data
    assert not (np.diff(np.flatnonzero(rows[0])) == 1).all()


@pytest.mark.parametrize("size", [1, 2, 4, 5, 30])
def test_blocks_are_read_alike_however_many_at_once(size):
    """One by one, or many at once with a position for each."""
    batches = every_pair()[7 : 7 * size + 1 : 7]
    positions = POSITION[None] + jnp.linspace(0.0, 1.0, size)[:, None]
    each = [TARGET.noisy_gradient(*pair) for pair in zip(batches, positions, strict=True)]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    found = jax.jit(jax.vmap(TARGET.noisy_gradient))(batches, positions)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected
    )


@pytest.mark.parametrize("sabotage", ["no wrap", "wrong scale"])
def test_enumeration_catches_a_biased_gradient(sabotage):
    found = estimates(TARGET, every_pair())
    if sabotage == "no wrap":  # blocks that would have to wrap are never drawn
        last = NUM_ROWS - BATCH // 2
        kept = np.asarray((every_pair() <= last).all(axis=1))
        mean = np.asarray(found.gradient)[kept].mean(axis=0)
    else:
        mean = np.asarray(found.gradient.mean(axis=0)) * (NUM_ROWS - 1) / NUM_ROWS
    assert not np.allclose(mean, exact()[1], rtol=1e-3)


# --- with replacement -------------------------------------------------------------------------


def test_with_replacement_is_unbiased_with_the_textbook_noise():
    """V = (N^2 / n) S, where S is the covariance of one row's gradient."""
    target = build(batches=with_replacement())
    number = 200_000
    batches = target.batches(jax.random.key(2), mt.pytrees.Static(number))
    assert batches.shape == (number, 2, BATCH // 2)
    found = estimates(target, batches)
    value, gradient = exact()

    prior = build(batch_size=None)
    one_row = jax.vmap(
        jax.grad(lambda position, datum: log_likelihood(prior.constrain(position), datum)),
        in_axes=(None, 0),
    )
    rows = one_row(POSITION, jax.tree.map(jnp.asarray, DATA))
    textbook = NUM_ROWS**2 / BATCH * np.cov(np.asarray(rows).T, bias=True)
    spread = np.sqrt(np.diag(textbook) / number)
    assert (np.abs(found.gradient.mean(axis=0) - gradient) < 5 * spread).all()
    assert abs(found.logdensity.mean() - value) < 5 * found.logdensity.std() / number**0.5
    scale = np.sqrt(np.outer(np.diag(textbook), np.diag(textbook)))
    for samples in (found.gradient - gradient, found.noise):
        # entries of a covariance have a standard error of about sqrt(2 / n) of the variances
        error = np.abs(covariance(samples) - textbook) / scale
        assert error.max() < 5 * np.sqrt(3 / number)


# --- information ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [None, with_replacement()], ids=["blocks", "with replacement"])
def test_information_scaled_is_the_fisher_information(scheme):
    target, truth, fisher = logistic(20_000, 20, batches=scheme)
    assert target.information_scale == pytest.approx(20 / 20_000)
    batches = target.batches(jax.random.key(4), mt.pytrees.Static(20_000))
    information = estimates(target, batches, jnp.asarray(truth)).noise
    found = target.information_scale * covariance(information)
    root = np.linalg.inv(np.linalg.cholesky(fisher))
    eigenvalues = np.linalg.eigvalsh(root @ found @ root.T)
    # Monte Carlo 1 %; the labels drawn 1 %; the shuffle, with 2000 blocks apart, sqrt(2/2000) = 3 %
    np.testing.assert_allclose(eigenvalues, np.ones(2), atol=0.12)


def test_prior_curvature_is_that_of_the_unconstrained_prior():
    """slope ~ N(0, 4) has 1/4; u = log scale, scale exponential, has -u'' (exp(u) - u) = exp(u)."""
    found = TARGET.prior_curvature(POSITION)
    by_name = TARGET.unravel(found)
    np.testing.assert_allclose(by_name["slope"], [0.25, 0.25])
    np.testing.assert_allclose(by_name["scale"], np.exp(TARGET.unravel(POSITION)["scale"]))


# --- constraints, dtypes, errors --------------------------------------------------------------


def test_full_density_is_that_of_the_full_target():
    full = build(batch_size=None)
    np.testing.assert_allclose(TARGET.logdensity(POSITION), full.logdensity(POSITION), rtol=1e-12)
    found = TARGET.constrain(POSITION)
    assert float(found["scale"]) > 0


def test_dtype_is_kept():
    data = np.ones((10, 1), np.float32)
    target = mt.dataset(
        lambda w: -0.5 * w @ w, lambda w, x: -0.5 * (x[0] - w[0]) ** 2, data,
        jnp.zeros(1, jnp.float32), batch_size=4,
    )  # fmt: skip
    batches = target.batches(jax.random.key(0), mt.pytrees.Static(3))
    for leaf in jax.tree.leaves(estimates(target, batches, jnp.ones(1, jnp.float32))):
        assert leaf.dtype == jnp.float32
    assert target.prior_curvature(jnp.ones(1, jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize("batch_size", [7, 42, 0, -2])
def test_impossible_batch_sizes_are_refused(batch_size):
    with pytest.raises(ValueError, match="batch_size"):
        build(batch_size=batch_size)


def test_all_rows_may_be_one_batch():
    target = build(batch_size=40)
    found = estimates(target, every_pair())
    np.testing.assert_allclose(found.gradient.mean(axis=0), exact()[1], rtol=1e-10)


def test_a_likelihood_that_sums_over_the_batch_by_mistake_is_refused():
    with pytest.raises((TypeError, ValueError), match="scalar"):
        mt.dataset(
            lambda w: -0.5 * w @ w,
            lambda w, rows: -0.5 * (rows - w) ** 2,  # a vector: one term per coordinate
            np.ones((10, 2)),
            jnp.zeros(2),
            batch_size=4,
        )


# --- control variates -------------------------------------------------------------------------

REFERENCE = TARGET.constrain(jnp.array([0.1, -0.2, 0.3]))
CONTROLLED = mt.control_variate(TARGET, REFERENCE)


def test_control_variate_is_unbiased_with_the_right_noise():
    found = estimates(CONTROLLED, every_pair())
    value, gradient = exact()
    np.testing.assert_allclose(found.gradient.mean(axis=0), gradient, rtol=1e-9)
    np.testing.assert_allclose(found.logdensity.mean(), value, rtol=1e-9)
    np.testing.assert_allclose(
        covariance(found.noise), covariance(found.gradient - gradient), rtol=1e-8
    )


def test_control_variate_has_no_noise_at_the_reference():
    where = TARGET.unconstrain(REFERENCE)
    np.testing.assert_allclose(where, CONTROLLED.initial)
    found = estimates(CONTROLLED, every_pair()[:100], where)
    value, gradient = exact(where)
    np.testing.assert_allclose(found.noise, np.zeros((100, 3)), atol=1e-12)
    np.testing.assert_allclose(found.gradient, np.tile(gradient, (100, 1)), rtol=1e-10)
    np.testing.assert_allclose(found.logdensity, np.full(100, value), rtol=1e-10)


def test_control_variate_has_noise_that_falls_with_the_squared_distance():
    where = TARGET.unconstrain(REFERENCE)
    traces = [
        np.trace(covariance(estimates(CONTROLLED, every_pair(), where + distance).noise))
        for distance in (0.1, 0.01)
    ]
    assert traces[0] / traces[1] == pytest.approx(100, rel=0.3)
    plain = np.trace(covariance(estimates(TARGET, every_pair(), where + 0.01).noise))
    assert traces[1] < 1e-3 * plain


def test_control_variate_leaves_the_information_alone():
    plain, controlled = (estimates(target, every_pair()) for target in (TARGET, CONTROLLED))
    np.testing.assert_array_equal(plain.noise, controlled.information)
    assert CONTROLLED.information_scale == TARGET.information_scale


def test_mode_is_where_the_gradient_vanishes():
    where = TARGET.unconstrain(mt.mode(TARGET))
    assert np.abs(exact(where)[1]).max() < 1e-3


def test_control_variate_refuses_a_reference_that_does_not_fit():
    with pytest.raises((TypeError, ValueError)):
        mt.control_variate(TARGET, {"slope": jnp.zeros(3), "scale": jnp.ones(())})

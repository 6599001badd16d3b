"""Metrics are what they say, and so are their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.riemannian import metrics

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
THETA, V = jnp.asarray(RNG.normal(size=3)), jnp.asarray(RNG.normal(size=3))
PRIOR = np.array([0.1, 0.2, 0.3])


def log_posterior(w):
    logits = X @ w
    return -jnp.sum(jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(PRIOR * w**2)


TARGET = mt.density(log_posterior, jnp.zeros(3))
METRICS = {
    "logistic": metrics.logistic(X, PRIOR),
    "exponential family": metrics.exponential_family(lambda w, x: x @ w, jax.nn.softplus, X, PRIOR),
    "softabs": metrics.softabs(TARGET),
    "diagonal": metrics.diagonal(metrics.logistic(X, PRIOR)),
    "by hand": metrics.metric(lambda w: jnp.exp(w)),
}


@pytest.mark.parametrize("name", ["logistic", "exponential family", "softabs"])
def test_logistic_information(name):
    """Whatever the way to it: here the negative Hessian is the information, and positive."""
    expected = -jax.hessian(log_posterior)(THETA)
    np.testing.assert_allclose(METRICS[name].matrix(THETA), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.one_now
def test_quadratic_is_that_of_the_matrix_and_so_is_its_gradient(name):
    metric = METRICS[name]

    def plain(theta):
        G = metric.matrix(theta)
        return V @ (jnp.diag(G) if G.ndim == 1 else G) @ V

    np.testing.assert_allclose(metric.quadratic(THETA, V), plain(THETA), rtol=1e-12)
    gradient = jax.grad(metric.quadratic)(THETA, V)
    numeric = [(plain(THETA + h) - plain(THETA - h)) / 2e-5 for h in 1e-5 * jnp.eye(3)]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", METRICS)
def test_factor(name):
    G = METRICS[name].matrix(THETA)
    factor = metrics.factorise(G)
    G = np.diag(G) if G.ndim == 1 else np.asarray(G)
    np.testing.assert_allclose(factor.velocity(V), np.linalg.solve(G, V), rtol=1e-9)
    np.testing.assert_allclose(factor.colour(factor.whiten(V)), V, rtol=1e-12)
    L = np.asarray(jax.vmap(factor.colour)(jnp.eye(3))).T
    np.testing.assert_allclose(L @ L.T, G, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(factor.log_determinant(), np.linalg.slogdet(G)[1], rtol=1e-9)
    inverse = np.asarray(factor.inverse())
    np.testing.assert_allclose(
        np.diag(inverse) if inverse.ndim == 1 else inverse, np.linalg.inv(G), rtol=1e-8, atol=1e-10
    )


def test_several_natural_parameters():
    """A normal with mean mu and precision tau = exp(theta_1): diag(N tau, N / 2)."""

    def natural(theta, datum):
        del datum
        tau = jnp.exp(theta[1])
        return jnp.stack([theta[0] * tau, -tau / 2])

    def log_partition(eta):
        return -(eta[0] ** 2) / (4 * eta[1]) - 0.5 * jnp.log(-2 * eta[1])

    metric = metrics.exponential_family(natural, log_partition, np.zeros(20), np.zeros(2))
    found = metric.matrix(jnp.array([0.7, 0.3]))
    np.testing.assert_allclose(found, np.diag([20 * np.exp(0.3), 10.0]), rtol=1e-10, atol=1e-10)
    quadratic = metric.quadratic(jnp.array([0.7, 0.3]), jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(quadratic, 20 * np.exp(0.3) + 40.0, rtol=1e-10)


def test_a_sample_of_the_data_is_scaled():
    twice = np.concatenate([X, X])
    whole = metrics.logistic(twice, PRIOR).matrix(THETA)
    np.testing.assert_allclose(metrics.logistic(X, PRIOR, 2.0).matrix(THETA), whole, rtol=1e-12)
    half = metrics.exponential_family(lambda w, x: x @ w, jax.nn.softplus, X, PRIOR, 2.0)
    np.testing.assert_allclose(half.matrix(THETA), whole, rtol=1e-12)


def test_softabs_makes_eigenvalues_positive():
    target = mt.density(lambda x: x[0] * x[1], jnp.zeros(2))  # eigenvalues 1, -1
    np.testing.assert_allclose(metrics.softabs(target).matrix(jnp.zeros(2)), np.eye(2), atol=1e-12)
    flat = mt.density(lambda x: 0.0 * x[0] * x[1], jnp.zeros(2))
    found = metrics.softabs(flat, 10.0).matrix(jnp.zeros(2))
    np.testing.assert_allclose(found, np.eye(2) / 10, atol=1e-12)


@pytest.mark.parametrize("sharpness", [0.5, 10.0, 1e6])
@pytest.mark.parametrize("point", [[0.0, 0.0], [0.4, 0.4], [0.4, -0.7], [1e-4, 2e-4]])
@pytest.mark.one_now
def test_softabs_is_differentiable_where_eigenvalues_meet(sharpness, point):
    """x^4 + y^4 has equal eigenvalues on the diagonal, and zero ones at the origin."""
    target = mt.density(lambda x: -jnp.sum(x**4) - 0.1 * x[0] ** 2 * x[1], jnp.zeros(2))
    metric = metrics.softabs(target, sharpness)
    point, v = jnp.asarray(point), jnp.array([0.3, -0.8])
    gradient = np.asarray(jax.grad(metric.quadratic)(point, v))
    assert np.isfinite(gradient).all()
    if sharpness < 1e6:
        numeric = [
            (metric.quadratic(point + h, v) - metric.quadratic(point - h, v)) / 2e-6
            for h in 1e-6 * jnp.eye(2)
        ]
        np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6)


def test_an_indefinite_matrix_has_no_factor():
    assert np.isnan(metrics.factorise(jnp.array([[1.0, 2.0], [2.0, 1.0]])).root).any()
    assert np.isnan(metrics.factorise(jnp.array([1.0, -1.0])).root).any()


def test_bad_arguments():
    with pytest.raises(ValueError, match="sharpness must be finite and > 0"):
        metrics.softabs(TARGET, 0.0)
    with pytest.raises(ValueError, match="scale must be finite and > 0"):
        metrics.logistic(jnp.asarray(X), PRIOR, -1.0)

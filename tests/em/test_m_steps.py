"""What each M-step estimates, from momenta, draws and scores whose law is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.types import Info

DIM = 3
COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 0.5, -0.1], [0.0, -0.1, 1.5]])
PRECISION = np.linalg.inv(COVARIANCE)


def batches(num, chains=4, seed=0):
    """Infos of `num` steps: Gaussian draws off centre with their scores, momenta from N(0, C)."""
    rng = np.random.default_rng(seed)
    thetas = rng.normal(size=(num, chains, DIM)) @ np.linalg.cholesky(COVARIANCE).T
    momenta = rng.normal(size=(num, chains, DIM)) @ np.linalg.cholesky(COVARIANCE).T
    return [
        Info(jnp.asarray(t + 5), jnp.asarray(p), jnp.asarray(-t @ PRECISION), {})
        for t, p in zip(thetas, momenta, strict=True)
    ]


def estimate(m_step, mass, infos, size=100):
    learnt = mt.Learnt(mass, jnp.array(0.1))
    statistic = m_step.init(mass, size)
    for info in infos:
        statistic = m_step.update(statistic, info, learnt)
    return m_step.estimate(statistic, learnt).inverse_mass


def pooled(infos, field):
    return np.concatenate([np.asarray(getattr(info, field)) for info in infos])


DENSE, DIAGONAL = mt.dense_mass(np.eye(DIM)), mt.diagonal_mass(np.ones(DIM))
INFOS = batches(500)
THETAS, MOMENTA, SCORES = (pooled(INFOS, name) for name in ("position", "momentum", "gradient"))
N = len(THETAS)


@pytest.mark.parametrize(
    ("m_step", "expected"),
    [
        (mt.m_steps.fisher(), COVARIANCE),
        (mt.m_steps.momentum(), (N - DIM - 1) / N * np.linalg.inv(MOMENTA.T @ MOMENTA / N)),
        (mt.m_steps.momentum_printed(), np.linalg.inv(MOMENTA.T @ MOMENTA / N)),
        (mt.m_steps.score(), np.linalg.inv(SCORES.T @ SCORES / N)),
        (mt.m_steps.draws(), np.cov(THETAS.T)),
    ],
    ids=["fisher", "momentum", "momentum_printed", "score", "draws"],
)
@pytest.mark.one_now
def test_dense(m_step, expected):
    # shrinking by (D / n)^2 = 2e-6 is all that may differ
    np.testing.assert_allclose(estimate(m_step, DENSE, INFOS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("m_step", "expected"),
    [
        (mt.m_steps.fisher(), np.std(THETAS, axis=0) / np.std(SCORES, axis=0)),
        (mt.m_steps.momentum(), (N - 2) / N / np.mean(MOMENTA**2, axis=0)),
        (mt.m_steps.momentum_printed(), 1 / np.mean(MOMENTA**2, axis=0)),
        (mt.m_steps.score(), 1 / np.mean(SCORES**2, axis=0)),
        (mt.m_steps.draws(), np.var(THETAS, axis=0, ddof=1)),
    ],
    ids=["fisher", "momentum", "momentum_printed", "score", "draws"],
)
@pytest.mark.one_now
def test_diagonal(m_step, expected):
    np.testing.assert_allclose(estimate(m_step, DIAGONAL, INFOS), expected, rtol=1e-10)


@pytest.mark.parametrize("m_step", [mt.m_steps.draws(), mt.m_steps.fisher(), mt.m_steps.score()])
def test_a_statistic_with_no_samples_is_empty_whatever_it_holds(m_step):
    learnt = mt.Learnt(DENSE, jnp.array(0.1))
    used = m_step.update(m_step.init(DENSE, 100), INFOS[0], learnt)
    emptied = m_step.update(used._replace(num_samples=jnp.array(0)), INFOS[1], learnt)
    fresh = m_step.update(m_step.init(DENSE, 100), INFOS[1], learnt)
    jax.tree.map(np.testing.assert_array_equal, emptied, fresh)


def test_fisher_needs_no_stationarity():
    """Scores are linear in the draws on a Gaussian, so a few draws far off the mode suffice."""
    infos = batches(6, seed=3)
    far = [
        info._replace(
            position=info.position * 30 + 100,
            gradient=-(info.position * 30 + 95) @ PRECISION,
        )
        for info in infos
    ]
    whitened = np.linalg.eigvals(estimate(mt.m_steps.fisher(), DENSE, far) @ PRECISION).real
    assert whitened.max() / whitened.min() < 1.2


def test_inverse_of_an_empirical_covariance_is_biased_and_the_factor_removes_it():
    """E inv = n / (n - D - 1). Of 4000 estimates, 3 % is more than five standard errors."""
    dim, n, m_step = 5, 40, mt.m_steps.momentum()
    mass = mt.dense_mass(np.eye(dim))
    learnt = mt.Learnt(mass, jnp.array(0.1))

    def one(key, m_step):
        p = jax.random.normal(key, (n, dim))
        statistic = m_step.update(m_step.init(mass, n), Info(p, p, p, {}), learnt)
        return m_step.estimate(statistic, learnt).inverse_mass

    keys = jax.random.split(jax.random.key(0), 4000)
    corrected = jnp.mean(jax.vmap(lambda key: one(key, m_step))(keys), axis=0)
    printed = jnp.mean(jax.vmap(lambda key: one(key, mt.m_steps.momentum_printed()))(keys), axis=0)
    np.testing.assert_allclose(corrected, np.eye(dim), atol=0.03)
    np.testing.assert_allclose(printed, n / (n - dim - 1) * np.eye(dim), atol=0.03)


def geometric_mean_eigenvalue(m_step, dim, size, num_m_steps=200):
    """Of M_I after `num_m_steps` on exact momenta N(0, M), started from the identity."""
    averaging = mt.schedules.polynomial()

    def iterate(mass, inputs):
        k, key = inputs
        learnt = mt.Learnt(mass, jnp.array(0.1))
        p = jax.vmap(mass.sample)(jax.random.split(key, size))
        statistic = m_step.update(m_step.init(mass, size), Info(p, p, p, {}), learnt)
        return mass.average(m_step.estimate(statistic, learnt), averaging(k)), None

    ks = jnp.arange(1, num_m_steps + 1, dtype=float)
    keys = jax.random.split(jax.random.key(dim), num_m_steps)
    mass = jax.lax.scan(iterate, mt.dense_mass(np.eye(dim)), (ks, keys))[0]
    return float(jnp.exp(-mass.log_determinant() / dim))


@pytest.mark.parametrize("dim", [2, 10, 50])
@pytest.mark.validate
def test_the_momentum_m_step_stays_put_at_stationarity(dim):
    found = geometric_mean_eigenvalue(mt.m_steps.momentum(), dim, 4 * dim + 100)
    assert 0.5 < found < 2


def test_the_printed_momentum_m_step_runs_away():
    assert geometric_mean_eigenvalue(mt.m_steps.momentum_printed(), 50, 100) > 100


def test_low_rank_finds_the_outlying_directions():
    dim, rank = 40, 2
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(dim, rank)))[0]
    eigenvalues, scale = np.array([200.0, 0.01]), np.exp(rng.normal(size=dim))
    covariance = scale[:, None] * (np.eye(dim) + vectors * (eigenvalues - 1) @ vectors.T) * scale
    theta = rng.normal(size=(60, dim)) @ np.linalg.cholesky(covariance).T
    score = -theta @ np.linalg.inv(covariance)
    mass = mt.low_rank_mass(np.ones(dim), np.eye(dim)[:, :rank], np.ones(rank))
    m_step = mt.m_steps.fisher_low_rank(60)
    learnt = mt.Learnt(mass, jnp.array(0.1))
    info = Info(jnp.asarray(theta), jnp.asarray(theta), jnp.asarray(score), {})
    found = m_step.estimate(m_step.update(m_step.init(mass, 60), info, learnt), learnt)
    precision = np.asarray(jax.vmap(found.velocity)(jnp.eye(dim)))
    whitened = np.linalg.eigvals(precision @ np.linalg.inv(covariance)).real
    assert np.linalg.cond(covariance) > 1e5
    assert whitened.max() / whitened.min() < 30

"""The default of minibatch targets: nothing is set, and the posterior is right or a warning says
why not."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.em.m_steps._noise_low_rank import estimate_low_rank, no_noises, shrink_spikes
from momentem.types import Info

D = 5
SCALES = np.logspace(-1.5, 1.5, D)


def log_prior(w):
    return -0.5 * jnp.sum((w / 100) ** 2)


def log_likelihood(w, datum):
    return -0.5 * (datum[1] - datum[0] @ w) ** 2


def regression(num_rows, dtype=np.float32, batch_size=100):
    """A linear regression, whose posterior is known."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(num_rows, D)) @ rng.normal(size=(D, D)) * SCALES).astype(dtype)
    y = (x @ (1 / SCALES) + rng.normal(size=num_rows)).astype(dtype)
    target = mt.dataset(
        log_prior, log_likelihood, (x, y), jnp.zeros(D, dtype), batch_size=batch_size
    )
    rows = x.astype(float)
    precision = rows.T @ rows + np.eye(D) / 1e4
    return target, np.linalg.solve(precision, rows.T @ y), np.linalg.cholesky(precision)


def whitened(trace, mean, root):
    draws = trace["posterior"]["position"].values.astype(float)
    return ((draws - mean) @ root).reshape(-1, D)


def is_right(z):
    """Covariances of 8,000 draws are off by .02; 5 of that, and a known bias of .02."""
    return np.abs(np.cov(z.T) - np.eye(D)).max() < 0.12 and np.abs(z.mean(axis=0)).max() < 0.1


def test_a_default_run_is_right_from_far_out(recwarn):
    target, mean, root = regression(100_000)
    trace = mt.sample(target, progress=False)
    assert is_right(whitened(trace, mean, root))
    em = trace["em"].to_dataset()
    assert em["has_arrived"][-1]
    assert em["control_variates"][-1] == 1
    assert em["iteration"][-1] < 4000 - 1  # warm-up has ended by evidence
    # steps of .2 are too warm by .01
    temperature = trace["sample_stats"].to_dataset()[["kinetic_temperature"]]
    error = float(arviz_stats.mcse(temperature, method="mean")["kinetic_temperature"])
    assert error < 0.01
    assert abs(float(temperature["kinetic_temperature"].mean()) - 1) < 0.01 + 5 * error
    assert not [w for w in recwarn if issubclass(w.category, mt.SamplingWarning)]


def test_control_variates_are_left_where_they_do_not_pay():
    """With half of the data in a minibatch, steps are as long without them."""
    target, _, _ = regression(1000, batch_size=500)
    trace = mt.sample(target, num_draws=10, num_warmup=200, progress=False)
    assert trace["em"]["control_variates"][-1] == 0


def test_a_wrong_temperature_comes_with_a_remedy_for_this_call():
    """Sabotage: an anchor with another place's gradient, which biases all gradients."""
    target, _, _ = regression(10_000)
    with pytest.warns(mt.SamplingWarning, match="tuned_sghmc_em"):
        mt.sample(target, mt.sghmc(target, 0.001, 10), num_draws=200, progress=False)


def test_a_warm_up_without_an_m_step_is_refused_before_it_runs():
    target, _, _ = regression(1000)
    with pytest.raises(ValueError, match="num_warmup must be at least 25"):
        mt.sample(target, num_warmup=20)


# --- noise that follows the chain --------------------------------------------------------------


def test_each_chain_s_noise_follows_its_minibatches():
    target, mean, _ = regression(1000, np.float64)
    kernel = mt.kernels.sghmc(target, 50, forgetting=0.02)
    mass = mt.diagonal_mass(1e-4 * jnp.asarray(SCALES) ** -2)
    learnt = kernel.complete(mt.Learnt(mass, jnp.array(1e-6)))
    state = kernel.init(jax.random.key(0), jnp.asarray(mean), learnt)
    noises = []
    for i in range(20):
        state, info = jax.jit(kernel.step)(jax.random.key(i), state, learnt)
        noises.append(jax.vmap(mass.whiten)(info.noise) ** 2)
    expected = jnp.mean(jnp.concatenate(noises), axis=0)
    # a weight of .02 averages about 99 minibatches: 14 % of error, five of these
    np.testing.assert_allclose(state.noise, expected, rtol=0.7)
    fixed = mt.kernels.sghmc(target, 50)
    assert not hasattr(fixed.init(jax.random.key(0), jnp.asarray(mean), learnt), "noise")


# --- low-rank masses from the noise ------------------------------------------------------------


def test_the_identity_has_no_spikes():
    rows = np.random.default_rng(0).normal(size=(100, 1000)) / 10
    seen = np.linalg.eigvalsh(rows @ rows.T)[::-1][:5]
    assert seen[0] > 15  # of an identity
    np.testing.assert_allclose(shrink_spikes(jnp.asarray(seen), 10.0), 1, atol=0.5)


def test_a_low_rank_mass_is_learnt_from_the_noise():
    dim, rank, scale = 400, 5, 0.01
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(dim, 2)))[0]
    sd = np.logspace(-1, 1, dim)
    root = np.eye(dim) + directions @ np.diag([9.0, 4.0]) @ directions.T
    identity = mt.low_rank_mass(jnp.ones(dim), jnp.eye(dim)[:, :rank], jnp.ones(rank))
    statistic = no_noises(identity, has_information=False)
    rows = rng.normal(size=(50, dim)) @ root * sd / scale**0.5
    many = rng.normal(size=(4000, dim)) @ root * sd / scale**0.5
    statistic = statistic._replace(
        num_samples=jnp.array(50),
        num_noises=jnp.array(4000),
        noise=jnp.asarray(rows),
        square=jnp.asarray((many**2).sum(axis=0)),
    )
    mass, noise, plain = estimate_low_rank(statistic, identity, scale, jnp.zeros(dim))
    covariance = np.diag(sd) @ root @ root @ np.diag(sd)
    acted = np.asarray(jax.vmap(mass.velocity)(jnp.asarray(covariance)))
    eigenvalues = np.linalg.eigvals(acted).real
    diagonal = np.linalg.eigvals(covariance / np.diag(covariance)).real
    assert eigenvalues.max() / eigenvalues.min() < np.ptp(diagonal) / diagonal.min() / 3
    assert mass.is_proper()
    np.testing.assert_array_equal(noise, plain)


def test_info_of_one_chain_fills_the_window():
    from momentem.em.m_steps._noise_low_rank import add_last

    identity = mt.low_rank_mass(jnp.ones(3), jnp.eye(3)[:, :1], jnp.ones(1))
    statistic, ones = no_noises(identity, has_information=True), jnp.ones((2, 3))
    info = Info(ones, ones, ones, {"diverging": jnp.zeros(2, bool)}, jnp.ones((2, 4, 3)))
    statistic = add_last(add_last(statistic, info), info)
    assert statistic.num_noises == 16
    np.testing.assert_array_equal(statistic.noise[:5].sum(axis=1), [3, 3, 3, 3, 0])

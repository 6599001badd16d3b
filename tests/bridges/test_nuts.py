"""nuts tunes itself, and what a run has learnt is right for leapfrog steps elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.tree_util import Partial

import momentem as mt
from momentem.bridges.exports import leapfrog_step

blackjax = pytest.importorskip("blackjax")
SCALES = jnp.array([0.01, 1.0, 100.0])


def gaussian(x):
    return -0.5 * jnp.sum((x / SCALES) ** 2)


@pytest.fixture(scope="module")
def target():
    return mt.density(gaussian, jnp.zeros(3))


def check_nuts(target, sampler):
    """Asserts that the mass is that of the scales, within a factor of 2, and that the draws' second
    moments are right to 5 standard errors of at least 1,000 independent ones (6 at 6e-7 each)."""
    trace = mt.sample(target, sampler, num_draws=1000, num_warmup=200, seed=2)
    learnt = mt.learnt_from(trace)
    ratio = learnt.mass.inverse_mass_diagonal() / SCALES**2
    assert ((ratio > 0.5) & (ratio < 2)).all(), "the mass was not learnt"
    rate = float(trace["sample_stats"]["acceptance_rate"].mean())
    assert 0.7 < rate < 0.92, f"the step size was not tuned: acceptance {rate}"
    draws = trace["posterior"]["position"].values / np.asarray(SCALES)
    assert (np.abs((draws**2).mean((0, 1)) - 1) < 5 * (2 / 1000) ** 0.5).all()
    assert (np.abs(draws.mean((0, 1))) < 5 / 1000**0.5).all()
    return trace


def test_nuts_tunes_itself(target):
    trace = check_nuts(target, mt.nuts(target))
    assert float(trace["sample_stats"]["n_steps"].mean()) < 8
    again = mt.to_blackjax(trace)  # its steps are leapfrog's already
    assert again["step_size"] == pytest.approx(float(mt.learnt_from(trace).step_size))


@pytest.mark.validate
def test_a_mass_that_is_not_learnt_is_noticed(target, monkeypatch):
    stuck = mt.m_steps.fisher()._replace(average=Partial(lambda old, estimate, rate: old))
    monkeypatch.setattr("momentem.bridges._nuts.m_steps.fisher", lambda: stuck)
    # starts of unit spread on another density: the first mass is wrong by far
    other = mt.density(lambda x: gaussian(x) - 1e-4 * jnp.sum(x**4), jnp.zeros(3))
    with pytest.raises(AssertionError):
        check_nuts(other, mt.nuts(other))


@pytest.mark.validate
def test_the_exported_step_is_right_for_leapfrog():
    """The default's steps rotate: 2.36 is beyond the limit of leapfrog, 2, where draws have the
    wrong spread. The exported one accepts, and the spread is right to 5 standard errors of 1,000
    independent draws."""
    target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(5))
    trace = mt.sample(target, num_draws=200, seed=1)
    learnt = mt.to_blackjax(trace)
    assert float(mt.learnt_from(trace).step_size) > 1.5
    assert 0.5 < learnt["step_size"] <= 1.42 * 5**-0.25
    algorithm = blackjax.nuts(target.logdensity, **learnt)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state = algorithm.init(jnp.zeros(5))

        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, (state.position, info.acceptance_rate)

        keys = jax.random.split(jax.random.key(0), 3000)
        _, (draws, rates) = jax.jit(lambda s, k: jax.lax.scan(step, s, k))(state, keys)
    assert 0.7 < rates.mean() < 0.97
    assert (np.abs(np.asarray(draws).var(axis=0) - 1) < 5 * (2 / 1000) ** 0.5).all()


def test_leapfrog_step_of_a_harder_target():
    mass = mt.diagonal_mass(jnp.ones(16))
    rotating = mt.Learnt(mass, 0.5, path=jnp.array(1.5))
    assert 0.4 < leapfrog_step(rotating) < 0.5
    assert leapfrog_step(mt.Learnt(mass, 0.5)) == 0.5


@pytest.mark.validate
def test_to_numpyro_runs_there():
    def model():
        numpyro.sample("b", dist.Normal(0.0, 10.0))
        numpyro.sample("a", dist.HalfNormal(0.1).expand([2]).to_event(1))

    trace = mt.sample(mt.from_numpyro(model), num_draws=200, seed=1)
    given = mt.to_numpyro(trace)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        kernel = numpyro.infer.NUTS(model, adapt_step_size=False, **given)
        mcmc = numpyro.infer.MCMC(kernel, num_warmup=0, num_samples=500, progress_bar=False)
        mcmc.run(jax.random.key(0), extra_fields=("accept_prob",))
    assert 0.6 < mcmc.get_extra_fields()["accept_prob"].mean() < 0.98
    b = mcmc.get_samples()["b"]
    assert abs(b.std() / 10 - 1) < 5 / 200**0.5  # of at least 100 independent draws


def test_minibatches_are_refused():
    prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
    target = mt.dataset(prior, likelihood, jnp.arange(10.0), 0.0, batch_size=2)
    with pytest.raises(TypeError, match="leave out batch_size"):
        mt.nuts(target)

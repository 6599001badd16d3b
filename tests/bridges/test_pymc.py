"""from_pymc: PyMC's density, its variables and labels, a posterior with a known answer, errors."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt

pm = pytest.importorskip("pymc")
# PyTensor misses a BLAS for the functions that these tests compile by it
pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

Y = np.array([1.0, 2.0, 4.0])


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        scale = pm.HalfCauchy("scale", 5)
        below = pm.Uniform("below", -1, 10 + scale)
        pm.Dirichlet("shares", np.ones(3), dims="group")
        effect = pm.Normal("effect", below, scale, dims="group")
        pm.Deterministic("total", effect.sum())
        pm.Potential("pull", -(below**2))
        pm.Normal("y", effect, 1.0, observed=pm.Data("data", Y))
    return model


@pytest.fixture(scope="module")
def target(model):
    return mt.from_pymc(model)


def test_density_is_pymc_s(key, model, target):
    position = target.initial + jax.random.normal(key, target.initial.shape)
    free = target.unravel(position)
    point = {model.rvs_to_values[rv].name: np.asarray(free[rv.name]) for rv in model.free_RVs}
    expected = model.compile_logp(mode="FAST_COMPILE")(point)
    np.testing.assert_allclose(jax.jit(target.logdensity)(position), expected, rtol=0, atol=1e-10)


def test_gradient_is_that_of_the_density(key, target):
    position = target.initial + jax.random.normal(key, target.initial.shape)
    gradient = jax.jit(jax.grad(target.logdensity))(position)
    logdensity, h = jax.jit(target.logdensity), 1e-5
    for i, step in enumerate(h * jnp.eye(len(position))):
        slope = (logdensity(position + step) - logdensity(position - step)) / (2 * h)
        np.testing.assert_allclose(gradient[i], slope, rtol=1e-6, atol=1e-6)


def test_draws_hold_constrained_variables_and_deterministics(key, target):
    position = target.initial + jax.random.normal(key, target.initial.shape)
    found = jax.jit(target.constrain)(position)
    assert found.keys() == {"scale", "below", "shares", "effect", "total"}
    assert found["scale"] > 0
    assert -1 < found["below"] < 10 + found["scale"]
    np.testing.assert_allclose(jnp.sum(found["shares"]), 1.0)
    np.testing.assert_allclose(found["total"], jnp.sum(found["effect"]))
    np.testing.assert_allclose(jax.jit(target.unconstrain)(found), position, atol=1e-10)


def test_labels_are_the_model_s(model, target):
    labels = mt.pymc_labels(model)
    assert labels == {
        "dims": {"shares": ["group"], "effect": ["group"]},
        "coords": {"group": ["a", "b", "c"]},
    }
    sampler = mt.hmc(target, step_size=0.05, num_steps=2)
    trace = mt.sample(target, sampler, num_draws=8, num_warmup=0, **labels)
    assert trace["posterior"]["effect"].dims == ("chain", "draw", "group")


@pytest.mark.validate
def test_a_known_posterior():
    """mean ~ N(0, 2^2), y ~ N(mean, 1): N(sum y / (1/4 + 3), 1 / (1/4 + 3)). Three comparisons at 5
    standard errors raise a false alarm with a chance of 2e-6."""
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 2)
        pm.Deterministic("square", mean**2)
        pm.Normal("y", mean, 1, observed=Y)
    target = mt.from_pymc(model)
    trace = mt.sample(target, mt.hmc(target, 0.4, 3), num_draws=2000, num_chains=8)
    draws = trace["posterior"]
    variance = 1 / 3.25
    expected = 7 * variance
    exact = {"mean": expected, "square": expected**2 + variance}
    table = mt.summary(trace, round_to="none")
    for name, value in exact.items():
        assert abs(table.loc[name, "mean"] - value) < 5 * table.loc[name, "mcse_mean"], name
    assert abs(table.loc["mean", "sd"] - variance**0.5) < 5 * table.loc["mean", "mcse_sd"]
    np.testing.assert_allclose(draws["square"], draws["mean"] ** 2, rtol=1e-12)


@pytest.mark.usefixtures("target")
def test_pymc_does_not_set_jax_up_anew():
    """Importing PyMC's JAX sampling changes XLA_FLAGS and the precision; asking for it does not."""
    assert "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "")
    assert jax.config.read("jax_enable_x64")


def discrete():
    pm.Poisson("count", 2.0)


def observed():
    pm.Normal("y", 0.0, 1.0, observed=Y)


def minibatched():
    mean = pm.Normal("mean")
    pm.Normal("y", mean, 1.0, observed=pm.Minibatch(Y, batch_size=2), total_size=3)


CASES = {
    "discrete": (discrete, r"must be continuous, got \['count'\]; sum them out"),
    "nothing free": (observed, "model must have a free variable to sample"),
    "minibatches": (minibatched, r"must use all its data, got minibatches in \['y'\]; give"),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_name_what_is_wrong(case):
    build, message = CASES[case]
    with pm.Model() as model:
        build()
    with pytest.raises(ValueError, match=message):
        mt.from_pymc(model)


def test_something_else_is_refused():
    with pytest.raises(TypeError, match=r"must be a Model, got 3\.0 of type float; build it"):
        mt.from_pymc(3.0)


def test_single_precision_is_refused(model):
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="PyTensor's float64, got float32; set jax"),
    ):
        mt.from_pymc(model)
    assert jax.config.read("jax_enable_x64")


def test_without_pymc_the_extra_is_named(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "pymc.sampling.jax", None)
    with pytest.raises(ImportError, match=r"pip install 'momentem\[pymc\]'"):
        mt.from_pymc(model)


@pytest.mark.validate
def test_log_likelihood_labels_and_pymc_s_own_predictions():
    """PyMC computes the same log likelihood, and predicts from our draws as they are."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        effect = pm.Normal("effect", 0.0, 1.0, dims="group")
        pm.Normal("y", effect, 1.0, observed=pm.Data("data", Y), dims="group")
    target = mt.from_pymc(model)
    trace = mt.sample(target, mt.hmc(target, 0.8, 3), num_draws=50, num_warmup=10)
    assert trace["posterior"]["effect"].dims == ("chain", "draw", "group")
    assert trace["posterior"]["group"].values.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(trace["observed_data"]["y"].sel(group="c"), 4.0)
    ours = mt.log_likelihood(trace, target)["log_likelihood"]["y"]
    effect = trace["posterior"]["effect"].values
    expected = -0.5 * (Y - effect) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)
    theirs = pm.sample_posterior_predictive(
        trace["posterior"].to_dataset(), model=model, progressbar=False, random_seed=1
    )
    y = theirs.posterior_predictive["y"].values
    assert y.shape == (4, 50, 3)
    # y - effect is standard normal: 600 of them, 5 standard errors of mean and variance
    assert abs((y - effect).mean()) < 5 / 600**0.5
    assert abs((y - effect).var() - 1) < 5 * (2 / 600) ** 0.5

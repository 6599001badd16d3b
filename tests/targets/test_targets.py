"""Targets against the densities and parameters they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import momentem as mt
from momentem import constraints


def test_density_over_a_pytree():
    def logdensity(p):
        return -(p["a"] ** 2) - jnp.sum(p["b"]["c"] ** 2)

    target = mt.density(logdensity, {"a": 1.0, "b": {"c": jnp.ones((2, 2))}})
    assert target.initial.shape == (5,)
    assert float(target.logdensity(target.initial)) == -5
    restored = target.constrain(jnp.arange(5.0))
    assert float(restored["a"]) == 0
    np.testing.assert_array_equal(restored["b"]["c"], [[1, 2], [3, 4]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_dtype_is_the_initial_s(dtype):
    target = mt.density(lambda x: -jnp.sum(x**2), jnp.ones(3, dtype))
    assert target.initial.dtype == dtype
    assert target.logdensity(target.initial).dtype == dtype


def test_dataset_is_prior_plus_likelihoods():
    x, y = np.arange(6.0).reshape(3, 2), np.array([1, 0, 1])
    target = mt.dataset(
        log_prior=lambda p: -0.5 * jnp.sum(p["w"] ** 2),
        log_likelihood=lambda p, d: (
            d[1].astype(float) * (d[0] @ p["w"]) - jnp.logaddexp(0.0, d[0] @ p["w"])
        ),
        data=(x, y),
        initial={"w": jnp.array([0.3, -0.2])},
    )
    logits = x @ [0.3, -0.2]
    expected = -0.5 * 0.13 + np.sum(y * logits - np.logaddexp(0, logits))
    np.testing.assert_allclose(target.logdensity(target.initial), expected, rtol=1e-12)


CONSTRAINTS = {
    "positive": (constraints.positive, 1.5),
    "interval": (constraints.interval(-1.0, 3.0), 0.5),
    "unit interval": (constraints.unit_interval, 0.2),
    "greater than": (constraints.greater_than(2.0), 2.5),
    "simplex": (constraints.simplex, [0.2, 0.3, 0.5]),
    "ordered": (constraints.ordered_vector, [-1.0, 0.0, 2.0]),
    "correlation": (constraints.corr_cholesky, [[1.0, 0.0], [0.6, 0.8]]),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constrained_parameters_come_back(name):
    constraint, value = CONSTRAINTS[name]
    target = mt.density(lambda p: -jnp.sum(p["x"] ** 2), {"x": jnp.array(value)}, {"x": constraint})
    np.testing.assert_allclose(target.constrain(target.initial)["x"], value, atol=1e-12)
    anywhere = jax.random.normal(jax.random.key(0), target.initial.shape)
    theta = target.constrain(anywhere)
    assert bool(jnp.all(constraint(theta["x"])))
    np.testing.assert_allclose(target.unconstrain(theta), anywhere, atol=1e-8)


@pytest.mark.parametrize("name", ["positive", "interval", "unit interval", "greater than"])
def test_the_jacobian_keeps_probabilities(name):
    """The unconstrained density integrates to what the constrained one does."""
    constraint, value = CONSTRAINTS[name]
    target = mt.density(lambda p: -p["x"], {"x": value}, {"x": constraint})

    def free(u):
        return float(jnp.exp(target.logdensity(jnp.array([u]))))

    low, high = (
        float(target.constrain(jnp.array([-40.0]))["x"]),
        float(target.constrain(jnp.array([40.0]))["x"]),
    )
    found = integrate.quad(free, -40, 40, limit=200)[0]
    expected = np.exp(-low) - np.exp(-min(high, 700))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_simplex_jacobian_gives_the_dirichlet_s_mean():
    concentration = jnp.array([2.0, 3.0, 5.0])
    target = mt.density(
        lambda p: jnp.sum((concentration - 1) * jnp.log(p["x"])),
        {"x": jnp.array([0.2, 0.3, 0.5])},
        {"x": constraints.simplex},
    )
    grid = jnp.stack(jnp.meshgrid(jnp.linspace(-8, 8, 200), jnp.linspace(-8, 8, 200)), -1).reshape(
        -1, 2
    )
    weights = jnp.exp(jax.vmap(target.logdensity)(grid))
    mean = jnp.sum(weights[:, None] * jax.vmap(target.constrain)(grid)["x"], axis=0) / jnp.sum(
        weights
    )
    np.testing.assert_allclose(mean, concentration / 10, atol=1e-5)


BOWL = mt.density(lambda x: -jnp.sum(x**2), jnp.array([1.0, -2.0]))


@given(st.integers(0, 1000), st.floats(0, 5))
def test_starts_lie_within_the_spread(seed, spread):
    positions = mt.starts(jax.random.key(seed), BOWL, num_chains=5, spread=spread)
    assert positions.shape == (5, 2)
    assert bool((jnp.abs(positions - BOWL.initial[None]) <= spread).all())


def test_unusable_starts_are_drawn_again_closer_by():
    target = mt.density(lambda x: jnp.where(jnp.abs(x) < 0.1, 0.0, jnp.nan) * x, 0.0)
    positions = mt.starts(jax.random.key(0), target, num_chains=20, spread=2.0)
    assert bool((jnp.abs(positions) < 0.1).all())
    assert len(np.unique(positions)) == 20


def test_a_start_that_is_not_finite_is_refused_by_name_and_value():
    target = mt.density(lambda p: -(p["a"] ** 2) + jnp.log(p["tau"]), {"a": 0.5, "tau": -1.0})
    with pytest.raises(ValueError, match=r"log density nan at .*tau = -1\.0"):
        mt.starts(jax.random.key(0), target, 4, spread=0.01)


def test_a_gradient_that_is_not_finite_is_refused_by_name():
    target = mt.density(lambda p: -(p["a"] ** 2) - jnp.sqrt(p["b"]), {"a": 0.5, "b": 0.0})
    with pytest.raises(ValueError, match=r"b = 0\.0 \(gradient -inf\)"):
        mt.starts(jax.random.key(0), target, 4, spread=0.0)

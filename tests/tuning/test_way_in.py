"""Chains arrive from any start, at any scale, in either precision, and do not run into necks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.tuning import way_in

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]


def climb(logdensity, starts, dtype):
    def evaluate(x):
        return jax.value_and_grad(logdensity)(x)

    keys = jax.random.split(jax.random.key(0), len(starts))
    climbs = jax.vmap(lambda key, x: way_in.climb(evaluate, key, x))
    return jax.jit(climbs)(keys, jnp.asarray(starts, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_gaussian_is_found_with_its_covariance(dtype, scale):
    """Condition number 1e8, starts up to 1e4 standard deviations out."""
    sds = scale * np.logspace(-2, 2, 6)
    turn, widths = jnp.asarray(ROTATION.T, dtype), jnp.asarray(sds, dtype)
    mean = jnp.asarray(3 * scale * np.ones(6), dtype)

    def logdensity(x):  # a precision of this condition cannot be written down in float32
        return -0.5 * jnp.sum((turn @ (x - mean) / widths) ** 2)

    places = climb(logdensity, np.random.default_rng(1).normal(size=(4, 6)), dtype)
    whitened = ROTATION.T @ np.asarray(places.root, float) / sds[:, None]
    whitened = whitened.swapaxes(1, 2) @ whitened
    np.testing.assert_allclose(whitened, np.broadcast_to(np.eye(6), whitened.shape), atol=0.3)
    # a draw of a Gaussian in six dimensions is within 6 + 4 sqrt(12) of it but for 1e-3 of them
    distance = -2 * np.asarray(jax.vmap(logdensity)(places.position))
    assert distance.max() < way_in.bulk(6)
    assert int(places.num_gradients.max()) < 100


def raw_regression(p):
    """An intercept of -60,000 and a scale of 20,000, seen from a start at 0 ± 1."""
    heights = np.linspace(58.0, 77.0, 200)
    earnings = 1250 * heights - 62000 + 19000 * np.sin(37.0 * np.arange(200))
    x, y = jnp.asarray(heights, p.dtype), jnp.asarray(earnings, p.dtype)
    residuals = (y - p[0] - p[1] * x) * jnp.exp(-p[2])
    return -0.5 * jnp.sum(residuals**2) - 200 * p[2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_raw_scales_are_no_obstacle(dtype):
    starts = np.random.default_rng(2).uniform(-1, 1, size=(4, 3))
    places = climb(raw_regression, starts, dtype)
    heights = np.asarray(places.logdensity)
    assert np.ptp(heights) < 15  # of D = 3: nobody is left behind
    assert abs(float(places.position[0, 2]) - np.log(19000 / np.sqrt(2))) < 0.5
    assert int(places.num_gradients.max()) < 200


def funnel(x):
    return -(x[0] ** 2) / 18 - 0.5 * jnp.sum((x[1:] * jnp.exp(-x[0] / 2)) ** 2) - 4.5 * x[0]


def test_a_funnel_is_not_run_down():
    """Its density has no maximum: a chain stops where the posterior is."""
    places = climb(funnel, np.random.default_rng(3).normal(size=(8, 10)), np.float64)
    assert np.abs(np.asarray(places.position)[:, 0]).max() < 9  # three standard deviations


def test_a_kink_has_a_scale_too():
    """|x| has no curvature but at 0, and steps uphill find it."""
    places = climb(lambda x: -jnp.sum(jnp.abs(x)) / 1e3, 1e3 * np.ones((4, 3)), np.float64)
    sds = np.sqrt(np.sum(np.asarray(places.root) ** 2, axis=2))
    assert ((sds > 10) & (sds < 1e5)).all()
    assert not np.asarray(places.is_flat).any()


GROUPS = np.repeat(np.arange(12), 10)
EFFECTS = 1e4 + 300 * np.sin(5.0 * np.arange(12))[GROUPS] + 50 * np.cos(7.0 * np.arange(120))


def raw_hierarchy(p):
    """Effects of groups, on the scale of the data: steps are often far too long."""
    mean, log_spread, log_noise, effects = p[0], p[1], p[2], p[3:]
    residuals = jnp.asarray(EFFECTS, p.dtype) - mean - jnp.exp(log_spread) * effects[GROUPS]
    prior = (mean / 1e5) ** 2 + (log_spread / 5) ** 2 + (log_noise / 5) ** 2 + jnp.sum(effects**2)
    return -0.5 * (jnp.sum((residuals * jnp.exp(-log_noise)) ** 2) + prior) - 120 * log_noise


def test_a_step_that_was_far_too_long_leaves_the_other_directions_alone():
    """Otherwise the frame collapses, and one chain of seven comes near the top."""
    places = climb(raw_hierarchy, np.random.default_rng(4).normal(size=(64, 15)), np.float64)
    heights = np.asarray(places.logdensity)
    assert (heights > heights.max() - 25).mean() > 0.3


def test_a_level_direction_is_told():
    places = climb(lambda x: -0.5 * x[0] ** 2 + 0 * x[1], np.ones((4, 2)), np.float64)
    assert np.asarray(places.is_flat).all()


def uneven(x):
    """Two modes, the second with a share of exp(-100)."""
    return jnp.logaddexp(-0.5 * jnp.sum((x - 8) ** 2), -0.5 * jnp.sum((x + 8) ** 2) - 100)


def test_chains_leave_a_negligible_mode_and_no_other():
    starts = np.array([[8.0], [-8.0], [7.0], [-7.0]]) * np.ones(2)
    places = way_in.leave_behind(climb(uneven, starts, np.float64))
    assert (np.asarray(places.position) > 0).all()
    even = climb(lambda x: uneven(x) + 0 * x[0], starts, np.float64)._replace(evidence=jnp.zeros(4))
    assert ((np.asarray(way_in.leave_behind(even).position) > 0)[:, 0] == [1, 0, 1, 0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scales_1e8_apart_are_learnt(dtype):
    """By EM alone, from a mass that is ten times off, in either precision."""
    sds = np.logspace(-4, 4, 5)
    target = mt.density(
        lambda x: -0.5 * jnp.sum((x / sds.astype(x.dtype)) ** 2), jnp.zeros(5, dtype)
    )
    mass = mt.dense_mass(jnp.asarray(np.diag(sds**2) / 100, dtype))
    sampler = mt.monte_carlo_em(
        mt.kernels.rotating_hmc(target),
        mt.Learnt(mass, 0.15),
        mt.m_steps.with_centre(mt.m_steps.fisher()),
        mt.e_steps.constant(400),
        mt.schedules.latest(),
    )
    # from the posterior: chains that are 1e4 sds out may have a first M-step refused
    starts = (sds * np.random.default_rng(0).normal(size=(4, 5))).astype(dtype)
    trace = mt.sample(target, sampler, num_warmup=500, num_draws=10, positions=starts)
    em = trace["em"].to_dataset()
    assert not em["is_refused"].any()
    learnt = np.asarray(em["inverse_mass_diagonal"][-1]) / sds**2
    np.testing.assert_allclose(learnt, 1, atol=0.2)


def test_acceptance_is_for_the_default_alone():
    target = mt.density(lambda x: -0.5 * x**2, initial=0.0)
    with pytest.raises(ValueError, match="acceptance is for the default sampler"):
        mt.sample(target, mt.hmc(target, 1.0, 2), acceptance=0.9)
    with pytest.raises(ValueError, match="acceptance"):
        mt.sample(target, acceptance=1.5)

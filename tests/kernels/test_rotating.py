"""Rotating HMC is exact for a Gaussian, leaves other targets alone, and breaks visibly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels import _rotating as rotating
from momentem.kernels.integrators import PhasePoint, rotating_trajectory
from momentem.testing import invariance

from known_targets import COVARIANCE, FACTOR, PRECISION, skewed, skewed_exact

pytestmark = pytest.mark.usefixtures("quick_compilation")

# as in test_hmc: a false alarm has a chance of at most 5e-3 per target, and the seeds are fixed
THRESHOLD = 1e-3

MEAN = jnp.array([1.0, -2.0])
EXACT_MASS = mt.dense_mass(COVARIANCE)


def gaussian(x):
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def gaussian_exact(key, n):
    return MEAN[None] + jax.random.normal(key, (n, 2)) @ FACTOR.T


def p_value(mass, logdensity=skewed, exact=skewed_exact):
    """With a centre and a mass that are wrong, and visible rejections."""
    kernel = mt.kernels.rotating_hmc(mt.density(logdensity, jnp.zeros(2)))
    learnt = mt.Learnt(mass, jnp.array(0.9), centre=jnp.array([0.3, 0.8]), path=jnp.array(2.7))
    return invariance(jax.random.key(1), kernel, learnt, exact)


DENSE = mt.dense_mass([[0.9, -0.2], [-0.2, 0.4]])


@pytest.mark.parametrize(
    "mass",
    [DENSE, mt.diagonal_mass([1.0, 0.2]), mt.low_rank_mass([1.0, 0.5], [[0.6], [0.8]], [1.5])],
    ids=["dense", "diagonal", "low rank"],
)
@pytest.mark.one_now
def test_leaves_the_target_alone(mass):
    assert p_value(mass) > THRESHOLD


def test_leaves_a_gaussian_alone():
    assert p_value(DENSE, gaussian, gaussian_exact) > THRESHOLD


def sheared(logdensity, mass, centre, step_size, num_steps, point):
    """y is turned with the new x: reversible no more."""
    cos, sin = jnp.cos(step_size), jnp.sin(step_size)
    x, y = mass.unfold(point.position - centre), mass.whiten(point.momentum)
    for _ in range(3):
        value, gradient = jax.value_and_grad(logdensity)(centre + mass.drift(x))
        y = y + step_size / 2 * (mass.whiten(gradient) + x)
        x = cos * x + sin * y
        y = cos * y - sin * x
        value, gradient = jax.value_and_grad(logdensity)(centre + mass.drift(x))
        y = y + step_size / 2 * (mass.whiten(gradient) + x)
    return PhasePoint(centre + mass.drift(x), mass.colour(y), value, gradient)


def unwhitened(logdensity, mass, centre, step_size, num_steps, point):
    """M for M^-1 on the way back."""
    end = rotating_trajectory(logdensity, mass, centre, step_size, num_steps, point)
    return end._replace(momentum=mass.whiten(mass.whiten(end.momentum)))


@pytest.mark.parametrize("broken", [sheared, unwhitened])
@pytest.mark.one_now
def test_broken_rotations_are_caught(broken, monkeypatch):
    monkeypatch.setattr(rotating, "rotating_trajectory", broken)
    assert p_value(DENSE) < 1e-6


def start_at(logdensity, position, momentum):
    return PhasePoint(position, momentum, *jax.value_and_grad(logdensity)(position))


def energy(point, mass):
    return float(mass.kinetic_energy(point.momentum) - point.logdensity)


POINT = (jnp.array([0.4, 0.9]), jnp.array([-0.3, 0.7]))


def test_a_gaussian_is_solved_exactly_by_any_step():
    start = start_at(gaussian, *POINT)
    end = rotating_trajectory(gaussian, EXACT_MASS, MEAN, jnp.array(1.3), 5, start)
    assert energy(end, EXACT_MASS) == pytest.approx(energy(start, EXACT_MASS), abs=1e-12)
    quarter = rotating_trajectory(gaussian, EXACT_MASS, MEAN, jnp.array(np.pi / 2), 1, start)
    turned = EXACT_MASS.drift(EXACT_MASS.whiten(start.momentum))
    np.testing.assert_allclose(quarter.position, MEAN + turned, atol=1e-12)


def slope(trajectory):
    """Of the energy error in the step size, at a path of 1."""
    errors, steps = [], [8, 16, 32]
    for num in steps:
        start = start_at(skewed, *POINT)
        end = trajectory(skewed, DENSE, jnp.zeros(2), jnp.array(1 / num), num, start)
        errors.append(abs(energy(end, DENSE) - energy(start, DENSE)))
    return np.polyfit(np.log(1 / np.array(steps)), np.log(errors), 1)[0]


def without_rest(logdensity, mass, centre, step_size, num_steps, point):
    """The Gaussian's force is counted twice."""
    doubled = lambda x: logdensity(x) - 0.5 * jnp.sum(mass.unfold(x - centre) ** 2)  # noqa: E731
    point = point._replace(gradient=jax.grad(doubled)(point.position))
    end = rotating_trajectory(doubled, mass, centre, step_size, num_steps, point)
    return end._replace(logdensity=logdensity(end.position))


def test_energy_error_is_of_second_order():
    assert slope(rotating_trajectory) == pytest.approx(2, abs=0.25)
    assert slope(without_rest) < 0.5


def test_is_reversible():
    start = start_at(skewed, *POINT)
    run = lambda point: rotating_trajectory(  # noqa: E731
        skewed, DENSE, jnp.array([0.3, 0.8]), jnp.array(0.4), 7, point
    )
    end = run(start)
    back = run(end._replace(momentum=-end.momentum))
    np.testing.assert_allclose(back.position, start.position, atol=1e-11)
    np.testing.assert_allclose(back.momentum, -start.momentum, atol=1e-11)


def test_chains_share_a_path_of_the_right_length():
    target = mt.density(skewed, jnp.zeros(2))
    learnt = mt.Learnt(DENSE, 0.2, centre=jnp.zeros(2), path=1.5)
    trace = mt.sample(target, mt.fixed(mt.kernels.rotating_hmc(target), learnt), num_warmup=0)
    stats = trace["sample_stats"].to_dataset()
    lengths = (stats["n_steps"] * stats["step_size"]).values
    assert (lengths == lengths[:1]).all()
    assert lengths.min() == pytest.approx(1.5 * 0.7, abs=0.01)
    assert lengths.max() == pytest.approx(1.5 * 1.3, abs=0.01)
    assert (stats["step_size"] <= 0.2).all()


def test_centre_and_path_have_defaults():
    kernel = mt.kernels.rotating_hmc(mt.density(skewed, jnp.array([0.1, 0.2])))
    learnt = kernel.complete(mt.Learnt(DENSE, 0.2))
    np.testing.assert_array_equal(learnt.centre, [0.1, 0.2])
    assert float(learnt.path) == np.pi / 2

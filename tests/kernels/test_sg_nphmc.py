"""Anchored SG-NPHMC: its step is the one derived, and it reaches R3 through noisy gradients."""

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.integrate import solve_ivp

import momentem as mt
from momentem.kernels import sg_nphmc
from momentem.kernels.langevin import ThermostatState
from momentem.kernels.nose import draw_thermostat

from noisy_targets import (
    DIM,
    MASS,
    NO_NOISE,
    PRECISION,
    fokker_planck_residual,
    learnt_for,
    moments_on_r3,
    noisy_gaussian,
    potential,
    random_points,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

module = import_module("momentem.kernels._sg_nphmc")  # `momentem.kernels.sg_nphmc` is the factory

NO_FRICTION = 1e-30  # O then changes nothing that a float64 can hold
# gradient noise of B = eps V / 2 = .5 I on average at eps = .05, with two shapes
ISOTROPIC = 20 * np.eye(DIM)
LIKE_MASS = 20 * MASS / (np.trace(MASS) / DIM)
ABSORBED = 0.5 / (np.trace(MASS) / DIM)  # b, if B = b M


def thermostatted(friction, missed, degrees=DIM):
    """Drift, diffusion and energy of the module docstring's SDE over (theta, pi, q), Bhat = 0."""
    inverse, Q = jnp.asarray(np.linalg.inv(MASS)), 2.0

    def split(z):
        return z[:DIM], z[DIM:-1], z[-1]

    def drift(z):
        theta, pi, q = split(z)
        force = -jax.grad(potential)(theta) - (q / Q + friction) * pi
        return jnp.concatenate([inverse @ pi, force, (pi @ inverse @ pi - degrees)[None]])

    def diffusion(z):
        del z
        matrix = jnp.zeros((2 * DIM + 1,) * 2)
        return matrix.at[DIM:-1, DIM:-1].set((friction + missed) * jnp.asarray(MASS))

    def energy(z):
        theta, pi, q = split(z)
        return potential(theta) + pi @ inverse @ pi / 2 + (q - Q * missed) ** 2 / (2 * Q)

    return drift, diffusion, energy


def test_the_sde_keeps_the_target():
    points = random_points(2 * DIM + 1)
    assert fokker_planck_residual(*thermostatted(1.0, 0.7), points) < 1e-10
    assert fokker_planck_residual(*thermostatted(1.0, 0.7, degrees=DIM + 1), points) > 0.1


def skewed_target(offset=0.0, noise=0.0):
    """exp(-potential + offset), whose minibatches tilt it: L_w = L + w.theta."""
    zeros = jnp.zeros(DIM)
    base = noisy_gaussian(PRECISION, NO_NOISE)

    def noisy_gradient(batch, position):
        def tilted(x):
            return offset - potential(x) + noise * jnp.vdot(batch[0], x)

        value, gradient = jax.value_and_grad(tilted)(position)
        return mt.NoisyGradient(gradient, zeros, zeros, value)

    return base._replace(
        logdensity=Partial(lambda x: offset - potential(x)), noisy_gradient=Partial(noisy_gradient)
    )


def start(Q=2.0):
    theta, y = jnp.array([0.7, -0.4, 0.9]), jnp.array([0.5, 1.2, -0.8])
    learnt = learnt_for(NO_NOISE, 0.05).replace(thermostat_mass=jnp.array(Q))
    return ThermostatState(theta, y, jnp.array(0.6)), learnt


def test_the_step_is_that_of_the_derivation():
    """maths 6.2, line by line, with a minibatch that is seen at both ends."""
    state, learnt = start()
    eps, Q, g, inverse = 0.05, 2.0, DIM, np.linalg.inv(MASS)
    target = skewed_target(noise=3.0)
    batch = jax.random.normal(jax.random.key(4), (1, 2, DIM))
    fixed = target._replace(batches=Partial(lambda key, number: batch))
    found, _ = sg_nphmc(fixed, 1, NO_FRICTION).step(jax.random.key(0), state, learnt)

    theta, q = np.asarray(state.position), 0.6
    pi = np.asarray(learnt.mass.colour(state.whitened))
    first = target.noisy_gradient(batch[0], jnp.asarray(theta))
    p = pi + eps / 2 * np.asarray(first.gradient)
    K0, K = pi @ inverse @ pi / 2, p @ inverse @ p / 2
    c = q + eps / 2 * (K + K0 + q**2 / (2 * Q) - g)
    half_q = 2 * c / (1 + np.sqrt(1 + eps * c / Q))
    u = eps * half_q / (2 * Q)
    s = (1 + u) / (1 - u)
    theta = theta + eps * inverse @ p / (1 + u)
    second = target.noisy_gradient(batch[0], jnp.asarray(theta))
    force = float(second.logdensity - first.logdensity) + K0 + q**2 / (2 * Q) + K / s**2
    force = force - half_q**2 / (2 * Q) - g * (1 + np.log(s))
    pi = p / s + eps / 2 * np.asarray(second.gradient)

    np.testing.assert_allclose(found.position, theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(learnt.mass.colour(found.whitened), pi, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.thermostat, half_q + eps / 2 * force, rtol=0, atol=1e-13)


def test_a_constant_in_the_log_density_changes_nothing():
    state, learnt = start()
    key = jax.random.key(1)
    ours, _ = sg_nphmc(skewed_target(), 20).step(key, state, learnt)
    theirs, _ = sg_nphmc(skewed_target(offset=1e4), 20).step(key, state, learnt)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def nose_hoover(time, Q):
    """The exact flow, by a Runge-Kutta method of order eight."""
    state, learnt = start(Q)
    inverse, gradient = np.linalg.inv(MASS), jax.jit(jax.grad(potential))

    def flow(_, z):
        theta, pi, q = z[:DIM], z[DIM:-1], z[-1]
        force = -np.asarray(gradient(theta)) - q / Q * pi
        return np.concatenate([inverse @ pi, force, [pi @ inverse @ pi - DIM]])

    pi = learnt.mass.colour(state.whitened)
    begin = np.concatenate([state.position, pi, [state.thermostat]])
    return solve_ivp(flow, (0, time), begin, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]


def test_second_order_without_noise():
    time, errors = 2.0, []
    exact = nose_hoover(time, Q=2.0)
    state, learnt = start()
    for step_size in (0.02, 0.01, 0.005):
        kernel = sg_nphmc(skewed_target(), round(time / step_size), NO_FRICTION)
        end, _ = kernel.step(
            jax.random.key(0), state, learnt.replace(step_size=jnp.array(step_size))
        )
        pi = learnt.mass.colour(end.whitened)
        errors.append(np.abs(np.concatenate([end.position, pi, [end.thermostat]]) - exact).max())
    ratios = np.array(errors[:-1]) / errors[1:]
    assert np.abs(ratios - 4).max() < 0.1, ratios


def tilted(target):
    """R3 as minibatches show it: L_w is tilted by the noise of its gradient, L_w = L + n.theta."""

    def noisy_gradient(batch, position):
        noisy = target.noisy_gradient(batch, position)
        noise = noisy.gradient - jax.grad(target.logdensity)(position)
        return noisy._replace(logdensity=noisy.logdensity + jnp.vdot(noise, position))

    return target._replace(noisy_gradient=Partial(noisy_gradient))


def anchored(target, num_steps):
    return sg_nphmc(tilted(target), num_steps)


def refreshed(fresh):
    """sg_nphmc with something drawn anew before every draw, of twenty steps."""

    def make(target, num_steps):
        kernel = anchored(target, 4 * num_steps)

        def step(key, state, learnt):
            fresh_key, step_key = jax.random.split(key)
            return kernel.step(step_key, fresh(fresh_key, state, learnt), learnt)

        return kernel._replace(step=Partial(step))

    return make


def redraw_momentum(key, state, learnt):
    del learnt
    return state._replace(whitened=jax.random.normal(key, state.whitened.shape))


def redraw_both(key, state, learnt):
    momentum_key, thermostat_key = jax.random.split(key)
    state = redraw_momentum(momentum_key, state, learnt)
    return state._replace(thermostat=draw_thermostat(thermostat_key, learnt.thermostat_mass))


# Tolerances: the bias that maths 6.3 reports at this step size, and 5 standard errors from between
# the chains, so that a false alarm has a chance below 1e-5.


@pytest.mark.validate
def test_reaches_r3_without_noise():
    found = moments_on_r3(anchored, NO_NOISE, 0.05, num_chains=512, time=60.0)
    assert found.frob < 0.003 + 5 * found.se, found
    assert abs(found.xi) < 0.01 * DIM + 5 * found.xi_se, found
    assert abs(found.xi_variance / DIM - 1) < 0.1, found
    assert found.divergences == 0


def through_known_noise(make):
    return moments_on_r3(make, ISOTROPIC, 0.05, believed=1.0, num_chains=1024, time=100.0)


@pytest.mark.validate
def test_reaches_r3_through_noise_that_is_known():
    found = through_known_noise(anchored)
    assert found.frob < 0.0126 + 5 * found.se, found
    assert abs(found.xi / DIM) < 0.02 + 5 * found.xi_se / DIM, found
    assert found.divergences == 0


@pytest.mark.validate
def test_a_log_density_that_does_not_match_its_gradient_is_seen():
    """L1 - L0 then lacks n.(theta' - theta), of mean (eps^2 / 2) tr(M^-1 V): q/Q settles at -.06
    and not -.02, and the covariance is off by three times as much (.040, not .014)."""
    found = through_known_noise(sg_nphmc)
    assert found.xi / DIM < -0.04, found


@pytest.mark.validate
def test_noise_of_another_shape_is_not_absorbed():
    found = moments_on_r3(anchored, ISOTROPIC, 0.05, believed=0.0, num_chains=256, time=60.0)
    assert found.frob - 5 * found.se > 0.25, found


@pytest.mark.validate
def test_the_thermostat_absorbs_noise_shaped_like_the_mass():
    found = moments_on_r3(refreshed(redraw_momentum), LIKE_MASS, 0.05, num_chains=1024, time=25.0)
    assert found.frob < 0.012 + 5 * found.se, found
    # the thermostat reads the temperature in mid-step, hence a bias of about eps b
    assert abs(found.xi / DIM - ABSORBED) < 0.05 * ABSORBED + 5 * found.xi_se / DIM, found


@pytest.mark.validate
def test_a_thermostat_drawn_anew_absorbs_nothing():
    found = moments_on_r3(refreshed(redraw_both), LIKE_MASS, 0.05, num_chains=1024, time=25.0)
    assert 0.08 < found.frob < 0.16, found


def no_difference(evaluate):
    return lambda position: (jnp.zeros(()), evaluate(position)[1])


def twice_the_difference(evaluate):
    return lambda position: (2 * evaluate(position)[0], evaluate(position)[1])


@pytest.mark.parametrize("wrong", [no_difference, twice_the_difference])
def test_sabotaged_steps_lose_their_order(wrong, monkeypatch):
    right = module.generalised_leapfrog

    def leapfrog(evaluate, *rest):
        return right(wrong(evaluate), *rest)

    monkeypatch.setattr(module, "generalised_leapfrog", leapfrog)
    with pytest.raises(AssertionError):
        test_second_order_without_noise()


@pytest.mark.parametrize("thermostat", [-1e4, 1e4, jnp.nan], ids=["no root", "u >= 1", "nan"])
@pytest.mark.one_now
def test_a_divergence_is_flagged_undone_and_left_behind(thermostat):
    state, learnt = start()
    kernel = jax.jit(sg_nphmc(skewed_target(), 5).step)
    lost = state._replace(thermostat=jnp.array(float(thermostat)))
    again, info = kernel(jax.random.key(3), lost, learnt)
    assert bool(info.stats["diverging"])
    assert bool((again.position == state.position).all())
    assert bool((again.whitened != state.whitened).all())
    for array in (*again, info.momentum, info.gradient, info.noise, info.stats["thermostat"]):
        assert bool(jnp.isfinite(array).all())
    _, info = kernel(jax.random.key(4), again, learnt)
    assert not bool(info.stats["diverging"])


def test_bad_arguments():
    target = noisy_gaussian(PRECISION, NO_NOISE)
    with pytest.raises(ValueError, match="friction must be finite and > 0"):
        sg_nphmc(target, 5, friction=-1.0)
    with pytest.raises(ValueError, match="num_steps"):
        sg_nphmc(target, 0)
    with pytest.raises(TypeError, match="StochasticTarget"):
        sg_nphmc(mt.density(lambda x: -0.5 * x @ x, jnp.zeros(2)), 5)

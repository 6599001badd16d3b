"""SGHMC's stationary law, exactly: Fokker-Planck, and the Lyapunov equation of its actual step."""

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov

import momentem as mt
from momentem.kernels.langevin import LangevinState

from noisy_targets import (
    DIM,
    MASS,
    NO_NOISE,
    PRECISION,
    SIGMA,
    WHITEN,
    broken_aboba,
    fokker_planck_residual,
    frobenius,
    learnt_for,
    moments_on_r3,
    noisy_gaussian,
    potential,
    random_points,
    spd,
    step_map,
)

module = import_module("momentem.kernels._sghmc")  # `momentem.kernels.sghmc` is the factory

A = 1.3  # injected friction
NOISE = spd(2, [1.0, 5.0, 20.0])  # V


# --- the dynamics -----------------------------------------------------------------------------


def sde(B, Bhat):
    """dtheta = M^-1 p dt,  dp = [grad L - C M^-1 p] dt + N(0, 2 (C - Bhat + B) dt),
    C = A M + Bhat."""
    C, M_I = A * MASS + Bhat, np.linalg.inv(MASS)

    def drift(z):
        theta, p = z[:DIM], z[DIM:]
        return jnp.concatenate([M_I @ p, -jax.grad(potential)(theta) - C @ M_I @ p])

    def diffusion(z):
        del z
        zeros = jnp.zeros((DIM, DIM))
        return jnp.block([[zeros, zeros], [zeros, jnp.asarray(C - Bhat + B)]])

    def energy(z):
        theta, p = z[:DIM], z[DIM:]
        return potential(theta) + p @ M_I @ p / 2

    return drift, diffusion, energy


@pytest.mark.parametrize("B", [NO_NOISE, spd(4, [0.1, 1.0, 3.0])], ids=["exact", "noisy"])
def test_dynamics_leave_the_target_invariant(B):
    assert fokker_planck_residual(*sde(B, Bhat=B), random_points(2 * DIM)) < 1e-10


@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_dynamics_with_the_wrong_noise_do_not(factor):
    B = spd(4, [0.1, 1.0, 3.0])
    assert fokker_planck_residual(*sde(B, Bhat=factor * B), random_points(2 * DIM)) > 1


# --- the step ---------------------------------------------------------------------------------


def linear_map(monkeypatch, target, learnt, friction=A, num_steps=1, is_held=False):
    """(transition, noise covariance) of the kernel's step in (theta, y), by autodiff: it is
    linear."""

    def make(target, num_steps):
        return mt.kernels.sghmc(target, num_steps, friction)

    step = step_map(monkeypatch, make, target, learnt, num_steps, is_held)
    dim = len(target.initial)
    shape = (2, dim) if is_held else (num_steps, 2, dim)
    sizes = (2 * dim, num_steps * dim, int(np.prod(shape)))

    def flat(inputs):
        z, normals, minibatch = jnp.split(inputs, np.cumsum(sizes)[:-1])
        state = LangevinState(z[:dim], z[dim:])
        state = step(state, normals.reshape(num_steps, dim), minibatch.reshape(shape))
        return jnp.concatenate([state.position, state.whitened])

    point = jax.random.normal(jax.random.key(8), (sum(sizes),))
    jacobian = jax.jacfwd(flat)(jnp.zeros(sum(sizes)))
    np.testing.assert_allclose(flat(point), jacobian @ point, rtol=1e-9, atol=1e-9)  # linear
    transition, noise = np.asarray(jacobian[:, : 2 * dim]), np.asarray(jacobian[:, 2 * dim :])
    return transition, noise @ noise.T


def stationary(monkeypatch, noise, step_size, believed=1.0, **options):
    """The exact stationary covariance of (theta, y) on R3, its theta part whitened by Sigma."""
    target = noisy_gaussian(PRECISION, noise)
    learnt = learnt_for(noise, step_size, believed=believed)
    transition, added = linear_map(monkeypatch, target, learnt, **options)
    assert np.abs(np.linalg.eigvals(transition)).max() < 1
    covariance = solve_discrete_lyapunov(transition, added)
    return WHITEN @ covariance[:DIM, :DIM] @ WHITEN, covariance[DIM:, DIM:]


def test_step_is_that_of_the_dynamics(monkeypatch):
    """Drift and diffusion of one step, over eps, tend to those of the SDE above, with B held."""
    eps, B = 1e-6, spd(4, [0.1, 1.0, 3.0])
    V = 2 * B / eps
    learnt = learnt_for(V, eps)
    transition, added = linear_map(monkeypatch, noisy_gaussian(PRECISION, V), learnt)
    F = np.asarray(learnt.mass.factor)
    frame = np.block([[np.eye(DIM), NO_NOISE], [NO_NOISE, F]])  # (theta, y) -> (theta, p)
    drift = frame @ (transition - np.eye(2 * DIM)) @ np.linalg.inv(frame) / eps
    M_I, C = np.linalg.inv(MASS), A * MASS + B
    np.testing.assert_allclose(
        drift, np.block([[NO_NOISE, M_I], [-PRECISION, -C @ M_I]]), atol=1e-3
    )
    diffusion = frame @ added @ frame.T / (2 * eps)
    expected = np.block([[NO_NOISE, NO_NOISE], [NO_NOISE, A * MASS + B]])
    np.testing.assert_allclose(diffusion, expected, atol=1e-3)


@pytest.mark.parametrize("num_steps", [1, 7])
def test_exact_gradients_give_the_exact_covariance(num_steps, monkeypatch):
    whitened, momenta = stationary(monkeypatch, NO_NOISE, 0.2, num_steps=num_steps)
    np.testing.assert_allclose(whitened, np.eye(DIM), atol=1e-10)
    assert frobenius(momenta) < 0.1  # of second order in eps


def test_known_noise_is_corrected(monkeypatch):
    assert frobenius(stationary(monkeypatch, NOISE, 0.05)[0]) < 0.003


def test_correction_is_of_second_order(monkeypatch):
    errors = [frobenius(stationary(monkeypatch, NOISE, eps)[0]) for eps in (0.1, 0.05, 0.025)]
    assert errors[0] > 3.5 * errors[1] > 3.5**2 * errors[2]


@pytest.mark.parametrize(("believed", "low", "high"), [(0.0, 1.0, 1.17), (2.0, 0.87, 0.99)])
def test_a_wrong_noise_estimate_is_wrong_as_the_dynamics_are(believed, low, high, monkeypatch):
    """Against the SDE's own covariance, by the continuous Lyapunov equation."""
    eps = 0.025
    B, Bhat, M_I = eps / 2 * NOISE, believed * eps / 2 * NOISE, np.linalg.inv(MASS)
    drift = np.block([[NO_NOISE, M_I], [-PRECISION, -(A * MASS + Bhat) @ M_I]])
    diffusion = np.block([[NO_NOISE, NO_NOISE], [NO_NOISE, A * MASS + B]])
    covariance = solve_continuous_lyapunov(drift, -2 * diffusion)
    expected = WHITEN @ covariance[:DIM, :DIM] @ WHITEN
    found = stationary(monkeypatch, NOISE, eps, believed=believed)[0]
    np.testing.assert_allclose(found, expected, atol=2e-3)
    eigenvalues = np.linalg.eigvalsh(found)
    assert eigenvalues[0] == pytest.approx(low, abs=0.02)
    assert eigenvalues[-1] == pytest.approx(high, abs=0.02)


@pytest.mark.parametrize(("believed", "ratio"), [(0.0, 1.25), (1.0, 1.0), (2.0, 0.75)])
def test_isotropic_law(believed, ratio, monkeypatch):
    """Cov(theta) = (1 + (B - Bhat) / C) Sigma, here with C = 2, B = 1/2 and M = Sigma = I."""
    eps, B, C = 0.005, 0.5, 2.0
    V = 2 * B / eps * np.eye(DIM)
    learnt = learnt_for(V, eps, mass=np.eye(DIM), believed=believed)
    target = noisy_gaussian(np.eye(DIM), V)
    friction = C - believed * B
    covariance = solve_discrete_lyapunov(*linear_map(monkeypatch, target, learnt, friction))
    np.testing.assert_allclose(covariance[:DIM, :DIM], ratio * np.eye(DIM), atol=1e-3)


@pytest.mark.validate
def test_a_minibatch_held_for_many_steps_multiplies_the_noise(monkeypatch):
    """Which is why the kernel draws a fresh one for every step."""
    V = spd(2, [1.0, 2.0, 4.0])
    options = {"num_steps": 10, "is_held": True, "friction": 1.0}
    fresh = stationary(monkeypatch, V, 0.0125, num_steps=10, friction=1.0)[0]
    held = stationary(monkeypatch, V, 0.0125, **options)[0]
    corrected = stationary(monkeypatch, V, 0.0125, believed=10.0, **options)[0]
    assert frobenius(fresh) < 1e-3
    assert np.linalg.eigvalsh(held)[-1] > 1.25
    assert frobenius(corrected) < 0.01


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.validate
def test_bulk_aboba_is_the_plain_one(num_steps, monkeypatch):
    expected = stationary(monkeypatch, NOISE, 0.1, num_steps=num_steps)
    monkeypatch.setattr(module, "aboba", broken_aboba)
    found = stationary(monkeypatch, NOISE, 0.1, num_steps=num_steps)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


def one_sided_kick(monkeypatch):
    monkeypatch.setattr(module, "aboba", partial(broken_aboba, kind="one-sided"))


def mass_for_its_inverse(monkeypatch):
    monkeypatch.setattr(mt.DenseMass, "drift", lambda mass, y: mass.colour(y))


def other_root(monkeypatch):
    """F^-1 y in place of F^-T y."""
    monkeypatch.setattr(mt.DenseMass, "drift", lambda mass, y: mass.root.T @ y)


def no_injected_noise(monkeypatch):
    monkeypatch.setattr(jnp, "expm1", jnp.zeros_like)


def noise_of_half_a_step(monkeypatch):
    expm1 = jnp.expm1
    monkeypatch.setattr(jnp, "expm1", lambda x: expm1(x / 2))


@pytest.mark.parametrize(
    "sabotage",
    [one_sided_kick, mass_for_its_inverse, other_root, no_injected_noise, noise_of_half_a_step],
)
def test_a_sabotaged_step_is_caught(sabotage, monkeypatch):
    with monkeypatch.context() as patch:
        sabotage(patch)
        assert frobenius(stationary(patch, NO_NOISE, 0.2)[0]) > 0.05


def test_the_wrong_sign_of_the_gradient_runs_away(monkeypatch):
    """The paper's Algorithm 3 as printed samples exp(-L)."""
    monkeypatch.setattr(module, "aboba", partial(broken_aboba, kind="sign"))
    target = noisy_gaussian(PRECISION, NO_NOISE)
    transition, _ = linear_map(monkeypatch, target, learnt_for(NO_NOISE, 0.05))
    assert np.abs(np.linalg.eigvals(transition)).max() > 1.01


@pytest.mark.parametrize("mass", ["diagonal", "low rank"])
def test_every_mass_gives_the_exact_covariance(mass, monkeypatch):
    made = {
        "diagonal": mt.diagonal_mass([0.3, 1.0, 2.0]),
        "low rank": mt.low_rank_mass([1.0, 0.5, 0.8], [[0.6], [0.8], [0.0]], [2.5]),
    }[mass]
    direction = np.asarray(made.colour(jnp.eye(DIM)[0]))  # the first of the mass's frame
    for eps, share, tolerance in ((0.2, 0.0, 1e-10), (0.05, 5.0, 0.003)):
        learnt = mt.Learnt(made, jnp.array(eps), noise=jnp.array([share, 0.0, 0.0]))
        target = noisy_gaussian(PRECISION, share * np.outer(direction, direction))
        covariance = solve_discrete_lyapunov(*linear_map(monkeypatch, target, learnt))
        whitened = WHITEN @ covariance[:DIM, :DIM] @ WHITEN
        assert frobenius(whitened) < tolerance


# --- the kernel as it is run ------------------------------------------------------------------


@pytest.mark.validate
def test_draws_agree_with_the_lyapunov_solution(monkeypatch):
    """The keys and minibatches that the tests above replace: noise left uncorrected on purpose."""
    expected = stationary(monkeypatch, NOISE, 0.05, believed=0.0, num_steps=5)[0]

    def make(target, num_steps):
        return mt.kernels.sghmc(target, num_steps, A)

    found = moments_on_r3(make, NOISE, 0.05, believed=0.0, num_chains=512, time=80.0)
    assert found.se < 0.02
    assert np.linalg.norm(found.whitened - expected) / np.sqrt(DIM) < 5 * found.se
    assert found.frob > 0.2
    assert found.divergences == 0


@pytest.mark.validate
def test_kinetic_temperature_is_one_with_the_noise_known_and_above_it_without():
    kernel = mt.kernels.sghmc(noisy_gaussian(PRECISION, NOISE), 1000, 1.0)
    temperatures = []
    for believed in (1.0, 0.0):
        learnt = learnt_for(NOISE, 0.05, believed=believed)
        state = kernel.init(jax.random.key(0), jnp.zeros(DIM), learnt)
        keys = jax.random.split(jax.random.key(1), 32)
        stats = jax.jit(jax.vmap(lambda key: kernel.step(key, state, learnt)[1].stats))(keys)  # noqa: B023
        temperatures.append(float(stats["kinetic_temperature"].mean()))
        np.testing.assert_allclose(stats["bias_scale"], 0.05**2 / 2 * float(learnt.noise.max()))
    assert temperatures[0] == pytest.approx(1, abs=0.02)
    assert temperatures[1] > 1.15


def test_a_divergence_is_undone_and_told():
    kernel = mt.kernels.sghmc(noisy_gaussian(PRECISION, NO_NOISE), 200, 0.01)
    learnt = learnt_for(NO_NOISE, 5.0)
    state = kernel.init(jax.random.key(0), jnp.ones(DIM), learnt)
    after, info = kernel.step(jax.random.key(1), state, learnt)
    assert bool(info.stats["diverging"])
    np.testing.assert_array_equal(after.position, state.position)
    assert not np.allclose(after.whitened, state.whitened)
    for leaf in (*after, info.position, info.momentum, info.gradient, info.noise):
        assert bool(jnp.isfinite(leaf).all())


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"friction": 0.0}, {"friction": -1.0}])
def test_bad_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        mt.kernels.sghmc(noisy_gaussian(PRECISION, NOISE), **({"num_steps": 3} | wrong))


def test_covariance_of_r3_is_as_stated():
    np.testing.assert_allclose(np.linalg.eigvalsh(SIGMA), [0.5, 1.0, 2.0])

"""Thermostatted dynamics: Fokker-Planck, one step against them, and long runs where noise must
be absorbed."""

from functools import cache, partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels._ccadl import CCAdLState
from momentem.kernels.langevin import ThermostatState, thermal

from noisy_targets import (
    DIM,
    MASS,
    NO_NOISE,
    PRECISION,
    broken_aboba,
    fokker_planck_residual,
    learnt_for,
    logistic,
    moments_on_r3,
    noisy_gaussian,
    posterior_moments,
    potential,
    random_points,
    root,
    spd,
    stationary_moments,
    step_map,
)

module = import_module("momentem.kernels._sgnht")  # `momentem.kernels.sgnht` is the factory

A = 1.0  # injected friction
MU = 2.0  # thermostat mass
EYE = np.eye(DIM)

# In the frame y = F^-1 p, in which p' M^-1 p = |y|^2 and the minibatch noise is W = F^-1 B F^-T
F = np.linalg.cholesky(MASS)
F_I = np.linalg.inv(F)


# --- the dynamics -----------------------------------------------------------------------------
#
# dtheta = F^-T y dt,   dy = [F^-1 grad L - X y] dt + N(0, 2 A dt) + N(0, 2 W dt)


def moved(theta, y, friction):
    return F_I.T @ y, -F_I @ jax.grad(potential)(theta) - friction @ y


def split(z):
    return z[:DIM], z[DIM : 2 * DIM], z[2 * DIM :]


def scalar(b, degrees=DIM):
    """sgnht: X = xi I, dxi = (|y|^2 - D) / mu dt, W = b I."""

    def drift(z):
        theta, y, (xi,) = split(z)
        heating = (y @ y - degrees) / MU
        return jnp.concatenate([*moved(theta, y, xi * EYE), heating[None]])

    def diffusion(z):
        del z
        return jax.scipy.linalg.block_diag(NO_NOISE, (A + b) * EYE, jnp.zeros((1, 1)))

    def energy(z):
        theta, y, (xi,) = split(z)
        return potential(theta) + y @ y / 2 + MU * (xi - A - b) ** 2 / 2

    return drift, diffusion, energy


def of_another_shape(W):
    """sgnht with noise that is not a multiple of M."""
    drift, _, _ = scalar(0.0)
    _, _, energy = scalar(np.trace(W) / DIM)

    def diffusion(z):
        del z
        return jax.scipy.linalg.block_diag(NO_NOISE, A * EYE + W, jnp.zeros((1, 1)))

    return drift, diffusion, energy


def matrix(W):
    """matrix_sgnht: X a matrix, dX = (y y' - I) / mu dt, any constant W."""

    def drift(z):
        theta, y, x = split(z)
        heating = (jnp.outer(y, y) - EYE) / MU
        return jnp.concatenate([*moved(theta, y, x.reshape(DIM, DIM)), heating.ravel()])

    def diffusion(z):
        del z
        return jax.scipy.linalg.block_diag(NO_NOISE, A * EYE + W, jnp.zeros((9, 9)))

    def energy(z):
        theta, y, x = split(z)
        return potential(theta) + y @ y / 2 + MU * jnp.sum((x - (A * EYE + W).ravel()) ** 2) / 2

    return drift, diffusion, energy


def controlled(believed, b):
    """ccadl: X = xi I + What(theta), dxi as in sgnht, noise W(theta) + b I that depends on
    theta."""
    one, two = spd(5, [0.2, 1.0, 2.0]), spd(6, [0.1, 0.3, 1.0])

    def W(theta):
        return one + jnp.tanh(theta[0]) ** 2 * two

    def drift(z):
        theta, y, (xi,) = split(z)
        heating = (y @ y - DIM) / MU
        friction = xi * EYE + believed * W(theta)
        return jnp.concatenate([*moved(theta, y, friction), heating[None]])

    def diffusion(z):
        noise = (A + b) * EYE + W(z[:DIM])
        return jax.scipy.linalg.block_diag(NO_NOISE, noise, jnp.zeros((1, 1)))

    return drift, diffusion, scalar(b)[2]


def literal():
    """The paper's Algorithm 2: friction xi M^-1 p, noise 2 A I on p, dxi = (p' M^-1 p - D) / mu."""
    M_I = np.linalg.inv(MASS)

    def drift(z):
        theta, p, (xi,) = split(z)
        force = -jax.grad(potential)(theta) - xi * M_I @ p
        return jnp.concatenate([M_I @ p, force, ((p @ M_I @ p - DIM) / MU)[None]])

    def energy(z):
        theta, p, (xi,) = split(z)
        return potential(theta) + p @ M_I @ p / 2 + MU * (xi - A) ** 2 / 2

    return drift, scalar(0.0)[1], energy


NOISE_SHARE = spd(4, [0.1, 1.0, 3.0])  # W


@pytest.mark.parametrize(
    ("sde", "num_thermostats"),
    [
        (scalar(0.0), 1),
        (scalar(0.7), 1),
        (matrix(NO_NOISE), 9),
        (matrix(NOISE_SHARE), 9),
        (controlled(believed=1.0, b=0.0), 1),
        (controlled(believed=1.0, b=0.4), 1),
    ],
    ids=["sgnht", "sgnht, noise b M", "matrix", "matrix, noise", "ccadl", "ccadl, noise left"],
)
@pytest.mark.validate
def test_dynamics_leave_the_target_invariant(sde, num_thermostats):
    points = random_points(2 * DIM + num_thermostats)
    assert fokker_planck_residual(*sde, points) < 1e-10


@pytest.mark.parametrize(
    "sde",
    [
        literal(),
        scalar(0.0, degrees=DIM + 1),
        of_another_shape(NOISE_SHARE),
        controlled(believed=2.0, b=0.0),
        controlled(believed=0.0, b=0.0),
    ],
    ids=["literal", "degrees of freedom", "noise not b M", "ccadl, twice", "ccadl, none"],
)
@pytest.mark.validate
def test_wrong_dynamics_do_not(sde):
    assert fokker_planck_residual(*sde, random_points(2 * DIM + 1)) > 0.5


# --- the step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgnht", "matrix_sgnht", "ccadl"])
@pytest.mark.one_now
def test_step_is_that_of_the_dynamics(name, monkeypatch):
    """Drift and diffusion of one step, over eps, tend to those of the SDEs above, with B held."""
    eps, B = 1e-6, spd(7, [0.1, 1.0, 3.0])
    V = 2 * B / eps
    learnt = learnt_for(V, eps, believed=0.0).replace(thermostat_mass=jnp.array(MU))
    frame = np.asarray(learnt.mass.root)  # F^-T
    W = frame.T @ B @ frame
    theta, y = jax.random.normal(jax.random.key(0), (2, DIM))
    X = jax.random.normal(jax.random.key(1), (DIM, DIM)) + 2 * jnp.eye(DIM)
    state, friction, heating = {
        "sgnht": (ThermostatState(theta, y, jnp.array(1.7)), 1.7 * EYE, (y @ y - DIM) / MU),
        "matrix_sgnht": (ThermostatState(theta, y, X), X, (jnp.outer(y, y) - EYE) / MU),
        "ccadl": (
            CCAdLState(theta, y, jnp.array(1.7), jnp.asarray(2 / eps * W)),
            1.7 * EYE + W,
            (y @ y - DIM) / MU,
        ),
    }[name]

    def make(target, num_steps):
        return getattr(mt.kernels, name)(target, num_steps, A)

    step = step_map(monkeypatch, make, noisy_gaussian(PRECISION, V), learnt)
    still = step(state, jnp.zeros((1, DIM)), jnp.zeros((1, 2, DIM)))
    slope = jax.tree.map(lambda after, before: (after - before) / eps, still, state)
    tolerance = {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(slope.position, frame @ y, **tolerance)
    force = -frame.T @ PRECISION @ theta - friction @ y
    np.testing.assert_allclose(slope.whitened, force, **tolerance)
    np.testing.assert_allclose(slope.thermostat, heating, **tolerance)

    def kicked(normals):
        return step(state, normals[:1], normals[None, 1:]).whitened

    jacobian = jax.jacfwd(kicked)(jnp.zeros((3, DIM))).reshape(DIM, -1)
    np.testing.assert_allclose(jacobian @ jacobian.T / (2 * eps), A * EYE + W, **tolerance)


@pytest.mark.parametrize("name", ["matrix_sgnht", "ccadl"])
def test_what_is_known_of_the_noise_is_carried_over_to_another_mass(name):
    """F X F' and F W F' are of the noise alone, and stay when F changes."""
    target = noisy_gaussian(PRECISION, spd(2, [1.0, 5.0, 20.0]))
    kernel = getattr(mt.kernels, name)(target, 5, A)
    old, new = learnt_for(NO_NOISE, 0.05, mass=EYE), learnt_for(NO_NOISE, 0.05)
    state = kernel.init(jax.random.key(0), jnp.zeros(DIM), old)
    field = "noise" if name == "ccadl" else "thermostat"
    state = state._replace(**{field: jnp.asarray(NOISE_SHARE)})
    moved = kernel.transport(state, old, new)
    matrices = [
        learnt.mass.factor @ getattr(each, field) @ learnt.mass.factor.T
        for each, learnt in ((state, old), (moved, new))
    ]
    np.testing.assert_allclose(*matrices, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(moved.whitened, state.whitened)


def test_thermal_is_exact_for_every_friction():
    """Against y' = exp(-xi eps) y, variance A (1 - exp(-2 xi eps)) / xi, through 0 and below it."""
    eps, y = 0.1, jnp.ones(1)
    for xi in (-3.0, -1e-3, -1e-7, 0.0, 1e-7, 1e-3, 3.0):
        variance = 2 * A * eps if xi == 0 else A * -np.expm1(-2 * xi * eps) / xi
        args = jnp.array(xi), A, jnp.array(eps)
        mean = thermal(*args, y, jnp.zeros(1))
        np.testing.assert_allclose(mean, [np.exp(-xi * eps)], rtol=1e-12)
        spread = thermal(*args, 0 * y, jnp.ones(1))
        np.testing.assert_allclose(spread, [np.sqrt(variance)], rtol=1e-6)


# --- long runs on R3 --------------------------------------------------------------------------
#
# Bounds are a bias, as measured in docs (maths 4.4) with some room, plus five standard errors.

STEP = 0.05


def mean_half(shape):
    """V such that B = eps V / 2 has this shape and a mean eigenvalue of 1/2."""
    return shape / np.trace(shape) * DIM / STEP


LIKE_MASS = mean_half(MASS)
ISOTROPIC = mean_half(EYE)
UNEVEN = mean_half(spd(2, [0.1, 1.0, 10.0]))
B_OF_MASS = 0.5 * DIM / np.trace(MASS)  # b, with B = b M


SHORT = {"num_chains": 512, "time": 80.0}
LONG = pytest.param({"num_chains": 2048, "time": 300.0}, marks=pytest.mark.validate)


def run(name, which, length=SHORT):
    noise = {"none": NO_NOISE, "M": LIKE_MASS, "I": ISOTROPIC, "uneven": UNEVEN}[which]
    factory = getattr(mt.kernels, name)
    return moments_on_r3(lambda target, n: factory(target, n, A), noise, STEP, **length)


def assert_right(moments, bias):
    assert moments.se < 0.02, moments
    assert moments.frob < bias + 5 * moments.se, moments
    assert moments.divergences == 0


@pytest.mark.parametrize("length", [SHORT, LONG], ids=["short", "long"])
def test_sgnht_on_exact_gradients(length):
    moments = run("sgnht", "none", length)
    assert_right(moments, 0.003)
    assert abs(moments.xi - A) < 0.003 + 5 * moments.xi_se
    assert moments.xi_variance == pytest.approx(1 / DIM, rel=0.1)


@pytest.mark.parametrize("length", [SHORT, LONG], ids=["short", "long"])
def test_sgnht_absorbs_noise_of_the_masss_shape(length):
    moments = run("sgnht", "M", length)
    assert_right(moments, 0.005)
    assert abs(moments.xi - A - B_OF_MASS) < 0.005 + 5 * moments.xi_se


def test_sgnht_does_not_absorb_other_noise():
    assert run("sgnht", "I").frob > 0.3
    assert run("sgnht", "uneven").frob > 0.15


@pytest.mark.parametrize("length", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("which", ["M", "I", "uneven"])
@pytest.mark.parametrize("name", ["matrix_sgnht", "ccadl"])
@pytest.mark.validate
def test_matrix_sgnht_and_ccadl_absorb_any_noise(name, which, length):
    moments = run(name, which, length)
    assert_right(moments, 0.012)
    if name == "ccadl":  # whose thermostat stays: the running estimate takes the noise on itself
        assert abs(moments.xi - A) < 0.02 + 5 * moments.xi_se


def test_ccadl_without_its_estimate_is_sgnht():
    """And so fails where that fails: what is absorbed above is absorbed by the estimate."""

    def forgetful(target, num_steps):
        return mt.kernels.ccadl(target, num_steps, A, forgetting=1e-12)

    assert moments_on_r3(forgetful, ISOTROPIC, STEP, **SHORT).frob > 0.3


def no_thermostat(monkeypatch):
    monkeypatch.setattr(module, "aboba", partial(broken_aboba, kind="no thermostat"))


def mass_for_its_inverse(monkeypatch):
    monkeypatch.setattr(mt.DenseMass, "drift", lambda mass, y: mass.colour(y))


def noise_of_twice_the_friction(monkeypatch):
    monkeypatch.setattr(module, "thermal", lambda xi, a, eps, y, z: thermal(xi, a, eps, y, 2 * z))


@pytest.mark.parametrize(
    ("sabotage", "which"),
    [(no_thermostat, "M"), (mass_for_its_inverse, "none"), (noise_of_twice_the_friction, "none")],
)
@pytest.mark.one_now
def test_sabotaged_sgnht_is_caught(sabotage, which, monkeypatch):
    sabotage(monkeypatch)
    moments = run("sgnht", which, {"num_chains": 512, "time": 30.0, "tag": sabotage})
    is_hot_or_cold = moments.frob > 0.012 + 5 * moments.se
    has_wrong_thermostat = abs(moments.xi - A) > 0.01 + 5 * moments.xi_se
    assert is_hot_or_cold or has_wrong_thermostat, moments


# --- real minibatches -------------------------------------------------------------------------
#
# Logistic regression in two dimensions, N = 2000, n = 100, with the posterior's precision as mass;
# the noise is neither Gaussian nor constant, and shaped like the mass (maths 6.4).


@cache
def posterior():
    target, _, _ = logistic(2000, 100)
    return target, *posterior_moments(target)


def learnt_of_posterior(target, mean, covariance, step_size):
    """The mass and the noise at the mean, from all the minibatches there are."""
    where = jnp.asarray(mean)
    starts = jnp.stack([jnp.arange(2000)] * 2, axis=1)
    halves = jax.vmap(target.noisy_gradient, in_axes=(0, None))(starts, where).gradient
    noise = np.cov(np.asarray(halves).T, bias=True) / 2  # of the mean of two halves
    return learnt_for(noise, step_size, mass=np.linalg.inv(covariance))


def moments_of_posterior(name, step_size, num_chains, time):
    target, mean, covariance = posterior()
    kernel = getattr(mt.kernels, name)(target, 5, A)
    learnt = learnt_of_posterior(target, mean, covariance, step_size)
    if name == "sgnht":  # which is to find the noise by itself
        learnt = learnt.replace(noise=0 * learnt.noise)
    normals = jax.random.normal(jax.random.key(3), (num_chains, 2))
    starts = jnp.asarray(mean)[None] + normals @ jnp.asarray(root(covariance))
    whiten = np.linalg.inv(root(covariance))
    draws = [round(length / (5 * step_size)) for length in (25.0, time)]
    return stationary_moments(jax.random.key(5), kernel, learnt, starts, *draws, whiten, mean)


BIAS = {"sghmc": 0.02, "matrix_sgnht": 0.02, "ccadl": 0.02, "sgnht": 0.04, "sg_nphmc": 0.05}


@pytest.mark.parametrize("name", ["sghmc", "sgnht"])  # all of them in `make validate`
@pytest.mark.validate
def test_real_minibatches_in_short(name):
    moments = moments_of_posterior(name, 0.05, num_chains=256, time=40.0)
    assert moments.frob < BIAS[name] + 5 * moments.se, moments
    assert moments.divergences == 0


@pytest.mark.validate
@pytest.mark.parametrize("name", BIAS)
def test_real_minibatches(name):
    moments = moments_of_posterior(name, 0.05, num_chains=1024, time=600.0)
    assert moments.se < 0.005
    assert moments.frob < BIAS[name], moments
    assert moments.divergences == 0

"""HMC leaves known distributions alone, and each broken HMC is caught."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels import integrators
from momentem.testing import check_kernel, invariance

from broken_leapfrogs import gradient_sign, half_position_step
from known_targets import FACTOR, PRECISION, skewed, skewed_exact

# KS p-values under a right kernel fall below this with a chance of at most 5 x 1e-3 per target (of
# five features in two dimensions); the seeds are fixed.
THRESHOLD = 1e-3


def correlated(x):
    return -0.5 * x @ PRECISION @ x


def correlated_exact(key, n):
    return jax.random.normal(key, (n, 2)) @ FACTOR.T


# masses far from ideal and step sizes with visible rejections, where errors show
TARGETS = {
    "correlated": (correlated, correlated_exact, mt.dense_mass([[1.0, 0.3], [0.3, 0.2]]), 0.9),
    "skewed": (skewed, skewed_exact, mt.dense_mass([[0.9, -0.2], [-0.2, 0.4]]), 1.0),
}


def p_value(name, jitter=0.0, mass=None, slower=1):
    logdensity, exact, dense, step_size = TARGETS[name]
    kernel = mt.kernels.hmc(mt.density(logdensity, jnp.zeros(2)), num_steps=3, jitter=jitter)
    learnt = mt.Learnt(dense if mass is None else mass, jnp.array(step_size / slower))
    return invariance(jax.random.key(1), kernel, learnt, exact)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.one_now
def test_leaves_the_target_alone(name):
    assert p_value(name) > THRESHOLD


@pytest.mark.parametrize("name", TARGETS)
def test_leaves_the_target_alone_with_jitter(name):
    assert p_value(name, jitter=0.5) > THRESHOLD


@pytest.mark.parametrize(
    "mass",
    [
        mt.diagonal_mass([1.0, 0.2]),
        mt.low_rank_mass([1.0, 0.5], [[0.6], [0.8]], [1.5]),
    ],
    ids=["diagonal", "low rank"],
)
def test_leaves_the_target_alone_with_every_mass(mass):
    assert p_value("skewed", mass=mass) > THRESHOLD


def always_accept(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda key, dtype: jnp.zeros((), dtype))


def mass_for_its_inverse(monkeypatch):
    monkeypatch.setattr(
        mt.DenseMass, "velocity", lambda mass, p: jnp.linalg.solve(mass.inverse_mass, p)
    )


def no_kinetic_energy(monkeypatch):
    monkeypatch.setattr(mt.DenseMass, "kinetic_energy", lambda self, p: jnp.zeros(()))


def half_kinetic_energy(monkeypatch):
    monkeypatch.setattr(mt.DenseMass, "kinetic_energy", lambda self, p: p @ self.velocity(p) / 4)


def unit_momenta(monkeypatch):
    monkeypatch.setattr(mt.DenseMass, "sample", lambda self, key: jax.random.normal(key, (2,)))


@pytest.mark.parametrize(
    "sabotage",
    [always_accept, mass_for_its_inverse, no_kinetic_energy, half_kinetic_energy, unit_momenta],
)
@pytest.mark.one_now
def test_sabotaged_hmc_fails_the_invariance_test(sabotage, monkeypatch):
    sabotage(monkeypatch)
    # the slower steps are for what diverges, and so moves nothing, at the others
    assert any(p_value(name, slower=slower) < 1e-5 for name in TARGETS for slower in (1, 4))


def test_a_reused_key_is_caught(monkeypatch):
    monkeypatch.setattr(jax.random, "split", lambda key, num=2: [key] * num)
    target = mt.density(skewed, jnp.zeros(2))
    kernel = mt.kernels.hmc(target, num_steps=2)
    learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1))
    state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
    with jax.debug_key_reuse(True), pytest.raises(Exception, match=r"(?i)key"):
        kernel.step(jax.random.key(1), state, learnt)


def mean_acceptance(step_size):
    """Over paths of time 2 on a standard normal in three dimensions, from exact starts."""
    target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(3))
    kernel = mt.kernels.hmc(target, num_steps=round(2.0 / step_size))
    learnt = mt.Learnt(mt.dense_mass(jnp.eye(3)), jnp.array(step_size))
    starts = jax.random.normal(jax.random.key(6), (4000, 3))

    def rate(key, position):
        state = kernel.init(key, position, learnt)
        return kernel.step(key, state, learnt)[1].stats["acceptance_rate"]

    return float(
        jnp.mean(jax.jit(jax.vmap(rate))(jax.random.split(jax.random.key(5), 4000), starts))
    )


def test_acceptance_tends_to_one():
    assert mean_acceptance(0.2) > 0.97
    assert mean_acceptance(0.05) > 0.998


@pytest.mark.parametrize("sabotage", [gradient_sign, half_position_step])
@pytest.mark.validate
def test_a_wrong_but_reversible_leapfrog_is_caught_by_its_acceptance(sabotage, monkeypatch):
    """Metropolis keeps these exact and pays for it: the acceptance no longer tends to one.

    The second is the paper's Algorithm 1 as printed, which integrates the mass 2M.
    """
    monkeypatch.setattr(integrators, "leapfrog", sabotage)
    rates = [mean_acceptance(step_size) for step_size in (0.2, 0.05, 0.0125)]
    assert max(rates) < 0.9
    assert max(rates) - min(rates) < 0.02


@pytest.mark.parametrize(
    "logdensity",
    [
        lambda x: jnp.where(jnp.abs(x[0]) < 0.5, -0.5 * x[0] ** 2, jnp.nan),
        lambda x: jnp.where(jnp.abs(x[0]) < 0.5, -0.5 * x[0] ** 2, -jnp.inf),
        lambda x: jnp.where(jnp.abs(x[0]) < 0.5, -0.5 * x[0] ** 2, jnp.inf),
        lambda x: -0.5e6 * x[0] ** 2,
    ],
    ids=["nan", "minus infinity", "plus infinity", "unstable step"],
)
def test_a_divergence_is_flagged_and_not_accepted(logdensity):
    kernel = mt.kernels.hmc(mt.density(logdensity, jnp.zeros(1)), num_steps=20)
    learnt = mt.Learnt(mt.diagonal_mass([100.0]), jnp.array(1.0))
    state = kernel.init(jax.random.key(0), jnp.array([0.1]), learnt)
    state, info = kernel.step(jax.random.key(2), state, learnt)
    assert bool(info.stats["diverging"])
    assert float(info.stats["acceptance_rate"]) == 0
    assert float(state.position[0]) == 0.1
    assert bool(jnp.isfinite(info.momentum).all())
    assert bool(jnp.isfinite(info.gradient).all())


def test_jittered_numbers_of_steps_are_uniform():
    target = mt.density(lambda x: -0.5 * x**2, 0.0)
    kernel = mt.kernels.hmc(target, num_steps=10, jitter=0.3)
    learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(1)), jnp.array(0.1))
    state = kernel.init(jax.random.key(0), jnp.zeros(1), learnt)
    keys = jax.random.split(jax.random.key(1), 7000)
    steps = jax.vmap(lambda key: kernel.step(key, state, learnt)[1].stats["n_steps"])(keys)
    values, counts = np.unique(steps, return_counts=True)
    assert values.tolist() == list(range(7, 14))
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_a_reused_key_is_also_caught_by_the_conformance_suite(monkeypatch):
    monkeypatch.setattr(jax.random, "split", lambda key, num=2: [key] * num)
    with pytest.raises(Exception, match=r"(?i)key"):
        check_kernel(lambda target: mt.kernels.hmc(target, num_steps=2))


def test_info_tells_of_the_accepted_point():
    """energy = K(momentum) - lp, and lp is the density at the position, after a rejection too."""
    target = mt.density(skewed, jnp.zeros(2))
    kernel = mt.kernels.hmc(target, num_steps=3)
    mass = mt.dense_mass([[0.9, -0.2], [-0.2, 0.4]])
    learnt = mt.Learnt(mass, jnp.array(1.3))
    starts = skewed_exact(jax.random.key(7), 500)

    def move(key, position):
        return kernel.step(key, kernel.init(key, position, learnt), learnt)[1]

    info = jax.vmap(move)(jax.random.split(jax.random.key(8), 500), starts)
    is_moved = (info.position != starts).any(axis=1)
    assert 50 < int(is_moved.sum()) < 450
    np.testing.assert_allclose(info.stats["lp"], jax.vmap(skewed)(info.position), rtol=1e-10)
    kinetic = jax.vmap(mass.kinetic_energy)(info.momentum)
    np.testing.assert_allclose(info.stats["energy"], kinetic - info.stats["lp"], rtol=1e-10)


@pytest.mark.validate
@pytest.mark.parametrize("name", TARGETS)
def test_leaves_the_target_alone_from_many_seeds(name):
    """20 seeds, five features each: below 1e-5 with a chance of 1e-3."""
    logdensity, exact, mass, step_size = TARGETS[name]
    kernel = mt.kernels.hmc(mt.density(logdensity, jnp.zeros(2)), num_steps=3, jitter=0.5)
    learnt = mt.Learnt(mass, jnp.array(step_size))
    keys = jax.random.split(jax.random.key(99), 20)
    assert min(invariance(key, kernel, learnt, exact) for key in keys) > 1e-5

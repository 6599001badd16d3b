"""What stochastic kernels learn: by the `noise` M-step everything, by the paper's `momentum` the
shape of the gradient noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.em.m_steps._noise import Noises
from momentem.pytrees import find_node
from momentem.targets.control_variates import Anchor, anchor_at

from noisy_targets import (
    DIM,
    MASS,
    NO_NOISE,
    PRECISION,
    SIGMA,
    Moments,
    learnt_for,
    logistic,
    noisy_gaussian,
    posterior_moments,
    root,
    spd,
)

V = spd(2, [1.0, 5.0, 20.0])
PRIOR = np.array([0.5, 1.0, 2.0])
SCALE = 0.1  # n / N


def info_of(noise, information, position, diverging=None):
    """What a kernel would tell: `noise` is (chains, steps, D)."""
    zeros = jnp.zeros_like(position)
    none = jnp.zeros(len(position), bool)
    stats = {"diverging": none if diverging is None else diverging}
    return mt.Info(position, zeros, zeros, stats, jnp.asarray(noise), jnp.asarray(information))


def generalised(a, b):
    """Eigenvalues of A^-1 B."""
    whiten = np.linalg.inv(np.linalg.cholesky(a))
    return np.linalg.eigvalsh(whiten @ b @ whiten.T)


# --- the M-step by hand -----------------------------------------------------------------------


def numbers(seed, shape):
    return np.random.default_rng(seed).normal(size=shape) * np.array([1.0, 2.0, 4.0])


def by_hand(structure, share=2.0, friction=0.5, max_step_size=0.3, rate=1.0, old_noise=None):
    """(learnt, the moments V and I as numpy has them) after two updates and one M-step."""
    target = noisy_gaussian(PRECISION, NO_NOISE, information_scale=SCALE, prior=PRIOR)
    mass = mt.dense_mass(np.eye(DIM)) if structure == "dense" else mt.diagonal_mass(np.ones(DIM))
    noise = jnp.zeros(DIM) if old_noise is None else jnp.asarray(old_noise)
    learnt = mt.Learnt(mass, jnp.array(1e-8), noise=noise)
    m_step = mt.m_steps.noise(mt.kernels.sghmc(target, 1, friction), share, max_step_size)
    statistic = m_step.init(mass, 100)
    # what was gathered before it was emptied must not count
    statistic = statistic._replace(noise=statistic.noise + 7, num_noises=jnp.array(5))
    noises = [numbers(seed, (400, 25, DIM)) for seed in (1, 2)]
    informations = [numbers(seed, (400, 25, DIM)) for seed in (3, 4)]
    for d, i in zip(noises, informations, strict=True):
        statistic = m_step.update(statistic, info_of(d, i, jnp.ones((400, DIM))), learnt)
    assert int(statistic.num_samples) == 800
    estimate = m_step.estimate(statistic, learnt)
    assert bool(estimate.is_proper())
    learnt = m_step.average(learnt, estimate, jnp.array(rate))
    d, i = (np.concatenate(x).reshape(-1, DIM) for x in (noises, informations))
    return learnt, d.T @ d / len(d), i.T @ i / len(i)


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_mass_noise_and_step_size_are_as_derived(structure):
    learnt, noise, information = by_hand(structure, max_step_size=1.0)
    if structure == "diagonal":
        noise, information = np.diag(np.diag(noise)), np.diag(np.diag(information))
    mass = SCALE * information + np.diag(PRIOR)
    colour = np.asarray(jax.vmap(learnt.mass.colour)(jnp.eye(DIM))).T  # F
    np.testing.assert_allclose(colour @ colour.T, mass, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        (colour * np.asarray(learnt.noise)) @ colour.T, noise, rtol=1e-9, atol=1e-9
    )
    shares = generalised(mass, noise)
    np.testing.assert_allclose(np.sort(learnt.noise), shares, rtol=1e-5)
    expected = min(2 * 2.0 * 0.5 / shares[-1], np.sqrt(2 * 0.05 / shares[-1]))
    np.testing.assert_allclose(learnt.step_size, expected, rtol=1e-5)


def test_the_noise_is_a_share_of_the_friction_where_that_is_the_tighter_bound():
    """Bhat = eps V / 2 is `share` A M in the direction where it is largest."""
    learnt = by_hand("dense", share=0.1, max_step_size=1.0)[0]
    np.testing.assert_allclose(learnt.step_size / 2 * learnt.noise.max(), 0.1 * 0.5, rtol=1e-6)


def test_step_size_is_bounded():
    assert float(by_hand("dense", max_step_size=0.01)[0].step_size) == 0.01


def test_step_size_is_the_bound_without_noise():
    target = noisy_gaussian(PRECISION, NO_NOISE, prior=PRIOR)
    m_step = mt.m_steps.noise(mt.kernels.sghmc(target, 1, 0.5))
    learnt = mt.Learnt(mt.dense_mass(np.eye(DIM)), jnp.array(1e-8), noise=jnp.zeros(DIM))
    statistic = m_step.init(learnt.mass, 100)
    zeros = jnp.zeros((50, 4, DIM))
    statistic = m_step.update(statistic, info_of(zeros, zeros, jnp.ones((50, DIM))), learnt)
    after = m_step.average(learnt, m_step.estimate(statistic, learnt), jnp.array(1.0))
    assert float(after.step_size) == pytest.approx(0.3)
    np.testing.assert_allclose(after.mass.inverse_mass, np.diag(1 / PRIOR), rtol=1e-9)
    np.testing.assert_allclose(after.noise, np.zeros(DIM), atol=1e-12)


def test_inverse_mass_and_noise_are_averaged():
    old_noise = np.array([3.0, 4.0, 5.0])  # in the frame of the identity: V_old is this diagonal
    learnt, noise, information = by_hand("dense", rate=0.3, old_noise=old_noise)
    F = np.asarray(learnt.mass.factor)
    mixed = 0.7 * np.diag(old_noise) + 0.3 * noise
    np.testing.assert_allclose((F * np.asarray(learnt.noise)) @ F.T, mixed, rtol=1e-8, atol=1e-8)
    precision = 0.7 * np.eye(DIM) + 0.3 * np.linalg.inv(SCALE * information + np.diag(PRIOR))
    np.testing.assert_allclose(learnt.mass.inverse_mass, precision, rtol=1e-5, atol=1e-7)


def test_the_first_noise_is_not_averaged_with_none():
    learnt, noise, _ = by_hand("dense", rate=0.3)
    F = np.asarray(learnt.mass.factor)
    np.testing.assert_allclose((F * np.asarray(learnt.noise)) @ F.T, noise, rtol=1e-8, atol=1e-8)


def test_a_negative_prior_curvature_counts_for_nothing():
    target = noisy_gaussian(PRECISION, V, information_scale=SCALE, prior=[-5.0, 1.0, 1.0])
    m_step = mt.m_steps.noise(mt.kernels.sghmc(target, 1, 0.5))
    mass = mt.diagonal_mass(np.ones(DIM))
    learnt = mt.Learnt(mass, jnp.array(1e-8), noise=jnp.zeros(DIM))
    ones = jnp.ones(DIM)
    statistic = Noises(jnp.array(10), jnp.array(10), 10 * ones, 10 * ones, ones)
    estimate = m_step.estimate(statistic, learnt)
    np.testing.assert_allclose(1 / estimate.mass.inverse_mass, SCALE + np.array([0.0, 1.0, 1.0]))


def test_divergent_chains_do_not_dilute_the_noise():
    """Their samples are told as zeros, which are no samples."""
    target = noisy_gaussian(PRECISION, V, information_scale=SCALE, prior=PRIOR)
    m_step = mt.m_steps.noise(mt.kernels.sghmc(target, 1, 0.5))
    learnt = mt.Learnt(mt.dense_mass(np.eye(DIM)), jnp.array(1e-8), noise=jnp.zeros(DIM))
    samples = numbers(1, (40, 25, DIM))
    diverging = np.arange(40) % 2 == 0
    told = np.where(diverging[:, None, None], 0.0, samples)
    info = info_of(told, told, jnp.ones((40, DIM)), jnp.asarray(diverging))
    statistic = m_step.update(m_step.init(learnt.mass, 40), info, learnt)
    kept = samples[~diverging].reshape(-1, DIM)
    found = m_step.estimate(statistic, learnt).noise_matrix
    np.testing.assert_allclose(found, kept.T @ kept / len(kept), rtol=1e-9)


# --- the M-step in EM -------------------------------------------------------------------------


@jax.jit
def compiled_scan(sampler, state, keys):
    return jax.lax.scan(lambda state, key: sampler.step(key, state), state, keys)


def scan(sampler, state, num, seed=2):
    """The state after `num` steps, and the infos of all chains."""
    return compiled_scan(sampler, state, jax.random.split(jax.random.key(seed), num))


@pytest.mark.parametrize("factory", [mt.sghmc_em, mt.sgnht_em], ids=["sghmc", "sgnht"])
@pytest.mark.one_now
def test_all_is_learnt_from_nothing(factory):
    """V as it is, M = (n/N) V + prior, and eps from both; chains far off do not matter."""
    target = noisy_gaussian(PRECISION, V, information_scale=SCALE, prior=PRIOR)
    sampler = factory(target)
    state = sampler.init(jax.random.key(0), 3 * jnp.ones((32, DIM)))
    state, info = scan(sampler, state, 300)
    learnt = sampler.learnt(state)
    mass = SCALE * V + np.diag(PRIOR)
    noise = np.asarray(learnt.mass.noise_matrix(learnt.noise))
    # of at least 3000 draws of 10 steps each
    np.testing.assert_allclose(generalised(V, noise), np.ones(DIM), atol=0.05)
    found = np.linalg.inv(np.asarray(learnt.mass.inverse_mass))
    np.testing.assert_allclose(generalised(mass, found), np.ones(DIM), atol=0.05)
    largest = generalised(mass, V)[-1]
    expected = min(0.3, 2 * 2.0 * 0.5 / largest, np.sqrt(2 * 0.05 / largest))
    assert float(learnt.step_size) == pytest.approx(expected, rel=0.05)
    assert int(info.learning["num_m_steps"][-1]) >= 5
    assert not bool(info.learning["is_refused"].any())
    assert not bool(info.chains.stats["diverging"].any())
    # a frozen sampler moves by what was learnt
    frozen, frozen_state = sampler.freeze(state)
    jax.tree.map(np.testing.assert_array_equal, frozen.learnt(frozen_state), learnt)


@pytest.mark.validate
@pytest.mark.parametrize("factory", [mt.sghmc_em, mt.sgnht_em], ids=["sghmc", "sgnht"])
def test_self_tuned_chains_have_the_right_covariance(factory):
    """On real minibatches, from the origin, nothing given. The step size is as large as the M-step
    dares."""
    target, _, _ = logistic(2000, 100)
    mean, covariance = posterior_moments(target)
    sampler = factory(target)
    state = sampler.init(jax.random.key(0), jnp.zeros((64, 2)))
    state, _ = scan(sampler, state, 150)
    learnt = sampler.learnt(state)
    # the labels (2 %) and the shuffle (blocks of 50: sqrt(2/40) = 20 %) are in it
    mass = np.linalg.inv(np.asarray(learnt.mass.inverse_mass))
    np.testing.assert_allclose(generalised(np.linalg.inv(covariance), mass), np.ones(2), atol=0.4)
    frozen, frozen_state = sampler.freeze(state)
    _, info = scan(frozen, frozen_state, 150)
    whitened = (np.asarray(info.chains.position) - mean) @ np.linalg.inv(root(covariance))
    outer = np.einsum("tci,tcj->cij", whitened, whitened) / len(whitened)
    zeros = np.zeros(len(outer))
    moments = Moments(outer, zeros, zeros, info.chains.stats["diverging"])
    assert moments.frob < 0.05 + 5 * moments.se, moments
    assert moments.divergences == 0
    assert np.abs(whitened.mean(axis=(0, 1))).max() < 0.05


@pytest.mark.validate
def test_control_variates_leave_the_mass_and_enlarge_the_step():
    target, _, _ = logistic(2000, 100)
    controlled = mt.control_variate(target, mt.mode(target))
    learnt = []
    for each in (target, controlled):
        sampler = mt.sghmc_em(each)
        state = sampler.init(jax.random.key(0), jnp.tile(controlled.initial, (32, 1)))
        state, _ = scan(sampler, state, 100)
        learnt.append(sampler.learnt(state))
    masses = [np.linalg.inv(np.asarray(each.mass.inverse_mass)) for each in learnt]
    np.testing.assert_allclose(generalised(*masses), np.ones(2), atol=0.1)
    assert float(learnt[1].noise.max()) < 0.1 * float(learnt[0].noise.max())
    assert float(learnt[1].step_size) > 2.5 * float(learnt[0].step_size)


@pytest.mark.validate
def test_control_variates_that_follow_the_draws_end_at_the_mean():
    """From a reference five posterior deviations off."""
    target, _, _ = logistic(2000, 100)
    mean, covariance = posterior_moments(target)
    far = jnp.asarray(mean + 5 * np.sqrt(np.diag(covariance)))
    sampler = mt.sghmc_em(mt.control_variate(target._replace(initial=far)))
    state, _ = scan(sampler, sampler.init(jax.random.key(0), jnp.tile(far, (32, 1))), 150)
    anchor = sampler.learnt(state).anchor
    value, gradient = jax.value_and_grad(target.logdensity)(anchor["position"])
    np.testing.assert_allclose(anchor["gradient"], gradient, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(anchor["value"], value, rtol=1e-9)
    off = (np.asarray(anchor["position"]) - mean) @ np.linalg.inv(root(covariance))
    assert np.linalg.norm(off) < 0.5
    assert float(sampler.learnt(state).step_size) > 0.2  # without them 0.07
    frozen, frozen_state = sampler.freeze(state)
    _, info = scan(frozen, frozen_state, 300)
    whitened = (np.asarray(info.chains.position) - mean) @ np.linalg.inv(root(covariance))
    assert np.abs(whitened.mean(axis=(0, 1))).max() < 0.1
    assert abs(whitened.std() - 1) < 0.1


@pytest.mark.validate
def test_an_anchor_with_another_place_s_gradient_is_seen():
    """The sabotage: the reference moves, and its gradient stays behind."""
    target, _, _ = logistic(2000, 100)
    mean, covariance = posterior_moments(target)
    controlled = mt.control_variate(target)
    kernel = mt.kernels.following(mt.kernels.sghmc(controlled, 10, 0.5))
    precision = mt.dense_mass(covariance)
    anchor = find_node(Anchor, controlled)
    away = anchor_at(target, jnp.asarray(mean + np.sqrt(np.diag(covariance))))
    means = {}
    for name, gradient in {"right": away["gradient"], "wrong": anchor.gradient}.items():
        moved = away | {"gradient": gradient}
        sampler = mt.fixed(kernel, mt.Learnt(precision, 0.2, anchor=moved))
        state = sampler.init(jax.random.key(0), jnp.tile(jnp.asarray(mean), (32, 1)))
        _, info = scan(sampler, state, 300)
        whitened = (np.asarray(info.chains.position) - mean) @ np.linalg.inv(root(covariance))
        means[name] = np.abs(whitened.mean(axis=(0, 1))).max()
    assert means["right"] < 0.1 < means["wrong"]


# --- the paper's M-step -----------------------------------------------------------------------


def shape_distance(precision):
    """The spread of log eigenvalues of Lambda^-1 M: 0 where M is a multiple of Lambda."""
    return float(np.std(np.log(generalised(PRECISION, np.linalg.inv(np.asarray(precision))))))


def learn_from_momenta(kernel, noise):
    """Masses after each of 60 M-steps of 2048 momenta each."""
    num_chains, size = 256, 2048
    start = learnt_for(noise, 0.05, believed=0.0)
    sampler = mt.monte_carlo_em(
        kernel(noisy_gaussian(PRECISION, noise), 20, 1.0),
        mt.Learnt(start.mass, start.step_size),  # no noise, and the dimension for a thermostat mass
        mt.m_steps.momentum(),
        mt.e_steps.constant(size),
    )
    starts = jax.random.normal(jax.random.key(1), (num_chains, DIM)) @ jnp.asarray(root(SIGMA))
    state = sampler.init(jax.random.key(0), starts)
    masses = [state.learnt.mass.inverse_mass]
    for seed in range(6):  # ten M-steps at a time
        state, _ = scan(sampler, state, 10 * size // num_chains, seed)
        masses.append(state.learnt.mass.inverse_mass)
    assert int(state.learning["num_m_steps"]) == 60
    return masses


LIKE_PRECISION = PRECISION / np.trace(PRECISION) * DIM / 0.05  # B = eps V / 2 has mean 1/2


@pytest.mark.validate
def test_momentum_of_sgnht_learns_the_shape_of_the_noise():
    distances = [
        shape_distance(each) for each in learn_from_momenta(mt.kernels.sgnht, LIKE_PRECISION)
    ]
    assert distances[0] == pytest.approx(1.22, abs=0.01)
    assert distances[-1] < 0.3
    assert all(np.diff(distances[:4]) < 0)


@pytest.mark.validate
def test_momentum_of_sgnht_learns_nothing_without_noise():
    distances = [shape_distance(each) for each in learn_from_momenta(mt.kernels.sgnht, NO_NOISE)]
    np.testing.assert_allclose(distances, np.full(7, distances[0]), rtol=0.1)


@pytest.mark.validate
def test_momentum_of_uncorrected_sghmc_also_grows():
    """It has no thermostat to hold the temperature, so that the mass grows with the noise."""
    masses = learn_from_momenta(mt.kernels.sghmc, LIKE_PRECISION)
    assert shape_distance(masses[-1]) < 0.7
    traces = [float(np.trace(np.linalg.inv(np.asarray(each)))) for each in masses]
    assert traces[0] == pytest.approx(np.trace(MASS))
    assert all(np.diff(traces) > 0)
    assert traces[-1] > 1.6 * traces[0]

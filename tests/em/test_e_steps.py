"""How E-steps grow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.types import Info

pytestmark = pytest.mark.usefixtures("quick_compilation")

DIM = 2


def observe_all(e_step, mass, momenta, seed=0):
    """The state after an E-step with these momenta, (iterations, chains, dim)."""
    learnt = mt.Learnt(mass, jnp.array(0.1))
    init_key, run_key = jax.random.split(jax.random.key(seed))

    def iterate(state, inputs):
        key, p = inputs
        return e_step.observe(key, state, Info(p, p, p, {}), learnt), state.next_time

    keys = jax.random.split(run_key, len(momenta))
    state = e_step.init(init_key, e_step.size, learnt)
    return jax.lax.scan(iterate, state, (keys, momenta))


def momenta(num=400, chains=4, seed=0):
    return jax.random.normal(jax.random.key(seed), (num, chains, DIM))


def test_subsamples_thin_out_as_poisson_gaps():
    """E[t_s] = sum_i (1 + nu i^d): with nu = 1, d = 2 a subsample at 2, 7, 17, 34, … on average."""
    e_step, mass, p = mt.e_steps.growing(100), mt.diagonal_mass(np.ones(DIM)), momenta(60)
    states, times = jax.vmap(lambda seed: observe_all(e_step, mass, p, seed))(jnp.arange(200))
    np.testing.assert_array_equal(states.num_samples, 4 * (states.ordinal - 1))
    mean = np.mean([np.unique(row)[:4] for row in times], axis=0)
    expected = np.cumsum([1 + i**2 for i in range(1, 5)])
    deviation = np.sqrt(np.cumsum([i**2 for i in range(1, 5)]) / 200)
    assert (np.abs(mean - expected) < 5 * deviation).all()


def test_moments_of_the_test_function_are_those_of_the_subsamples():
    mass = mt.diagonal_mass([2.0, 0.5])
    p = momenta()
    state, times = observe_all(mt.e_steps.growing(100), mass, p)
    hits = np.unique(times)
    hits = hits[hits <= len(p)] - 1
    chosen = np.asarray(p)[hits].reshape(-1, DIM)
    np.testing.assert_allclose(state.features, chosen.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state.values, (chosen * [2.0, 0.5]).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        state.values_squared, ((chosen * [2.0, 0.5]) ** 2).sum(axis=0), rtol=1e-12
    )


def renewed_size(e_step, new_precision):
    mass = mt.diagonal_mass(np.ones(DIM))
    state = observe_all(e_step, mass, momenta() + 1.0)[0]
    learnt = mt.Learnt(mt.diagonal_mass(new_precision), jnp.array(0.1))
    return int(e_step.renew(jax.random.key(9), state, learnt).size)


def test_grows_by_a_tenth_when_the_update_drowns_in_noise():
    assert renewed_size(mt.e_steps.growing(100), [1.01, 0.99]) == 110
    assert renewed_size(mt.e_steps.growing(105, growth=2.0), [1.0, 1.0]) == 158  # rounded up


def test_keeps_its_size_when_the_update_is_significant():
    assert renewed_size(mt.e_steps.growing(100), [2.0, 1.0]) == 100


def test_the_printed_interval_is_wider_by_sd_times_root_n():
    # the mean velocity moves from 1 to 2: outside 1.96 sd / sqrt(n) = .3, inside 1.96 variance
    assert renewed_size(mt.e_steps.growing_printed(100), [2.0, 1.0]) == 110
    assert renewed_size(mt.e_steps.growing_printed(100), [9.0, 1.0]) == 100


def thermostatted_infos(num, xi):
    """Infos of four chains whose momenta are N(1, I), gradients N(0, 4 I), thermostats `xi`."""
    p, g = momenta(num) + 1.0, 2 * momenta(num, seed=1)
    return Info(p, p, g, {"thermostat": jnp.broadcast_to(xi, p.shape[:2])})


def thermostatted_sizes(new_precision, xi=0.5):
    """The size after an E-step of 100 and an M-step from the identity to `new_precision`, and the
    mean of q under the new mass, as the rule has it and from the definition."""
    e_step = mt.e_steps.growing(100, test=mt.e_steps.thermostatted())
    mass, new = mt.dense_mass(np.eye(DIM)), mt.dense_mass(new_precision)
    learnt = mt.Learnt(mass, jnp.array(0.1))
    infos = thermostatted_infos(400, xi)
    state, hits = e_step.init(jax.random.key(0), 100, learnt), []
    observe = jax.jit(e_step.observe)
    for t, key in enumerate(jax.random.split(jax.random.key(1), 400)):
        before = int(state.num_samples)
        state = observe(key, state, jax.tree.map(lambda leaf, t=t: leaf[t], infos), learnt)
        hits += [t] * (int(state.num_samples) > before)
    p, g = (np.asarray(x)[hits].reshape(-1, DIM) for x in (infos.momentum, infos.gradient))
    v = p @ np.asarray(new_precision)
    q = np.concatenate([v, g - xi * v, np.sum(p * v, axis=1, keepdims=True)], axis=1)
    mean = jax.tree.map(lambda total: total / state.num_samples, state.features)
    found = e_step.renew(jax.random.key(2), state, mt.Learnt(new, jnp.array(0.1)))
    return int(found.size), mt.e_steps.thermostatted().evaluate(mean, new), q.mean(axis=0)


def test_thermostatted_q_is_as_defined_under_the_new_mass():
    _, found, expected = thermostatted_sizes(np.array([[2.0, 0.3], [0.3, 0.5]]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_thermostatted_q_sees_what_the_velocity_does_not():
    """Turned by 45 degrees, (1, 1) keeps its length: the mean velocity moves by little, the mean
    energy by much."""
    new = np.array([[1.6, -0.55], [-0.55, 1.6]])  # (1, 1) is an eigenvector, with 1.05
    assert thermostatted_sizes(np.eye(DIM))[0] == 110
    assert thermostatted_sizes(new)[0] == 100


def test_thermostatted_q_needs_a_thermostat():
    e_step = mt.e_steps.growing(100, test=mt.e_steps.thermostatted())
    learnt = mt.Learnt(mt.diagonal_mass(np.ones(DIM)), jnp.array(0.1))
    state = e_step.init(jax.random.key(0), 100, learnt)
    p = momenta(1)[0]
    with pytest.raises(ValueError, match="needs a kernel with a thermostat"):
        e_step.observe(jax.random.key(1), state, Info(p, p, p, {}), learnt)
    with pytest.raises(TypeError, match="LowRankMass"):
        mt.hmc_em(
            mt.density(lambda x: -0.5 * x @ x, jnp.zeros(4)),
            0.1,
            5,
            mass=mt.low_rank_mass(np.ones(4), np.eye(4)[:, :1], np.ones(1)),
            m_step=mt.m_steps.fisher_low_rank(20),
            e_step=e_step,
        ).init(jax.random.key(0), jnp.zeros((2, 4)))


def test_no_growth_without_subsamples():
    e_step = mt.e_steps.growing(100)
    learnt = mt.Learnt(mt.diagonal_mass(np.ones(DIM)), jnp.array(0.1))
    state = e_step.init(jax.random.key(0), 100, learnt)
    assert int(e_step.renew(jax.random.key(1), state, learnt).size) == 100


@pytest.mark.parametrize("e_step", [mt.e_steps.constant(50), mt.e_steps.growing(50)])
def test_renewing_starts_a_new_count(e_step):
    learnt = mt.Learnt(mt.diagonal_mass(np.ones(DIM)), jnp.array(0.1))
    state = e_step.init(jax.random.key(0), 50, learnt)
    again = e_step.renew(jax.random.key(1), state, learnt)
    assert jax.tree.structure(again) == jax.tree.structure(state)

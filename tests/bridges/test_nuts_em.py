"""NUTS-EM, by from_blackjax, finds a known Gaussian and learns its mass; a sabotage shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt

blackjax = pytest.importorskip("blackjax")
pytestmark = [pytest.mark.validate, pytest.mark.usefixtures("quick_compilation")]

# correlated, scales 0.1 to 10
SCALES = jnp.array([0.1, 1.0, 10.0])
CORRELATION = jnp.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.5], [0.0, -0.5, 1.0]])
COVARIANCE = SCALES[:, None] * CORRELATION * SCALES[None]
INVERSE = jnp.linalg.inv(COVARIANCE)
NUM_CHAINS = 16


def gaussian(x):
    return -0.5 * x @ INVERSE @ x


@jax.jit
def run(sampler, state, keys):
    def step(state, key):
        state, info = sampler.step(key, state)
        return state, (info.chains.position, info.chains.stats)

    return jax.lax.scan(step, state, keys)


def check_nuts_em(target):
    """Asserts that NUTS-EM finds the Gaussian, its mass, and short trees.

    With M_I the covariance, a whitened Gaussian at step size 0.6 turns within pi / 0.6 = 5 steps or
    so: a tree of at most 8. Chains are independent, so that their means and mean squares give the
    standard errors: 9 comparisons at 6 of them (t with 15 degrees of freedom) raise a false alarm
    with a chance of 2e-4, and the seed is fixed.
    """
    em = mt.monte_carlo_em(
        mt.from_blackjax(blackjax.nuts, target, max_num_doublings=6),
        mt.Learnt(mt.dense_mass(0.01 * jnp.eye(3)), 0.6),
        m_step=mt.m_steps.fisher(),
        e_step=mt.e_steps.constant(800),
        averaging=mt.schedules.latest(),
    )
    init_key, start_key, warm_key, draw_key = jax.random.split(jax.random.key(2), 4)
    positions = jax.random.normal(start_key, (NUM_CHAINS, 3)) * SCALES[None]
    state = em.init(init_key, positions)
    state, _ = run(em, state, jax.random.split(warm_key, 200))
    frozen, state = em.freeze(state)
    _, (draws, stats) = run(frozen, state, jax.random.split(draw_key, 400))

    acceptance_rate, num_steps = stats["acceptance_rate"].mean(), stats["n_steps"].mean()
    told = f"acceptance {acceptance_rate}, trees of {num_steps}: the mass is not whitening"
    assert acceptance_rate > 0.7, told
    assert num_steps < 8, told
    precision = mt.inverse_mass_matrix(frozen.learnt(state).mass)
    ratio = np.linalg.eigvals(np.asarray(precision @ INVERSE)).real
    assert 0.75 < ratio.min() <= ratio.max() < 1.33, "the mass is not the covariance"
    products = draws[..., :, None] * draws[..., None, :]
    for feature, exact in ((draws, jnp.zeros(3)), (products, COVARIANCE)):
        means = np.asarray(feature.mean(axis=0))
        error = means.std(axis=0, ddof=1) / NUM_CHAINS**0.5
        assert (np.abs(means.mean(axis=0) - exact) < 6 * error).all(), "the moments are off"


def test_nuts_em_learns_a_gaussian():
    check_nuts_em(mt.density(gaussian, jnp.zeros(3)))


def test_the_mass_for_its_inverse_is_caught(monkeypatch):
    """Any mass leaves the target alone, so that the draws may well be right; the trees are not."""

    def swapped(mass):
        array = right(mass)
        return 1 / array if array.ndim == 1 else jnp.linalg.inv(array)

    right = mt.inverse_mass_matrix
    monkeypatch.setattr("momentem.bridges.blackjax.inverse_mass_matrix", swapped)
    # a density of its own: the compiled program of another would be right
    with pytest.raises(AssertionError, match="not whitening"):
        check_nuts_em(mt.density(lambda x: gaussian(x), jnp.zeros(3)))

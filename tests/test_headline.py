"""The badly conditioned logistic regression of benchmarks/stochastic_headline.py, nothing set by
hand: the posterior is reached, from starts a thousand standard deviations out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import momentem as mt
import stochastic_headline as headline
from momentem.em.m_steps import MStep


@pytest.fixture(scope="module")
def posterior():
    data = jax.tree.map(jnp.asarray, headline.problem())
    target = mt.dataset(
        headline.log_prior,
        headline.log_likelihood,
        data,
        jnp.zeros(headline.D),
        batch_size=headline.BATCH,
    )
    return target, *headline.truth(target)


def is_right(found):
    low, high, error, _ = found
    return low >= 0.85 and high <= 1.15 and error < 0.1


def measured(posterior, sampler, cost=1, at_mode=False):
    """(eigenvalues' extremes, mean error, min ESS) of one run with the whole budget."""
    target, mode, root = posterior
    positions = np.tile(mode, (headline.NUM_CHAINS, 1)) if at_mode else None
    draws = headline.ours(target, sampler, cost, positions)[0]
    return headline.score(draws, mode, root)


@pytest.mark.validate
def test_sgnht_with_nothing_set_by_hand(posterior):
    found = measured(posterior, mt.sgnht_em(posterior[0]))
    assert is_right(found), found
    assert found[-1] >= 2000


@pytest.mark.validate
def test_sghmc_with_nothing_set_by_hand_and_control_variates_worth_five_times_the_gradients(
    posterior,
):
    target, mode, root = posterior
    plain = measured(posterior, mt.sghmc_em(target))
    assert is_right(plain), plain
    assert plain[-1] >= 2000
    controlled = mt.control_variate(target, jnp.asarray(mode))
    found = measured((controlled, mode, root), mt.sghmc_em(controlled), cost=2)
    assert is_right(found), found
    assert found[-1] >= 5 * plain[-1]


@pytest.mark.validate
def test_the_noise_must_be_known(posterior):
    """Sabotage: the same mass and step size, and no correction for the gradient noise."""
    honest = mt.m_steps.noise(mt.kernels.sghmc(posterior[0], 10, 0.5))

    def forget(learnt, estimate, rate):
        learnt = honest.average(learnt, estimate, rate)
        return learnt.replace(noise=jnp.zeros_like(learnt.noise))

    ignorant = MStep(honest.init, honest.update, honest.estimate, Partial(forget))
    with pytest.warns(mt.SamplingWarning, match="temperature"):
        found = measured(posterior, mt.sghmc_em(posterior[0], m_step=ignorant))
    assert not is_right(found)
    assert found[1] > 1.5

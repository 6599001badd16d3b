"""Models from NumPyro's examples, unchanged, have the posterior that NumPyro's NUTS finds.

Means and mean squares of every site are compared, 5 standard errors of the difference apart at
most: under the null some 70 comparisons raise a false alarm with a chance of 4e-5, and the seeds
are fixed.
"""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_base import dict_to_dataset
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import TransformReparam

import momentem as mt
from momentem.bridges.foreign import usual_promotion

pytestmark = [pytest.mark.validate, pytest.mark.usefixtures("quick_compilation")]


def eight_schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J):
        with numpyro.handlers.reparam(config={"theta": TransformReparam()}):
            theta = numpyro.sample(
                "theta",
                dist.TransformedDistribution(
                    dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(mu, tau)
                ),
            )
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def partially_pooled(at_bats, hits=None):
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        phi_prior = dist.Beta(m * kappa, (1 - m) * kappa)
        phi = numpyro.sample("phi", phi_prior)
        return numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def logistic(data, labels):
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(3), jnp.ones(3)))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    return numpyro.sample(
        "y", dist.Bernoulli(logits=(coefs * data + intercept).sum(-1)), obs=labels
    )


X = np.random.default_rng(0).normal(size=(100, 3))
LABELS = (np.random.default_rng(1).random(100) < 1 / (1 + np.exp(-X.sum(1)))).astype(float)
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# Efron and Morris's first ten players, 45 at bats each
HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11])

MODELS = {
    "eight schools": (eight_schools, (8, SIGMA, Y)),
    "baseball": (partially_pooled, (np.full(10, 45), HITS)),
    "logistic regression": (logistic, (X, LABELS)),
}


def moments(draws):
    """Means and mean squares, and their standard errors."""
    if "kappa" in draws:  # whose second moment is not finite
        draws = draws.assign(kappa=np.log(draws["kappa"]))
    means, errors = [], []
    for power in (1, 2):
        powers = draws**power
        means.append(powers.mean(("chain", "draw")))
        errors.append(arviz_stats.mcse(powers))
    return [
        np.concatenate([part[name].values.ravel() for part in parts for name in sorted(draws)])
        for parts in (means, errors)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_posterior_is_that_of_nuts(name):
    model, args = MODELS[name]
    target = mt.from_numpyro(model, *args)
    trace = mt.sample(target)
    with usual_promotion():
        nuts = MCMC(
            NUTS(model),
            num_warmup=300,
            num_samples=500,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        nuts.run(jax.random.key(1), *args)
    theirs = dict_to_dataset({k: np.asarray(v) for k, v in nuts.get_samples(True).items()})
    ours = trace["posterior"].to_dataset()
    assert set(ours.data_vars) == set(theirs.data_vars)
    mean, error = moments(ours)
    expected, their_error = moments(theirs)
    z = np.abs(mean - expected) / np.hypot(error, their_error)
    assert z.max() < 5, z

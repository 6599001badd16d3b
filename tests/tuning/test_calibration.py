"""Simulation-based calibration of the default (Talts et al. 2018): over data simulated from the
prior, the rank of the truth among draws of the posterior is uniform, for five kinds of model.

Ranks among RANKS draws of a run are counted in BINS, and a chi-squared test has a p-value per
parameter. With 15 parameters, a false alarm at THRESHOLD has a chance of 2e-3; seeds are fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import beta, norm
from jax.tree_util import Partial
from scipy.stats import chisquare

import momentem as mt

pytestmark = [pytest.mark.validate, pytest.mark.filterwarnings("ignore::momentem.SamplingWarning")]

REPLICATES, NUM_DRAWS, RANKS, BINS, THRESHOLD = 200, 250, 99, 10, 1e-4
X = np.random.default_rng(0).normal(size=(20, 2)) * [1.0, 100.0]
TIMES = np.linspace(0, 4, 15)
positive, unit = mt.constraints.positive, mt.constraints.unit_interval


def half_normal(x):
    return norm.logpdf(x, 0, 1)


def simulate_regression(rng):
    p = {"b": rng.normal(size=2) / [1, 100], "sigma": abs(rng.normal())}
    return p, X @ p["b"] + p["sigma"] * rng.normal(size=20)


def regression(y, p, x=X):
    prior = jnp.sum(norm.logpdf(p["b"], 0, jnp.array([1, 0.01]))) + half_normal(p["sigma"])
    return prior + jnp.sum(norm.logpdf(y, jnp.asarray(x) @ p["b"], p["sigma"]))


def simulate_hierarchy(rng):
    p = {"mu": rng.normal(), "tau": abs(rng.normal()), "z": rng.normal(size=6)}
    return p, p["mu"] + p["tau"] * p["z"] + 0.5 * rng.normal(size=6)


def hierarchy(y, p):
    prior = norm.logpdf(p["mu"]) + half_normal(p["tau"]) + jnp.sum(norm.logpdf(p["z"]))
    return prior + jnp.sum(norm.logpdf(y, p["mu"] + p["tau"] * p["z"], 0.5))


def simulate_volatility(rng):
    p = {"level": np.exp(0.5 * rng.normal()), "a": rng.uniform(), "b": rng.uniform()}
    variance, y = 1.0, np.zeros(60)
    for i in range(60):
        variance = p["level"] + 0.5 * p["a"] * (y[i - 1] ** 2 if i else 0) + 0.5 * p["b"] * variance
        y[i] = np.sqrt(variance) * rng.normal()
    return p, y


def volatility(y, p):
    def step(variance, square):
        variance = p["level"] + 0.5 * p["a"] * square + 0.5 * p["b"] * variance
        return variance, variance

    before = jnp.concatenate([jnp.zeros(1), y[:-1]]) ** 2
    variances = jax.lax.scan(step, jnp.array(1.0), before)[1]
    prior = norm.logpdf(jnp.log(p["level"]), 0, 0.5) - jnp.log(p["level"])
    return prior + jnp.sum(norm.logpdf(y, 0, jnp.sqrt(variances)))


def simulate_process(rng):
    p = {"length": np.exp(0.5 * rng.normal()), "size": abs(rng.normal())}
    gaps = (TIMES[:, None] - TIMES) / p["length"]
    root = np.linalg.cholesky(p["size"] ** 2 * np.exp(-(gaps**2) / 2) + 0.09 * np.eye(15))
    return p, root @ rng.normal(size=15)


def process(y, p):
    gaps = jnp.asarray(TIMES[:, None] - TIMES) / p["length"]
    root = jnp.linalg.cholesky(p["size"] ** 2 * jnp.exp(-(gaps**2) / 2) + 0.09 * jnp.eye(15))
    white = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    prior = norm.logpdf(jnp.log(p["length"]), 0, 0.5) - jnp.log(p["length"])
    fit = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(root)))
    return prior + half_normal(p["size"]) + fit


def simulate_mixture(rng):
    p = {"mu": np.sort(2 * rng.normal(size=2)), "share": rng.beta(2, 2)}
    return p, p["mu"][(rng.uniform(size=40) > p["share"]).astype(int)] + 0.7 * rng.normal(size=40)


def mixture(y, p):
    shares = jnp.log(jnp.stack([p["share"], 1 - p["share"]]))
    parts = shares[None] + norm.logpdf(y[:, None], p["mu"][None], 0.7)
    prior = jnp.sum(norm.logpdf(p["mu"], 0, 2)) + beta.logpdf(p["share"], 2, 2)
    return prior + jnp.sum(jax.nn.logsumexp(parts, axis=1))


MODELS = {
    "regression": (simulate_regression, regression, {"sigma": positive}),
    "hierarchy": (simulate_hierarchy, hierarchy, {"tau": positive}),
    "volatility": (simulate_volatility, volatility, {"level": positive, "a": unit, "b": unit}),
    "process": (simulate_process, process, {"length": positive, "size": positive}),
    "mixture": (
        simulate_mixture,
        mixture,
        {"mu": mt.constraints.ordered_vector, "share": unit},
    ),
}


def p_values(simulate, logdensity, constraints):
    rng, ranks = np.random.default_rng(1), []
    for seed in range(REPLICATES):
        truth, y = simulate(rng)
        initial = {name: jnp.asarray(value) for name, value in truth.items()}
        # the chains start away from the truth: at the same place for all data
        if seed == 0:
            first = initial
        target = mt.density(Partial(logdensity, jnp.asarray(y)), first, constraints)
        trace = mt.sample(target, num_draws=NUM_DRAWS, seed=seed, progress=False)
        draws = trace["posterior"].to_dataset()
        chosen = np.linspace(0, 4 * NUM_DRAWS - 1, RANKS).astype(int)
        flat = {name: draws[name].values.reshape(4 * NUM_DRAWS, -1)[chosen] for name in truth}
        ranks.append(np.concatenate([(flat[n] < np.ravel(truth[n])).sum(0) for n in truth]))
    counts = [np.histogram(column, BINS, (0, RANKS + 1))[0] for column in np.array(ranks).T]
    return [chisquare(count).pvalue for count in counts]


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name):
    assert min(p_values(*MODELS[name])) > THRESHOLD


def test_a_wrong_posterior_has_other_ranks():
    """The same test, of a posterior that counts every datum twice."""
    simulate, logdensity, constraints = MODELS["regression"]

    def twice(y, p):
        return logdensity(jnp.concatenate([y, y]), p, np.vstack([X, X]))

    assert min(p_values(simulate, twice, constraints)) < 1e-6

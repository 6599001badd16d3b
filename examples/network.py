"""A small neural network: weights have many equivalent places, predictions are what is judged."""

import warnings

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import momentem as mt

rng = np.random.default_rng(0)
x = rng.uniform(-3.0, 3.0, 300)
y = np.sin(2.0 * x) + 0.1 * rng.normal(size=300)
train, test = (x[:200], y[:200]), (x[200:], y[200:])


def network(p, datum):
    return jnp.tanh(p["inner"] * datum[0] + p["bias"]) @ p["outer"]


def law(p, datum):
    return dist.Normal(network(p, datum), jnp.exp(p["log_noise"]))


def log_prior(p):
    return -0.5 * sum(jnp.sum((value / 2.0) ** 2) for value in p.values())


initial = {name: np.zeros(8) for name in ("inner", "bias", "outer")} | {"log_noise": 0.0}
log_term = lambda p, datum: law(p, datum).log_prob(datum[1])  # noqa: E731
target = mt.dataset(log_prior, log_term, train, initial)
with warnings.catch_warnings(action="ignore", category=mt.SamplingWarning):
    trace = mt.sample(target, num_draws=4000, out="network")
line = mt.predict(trace, network, test, num_draws=None).draws["y"]
print("R-hat of the predictions:", arviz_stats.rhat(line).max().item().__round__(3))
print("smallest ESS of the predictions:", round(arviz_stats.ess(line).min().item()))
told = mt.predict(trace, law, test)
print(mt.scores(told, test[1]))
mt.report(mt.load("network"), "network.html", target, told, test[1])

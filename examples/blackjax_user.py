"""BlackJAX's NUTS, tuned here: sample, check, compare, predict, hand over, look, report, load."""

import arviz_stats
import blackjax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import momentem as mt

x = np.linspace(-2.0, 2.0, 60)
y = 1.0 + 2.0 * x + np.random.default_rng(0).normal(0.0, 0.5, 60)


def law(p, datum):
    return dist.Normal(p["level"] + p.get("slope", 0.0) * datum[0], jnp.exp(p["noise"]))


def log_prior(p):
    return -0.5 * sum((value / 5.0) ** 2 for value in p.values())


targets, runs = {}, {}
for name, start in {"line": ("level", "slope", "noise"), "flat": ("level", "noise")}.items():
    initial = dict.fromkeys(start, 0.0)
    log_term = lambda p, datum: law(p, datum).log_prob(datum[1])  # noqa: E731
    targets[name] = mt.dataset(log_prior, log_term, (x, y), initial)
    trace = mt.sample(targets[name], mt.nuts(targets[name]), num_warmup=300, out=name)
    runs[name] = mt.log_likelihood(trace, targets[name])
print(mt.summary(runs["line"]))
print(arviz_stats.compare(runs))
print(mt.scores(mt.predict(mt.load("line"), law, (x, y)), y))
blackjax.nuts(targets["line"].logdensity, **mt.to_blackjax(runs["line"]))
mt.plot(runs["line"]).savefig("line.png")
mt.report(runs["line"], "line.html")

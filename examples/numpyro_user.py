"""A NumPyro model: sample, check, predict, compare two models, picture, report, save and load."""

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist

import momentem as mt

x = np.linspace(-2.0, 2.0, 60)
y = 1.0 + 2.0 * x + np.random.default_rng(0).normal(0.0, 0.5, 60)


def line(x, y=None, has_slope=True):
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0)) if has_slope else 0.0
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("datum", len(x)):
        numpyro.sample("y", dist.Normal(level + slope * x, noise), obs=y)


target, flat = mt.from_numpyro(line, x, y=y), mt.from_numpyro(line, x, y=y, has_slope=False)
trace, other = mt.sample(target, out="line"), mt.sample(flat)
print(mt.summary(trace))
print(mt.predict(trace, target, (np.array([3.0] * 60),)).interval(0.9)["y"].values[0])
print(mt.scores(mt.predict(trace, target), y))
runs = {"line": mt.log_likelihood(trace, target), "flat": mt.log_likelihood(other, flat)}
print(arviz_stats.compare(runs))
mt.plot(trace).savefig("line.png")
mt.report(trace, "line.html", target, mt.predict(trace, target), y)
print(mt.load("line")["posterior"]["slope"].mean().item())

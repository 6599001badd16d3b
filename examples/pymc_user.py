"""A PyMC model: sample, check, predict, compare two models, picture, report, save and load."""

import arviz_stats
import jax
import numpy as np
import pymc as pm

import momentem as mt

jax.config.update("jax_enable_x64", True)
x = np.linspace(-2.0, 2.0, 60)
y = 1.0 + 2.0 * x + np.random.default_rng(0).normal(0.0, 0.5, 60)
models, runs = {}, {}
for name in ("line", "flat"):
    with pm.Model(coords={"datum": np.arange(60)}) as models[name]:
        level = pm.Normal("level", 0.0, 5.0)
        slope = pm.Normal("slope", 0.0, 5.0) if name == "line" else 0.0
        noise = pm.HalfNormal("noise", 2.0)
        pm.Normal("y", level + slope * x, noise, observed=y, dims="datum")
    target = mt.from_pymc(models[name])
    trace = mt.sample(target, out=name)
    runs[name] = mt.log_likelihood(trace, target)
print(mt.summary(runs["line"]))
print(arviz_stats.compare(runs))
draws = mt.load("line")["posterior"].to_dataset()
pm.sample_posterior_predictive(draws, model=models["line"], progressbar=False)
mt.plot(runs["line"]).savefig("line.png")
mt.report(runs["line"], "line.html")

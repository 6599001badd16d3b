"""A million rows: minibatches, scores on rows held out, subsampled LOO, a picture and a report."""

import sys

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import momentem as mt

num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
rng = np.random.default_rng(0)
x = rng.normal(size=(num_rows, 3)).astype("float32")
y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype("float32")
held_out, rows = (x[:1000], y[:1000]), (x[1000:], y[1000:])


def log_prior(p):
    return -0.5 * jnp.sum(p["w"] ** 2)


def log_likelihood(p, row):
    logit = row[0][: len(p["w"])] @ p["w"]
    return row[1] * logit - jnp.logaddexp(0.0, logit)


for size in (3, 2):  # with two of the inputs only, the fit is worse
    initial = {"w": jnp.zeros(size)}
    target = mt.dataset(log_prior, log_likelihood, rows, initial, batch_size=500)
    trace = mt.sample(target, num_warmup=500, spread=0.1, out=f"inputs-{size}")
    print(mt.loo(mt.load(f"inputs-{size}"), target, num_data=200))
    law = lambda p, row: dist.Bernoulli(logits=row[0][: len(p["w"])] @ p["w"])  # noqa: E731
    print(mt.scores(mt.predict(trace, law, held_out), held_out[1]))
mt.plot(trace).savefig("inputs.png")
mt.report(trace, "inputs.html", target)

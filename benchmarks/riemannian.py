"""What a metric costs: RHMC and SGR-NPHMC per iteration against HMC, and RHMC against BlackJAX's.

    MOMENTEM_DATA=… python benchmarks/riemannian.py

Logistic regression with prior N(0, 10 I) on the paper's synthetic data and, standardised, on
Australian credit and Heart: 4 chains, x64, 10 steps per iteration, every contender a compiled loop.
RHMC's implicit lines are solved to BlackJAX's tolerance, 1e-6, and by 6 iterations; both use the
same metric, X' diag(w (1 - w)) X + I / 10, and the same step size. The stochastic rows use
minibatches of 100 and are compared with HMC on all data, as the paper does. Acceptance rates are
shown because BlackJAX integrates by implicit midpoint, we by the generalised leapfrog.
"""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import momentem as mt
from momentem.reproduce import datasets
from momentem.reproduce.timing import ratio, time_interleaved
from momentem.riemannian.fixed_points import iterations, until

NUM_CHAINS, NUM_STEPS, NUM_ITERATIONS, ROUNDS, STEP_SIZE, BATCH = 4, 10, 100, 9, 0.3, 100


def log_prior(w):
    return -0.05 * jnp.sum(w**2)


def log_likelihood(w, datum):
    logit = datum[0] @ w
    return datum[1] * logit - jnp.logaddexp(0.0, logit)


@jax.jit
def run(sampler, key, state):
    def iterate(state, i):
        state, info = sampler.step(jax.random.fold_in(key, i), state)
        stats = info.chains.stats
        return state, stats.get("acceptance_rate", jnp.ones(NUM_CHAINS))

    return jax.lax.scan(iterate, state, jnp.arange(NUM_ITERATIONS))


def blackjax_runner(target, matrix, positions):
    algorithm: Any = blackjax.rmhmc(target.logdensity, STEP_SIZE, matrix, NUM_STEPS)
    states = jax.vmap(algorithm.init)(positions)

    @jax.jit
    def go(key, states):
        def iterate(states, i):
            keys = jax.random.split(jax.random.fold_in(key, i), NUM_CHAINS)
            states, info = jax.vmap(algorithm.step)(keys, states)
            return states, info.acceptance_rate

        return jax.lax.scan(iterate, states, jnp.arange(NUM_ITERATIONS))

    return lambda: go(jax.random.key(0), states)


def contenders(data):
    dim, key = data.x.shape[1], jax.random.key(0)
    rows = tuple(data)
    target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(dim))
    noisy = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(dim), batch_size=BATCH)
    mode = mt.mode(target)
    metric = mt.metrics.logistic(data.x, np.full(dim, 0.1))
    covariance = jnp.linalg.inv(metric.matrix(mode))
    mass = mt.dense_mass(covariance)
    roots = jnp.linalg.cholesky(covariance)
    normals = jax.random.normal(jax.random.key(1), (NUM_CHAINS, dim))
    positions = mode[None] + normals @ roots.T
    small = {"step_size": 0.05, "num_steps": NUM_STEPS}
    common = (STEP_SIZE, NUM_STEPS)
    samplers = {
        "hmc": mt.hmc(target, *common, mass=mass),
        "hmc-em": mt.hmc_em(target, *common, mass, mt.m_steps.momentum(), mt.e_steps.growing(300)),
        "rhmc, 1e-6": mt.rhmc(target, metric, *common, until(1e-6)),
        "rhmc, 6 iterations": mt.rhmc(target, metric, *common, iterations(6)),
        "sg-nphmc": mt.sg_nphmc(noisy, **small, mass=mass),
        "sg-nphmc-em": mt.sg_nphmc_em(noisy, NUM_STEPS),
        "sgr-nphmc, 6 iterations": mt.sgr_nphmc(noisy, metric, **small),
        "sgr-nphmc, 2 iterations": mt.sgr_nphmc(noisy, metric, **small, fixed_point=iterations(2)),
    }
    runs: dict[str, Any] = {}
    for name, sampler in samplers.items():
        state = sampler.init(key, positions)
        runs[name] = lambda sampler=sampler, state=state: run(sampler, key, state)
    runs["blackjax rmhmc, 1e-6"] = blackjax_runner(target, metric.matrix, positions)
    return runs


def main():
    jax.config.update("jax_enable_x64", True)
    sets = {
        "synthetic 2000 x 2": datasets.synthetic_logistic(),
        "Australian 690 x 14": datasets.australian().standardised(),
        "Heart 270 x 13": datasets.heart().standardised(),
    }
    table = Table(title="time per iteration over HMC's (acceptance rate)")
    table.add_column("sampler")
    columns = {}
    for name, data in sets.items():
        table.add_column(name, justify="right")
        runs = contenders(data)
        seconds = time_interleaved(runs, ROUNDS)
        per_iteration = np.median(seconds["hmc"]) / NUM_ITERATIONS * 1e6
        columns[name] = {
            sampler: f"{ratio(seconds, sampler, 'hmc'):.2f} ({float(go()[1].mean()):.2f})"
            for sampler, go in runs.items()
        }
        columns[name]["hmc"] = f"{per_iteration:.0f} us ({float(runs['hmc']()[1].mean()):.2f})"
    for sampler in next(iter(columns.values())):
        table.add_row(sampler, *[column[sampler] for column in columns.values()])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

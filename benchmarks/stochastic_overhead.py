"""What stochastic kernels cost beyond their gradients, EM beyond a kernel, and how cost grows with
N.

    python benchmarks/stochastic_overhead.py [kernels] [rows] [network]

First table: per gradient, logistic regression N = 20,000, batch 100, 10 steps a draw, x64. `bare`
is a compiled loop of nothing but block-minibatch gradients, as one would write it in JAX; `bare,
our key` the same with momentem.key; `gather` with random indices. EM is timed over 1,000 iterations
from the start, M-steps included.
BlackJAX's sgnht gets a fresh random batch (with replacement) for every step, drawn inside the same
compiled loop. Second table: sghmc's time per gradient at N rows over that at 10^4. Third: a
network.

Targets that must hold: kernel / bare <= 1.5, em / kernel <= 1.05, blackjax / sgnht >= 3, N ratio <=
1.2, D = 10^5 <= 1.3.
"""

import sys
from itertools import pairwise
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import momentem as mt
from momentem.reproduce.timing import bare, iterate, ratio, time_interleaved

NUM_STEPS, NUM_ITERATIONS, ROUNDS, BATCH = 10, 1000, 31, 100


def logistic(num_data, dim, batches=None, dtype: Any = float):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_data, dim)).astype(dtype)
    y = (rng.uniform(size=num_data) < 0.5).astype(dtype)
    start = jnp.zeros(dim, dtype)
    return mt.dataset(log_prior, log_likelihood, (x, y), start, batch_size=BATCH, batches=batches)


def log_prior(w):
    return -0.05 * jnp.sum(w**2)


def log_likelihood(w, datum):
    logit = datum[0] @ w
    return datum[1] * logit - jnp.logaddexp(0.0, logit)


def blackjax_sgnht(data, step_size):
    num_data = len(data[0])
    terms = jax.vmap(log_likelihood, in_axes=(None, 0))

    def estimate(position, batch):
        return log_prior(position) + num_data / BATCH * jnp.sum(terms(position, batch))

    algorithm: Any = blackjax.sgnht(jax.grad(estimate))

    @jax.jit
    def go(key, states, data):
        half = len(states.position)

        def one(batch_key, step_key, state):
            index = jax.random.randint(batch_key, (BATCH,), 0, num_data)
            batch = jax.tree.map(lambda leaf: leaf[index], data)
            return algorithm.step(step_key, state, batch, step_size)

        def step(i, states):
            keys = jax.random.split(jax.random.fold_in(key, i), 2 * half)
            return jax.vmap(one)(keys[:half], keys[half:], states)

        return jax.lax.fori_loop(0, NUM_ITERATIONS * NUM_STEPS, step, states)

    return algorithm, go


def contenders(dim, num_chains):
    target = logistic(20_000, dim)
    gathering = logistic(20_000, dim, batches=mt.with_replacement())
    key, jax_key, positions = mt.key(0), jax.random.key(0), jnp.zeros((num_chains, dim))
    mass, step_size = mt.dense_mass(np.eye(dim) / 5000), 1e-3
    learnt = mt.Learnt(mass, jnp.array(step_size))

    def ours(sampler):
        state = sampler.init(key, positions)
        return lambda: iterate(sampler, key, state, NUM_ITERATIONS)

    data = _data(20_000, dim)
    algorithm, go = blackjax_sgnht(data, 1e-6)
    peers = jax.vmap(lambda key, x: algorithm.init(x, key, 1.0))(
        jax.random.split(jax_key, num_chains), positions
    )
    em = {"step_size": step_size, "mass": mass}
    return {
        "bare": lambda: bare(target, jax_key, positions, NUM_ITERATIONS, NUM_STEPS),
        "bare, our key": lambda: bare(target, key, positions, NUM_ITERATIONS, NUM_STEPS),
        "gather": lambda: bare(gathering, jax_key, positions, NUM_ITERATIONS, NUM_STEPS),
        "sghmc": ours(mt.fixed(mt.kernels.sghmc(target, NUM_STEPS), learnt)),
        "sghmc-em": ours(mt.sghmc_em(target, NUM_STEPS, **em)),
        "sgnht": ours(mt.fixed(mt.kernels.sgnht(target, NUM_STEPS), learnt)),
        "sgnht-em": ours(mt.sgnht_em(target, NUM_STEPS, **em)),
        "ccadl": ours(mt.fixed(mt.kernels.ccadl(target, NUM_STEPS), learnt)),
        "matrix": ours(mt.fixed(mt.kernels.matrix_sgnht(target, NUM_STEPS), learnt)),
        "blackjax": lambda: go(jax_key, peers, data),
    }


def _data(num_data, dim):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(num_data, dim))), jnp.asarray(
        rng.uniform(size=num_data).round()
    )


def kernels_table():
    table = Table(title=f"per gradient; medians of {ROUNDS} interleaved rounds")
    names = ["gather", "bare, our key", "sghmc", "sgnht", "ccadl", "matrix"]
    columns = ["D", "chains", "bare, us", *[f"{name} / bare" for name in names]]
    columns += ["sghmc-em / sghmc", "sgnht-em / sgnht", "blackjax / sgnht"]
    for column in columns:
        table.add_column(column, justify="right")
    for dim in (2, 15):
        for num_chains in (1, 16):
            seconds = time_interleaved(contenders(dim, num_chains), ROUNDS)
            gradients = NUM_ITERATIONS * NUM_STEPS * num_chains
            table.add_row(
                str(dim),
                str(num_chains),
                f"{np.median(seconds['bare']) / gradients * 1e6:.2f}",
                *[f"{ratio(seconds, name, 'bare'):.2f}" for name in names],
                f"{ratio(seconds, 'sghmc-em', 'sghmc'):.3f}",
                f"{ratio(seconds, 'sgnht-em', 'sgnht'):.3f}",
                f"{ratio(seconds, 'blackjax', 'sgnht'):.1f}",
            )
    return table


def rows_table():
    table = Table(title="sghmc per gradient, N rows over 10^4 rows (D = 15, 4 chains, float32)")
    table.add_column("N")
    table.add_column("ratio", justify="right")
    runs, key = {}, mt.key(0)
    for num_data in (10**4, 10**5, 10**6, 10**7):
        target = logistic(num_data, 15, dtype=np.float32)
        sampler = mt.sghmc(target, step_size=1e-5, num_steps=NUM_STEPS)
        state = sampler.init(key, jnp.zeros((4, 15), jnp.float32))
        runs[f"{num_data:.0e}"] = lambda sampler=sampler, state=state: iterate(
            sampler, key, state, NUM_ITERATIONS
        )
    seconds = time_interleaved(runs, ROUNDS)
    for name in runs:
        table.add_row(name, f"{ratio(seconds, name, '1e+04'):.2f}")
    return table


def network(batch_size, sizes=(784, 126, 10), num_data=10_000):
    """A classifier with 10^5 weights, float32."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_data, sizes[0])).astype(np.float32)
    label = rng.integers(sizes[-1], size=num_data).astype(np.int32)
    weights = [(0.1 * rng.normal(size=pair)).astype(np.float32) for pair in pairwise(sizes)]
    initial = {f"layer{i}": jnp.asarray(weight) for i, weight in enumerate(weights)}
    return mt.dataset(
        prior_of_weights, likelihood_of_label, (x, label), initial, batch_size=batch_size
    )


def prior_of_weights(weights):
    return sum(-0.5 * jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))


def likelihood_of_label(weights, datum):
    x, label = datum
    hidden = jax.nn.relu(x @ weights["layer0"])
    return jax.nn.log_softmax(hidden @ weights["layer1"])[label]


def network_table():
    """Print the table. With a batch of 100 the gradient costs less than a normal per weight."""
    columns = {batch_size: network_ratios(batch_size) for batch_size in (100, 1000)}
    table = Table(title="a network with 100,044 weights, 1 chain, float32: per gradient / bare")
    table.add_column("sampler")
    for batch_size in columns:
        table.add_column(f"batch {batch_size}", justify="right")
    for name in columns[100]:
        table.add_row(name, *[f"{ratios[name]:.2f}" for ratios in columns.values()])
    return table


def network_ratios(batch_size):
    target = network(batch_size)
    dim, rank, key = len(target.initial), 10, mt.key(0)
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, rank)))[0]
    ones = np.ones(dim, np.float32)
    diagonal = mt.diagonal_mass(ones)
    low_rank = mt.low_rank_mass(
        ones, directions.astype(np.float32), np.full(rank, 4, dtype=np.float32)
    )
    positions = target.initial[None]
    step_size = jnp.array(1e-5, jnp.float32)
    runs: dict[str, Any] = {"bare": lambda: bare(target, key, positions, 20, NUM_STEPS)}
    for kernel in (mt.kernels.sghmc, mt.kernels.sgnht):
        for mass in (diagonal, low_rank):
            sampler = mt.fixed(kernel(target, NUM_STEPS), mt.Learnt(mass, step_size))
            name = f"{kernel.__name__}, {type(mass).__name__}"
            state = sampler.init(key, positions)
            runs[name] = lambda sampler=sampler, state=state: iterate(sampler, key, state, 20)
    sampler = mt.sghmc_em(target, NUM_STEPS)
    state = sampler.init(key, positions)
    runs["sghmc-em, DiagonalMass"] = lambda: iterate(sampler, key, state, 20)
    seconds = time_interleaved(runs, 11)
    return {name: ratio(seconds, name, "bare") for name in runs}


TABLES = {"kernels": kernels_table, "rows": rows_table, "network": network_table}


def main():
    jax.config.update("jax_enable_x64", True)
    console = Console(width=160)
    for name in sys.argv[1:] or TABLES:
        console.print(TABLES[name]())


if __name__ == "__main__":
    main()

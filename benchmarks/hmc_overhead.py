"""What HMC costs beyond its gradients, and EM beyond HMC.

    python benchmarks/hmc_overhead.py

Each contender is a compiled loop of the same number of iterations of 4 chains in x64, with 10
leapfrog steps each:

    bare        nothing but the gradients (value and gradient at a point that moves a little)
    hmc         fixed mass
    hmc-em      the same with Monte Carlo EM, growing E-steps, the paper's momentum M-step / fisher
    blackjax    BlackJAX's HMC with the same mass and step size

Targets that must hold: hmc / bare <= 1.3, hmc-em / hmc <= 1.05, hmc / blackjax <= 1.
"""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import momentem as mt
from momentem.reproduce.timing import iterate, ratio, time_interleaved

NUM_CHAINS, NUM_STEPS, NUM_ITERATIONS, ROUNDS = 4, 10, 200, 15


def gaussian(num_data):
    """Return p(mu, tau | x) of the paper's first experiment, tau on the log scale."""
    x = np.random.default_rng(0).normal(size=num_data)

    def log_prior(p):
        return -0.5 * p["tau"]

    def log_likelihood(p, x):
        return 0.5 * jnp.log(p["tau"]) - 0.5 * p["tau"] * (x - p["mu"]) ** 2

    return mt.dataset(
        log_prior, log_likelihood, x, {"mu": 0.0, "tau": 1.0}, {"tau": mt.constraints.positive}
    )


def logistic(num_data, dim):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_data, dim))
    y = (rng.uniform(size=num_data) < 1 / (1 + np.exp(-x @ np.ones(dim)))).astype(float)

    def log_prior(w):
        return -0.05 * jnp.sum(w**2)

    def log_likelihood(w, datum):
        logit = datum[0] @ w
        return datum[1] * logit - jnp.logaddexp(0.0, logit)

    return mt.dataset(log_prior, log_likelihood, (x, y), jnp.zeros(dim))


def loop(step, state, key):
    """Run step(key, state) NUM_ITERATIONS times."""

    def iterate(i, state):
        return step(jax.random.fold_in(key, i), state)

    return jax.lax.fori_loop(0, NUM_ITERATIONS, iterate, state)


def contenders(target, step_size):
    dim = len(target.initial)
    key, positions = mt.key(0), jnp.broadcast_to(target.initial, (NUM_CHAINS, dim))
    mass = mt.dense_mass(np.eye(dim))

    @jax.jit
    def bare(target, positions):
        gradient = jax.vmap(jax.value_and_grad(target.logdensity))

        def step(_, carry):
            positions, total = carry
            values, gradients = gradient(positions)
            return positions + 1e-12 * gradients, total + values

        start = (positions, jnp.zeros(NUM_CHAINS))
        return jax.lax.fori_loop(0, NUM_ITERATIONS * NUM_STEPS, step, start)

    @jax.jit
    def run_blackjax(target, state):
        kernel = blackjax.hmc(
            target.logdensity,
            step_size=step_size,
            inverse_mass_matrix=mass.inverse_mass,
            num_integration_steps=NUM_STEPS,
        )
        many = jax.vmap(lambda key, state: kernel.step(key, state)[0])
        return loop(lambda key, state: many(jax.random.split(key, NUM_CHAINS), state), state, key)

    def ours(sampler):
        state = sampler.init(key, positions)
        return lambda: iterate(sampler, key, state, NUM_ITERATIONS)

    em = {"step_size": step_size, "num_steps": NUM_STEPS, "mass": mass}
    peer = jax.vmap(lambda x: blackjax.hmc.init(x, target.logdensity))(positions)
    return {
        "bare": lambda: bare(target, positions),
        "hmc": ours(mt.hmc(target, step_size, NUM_STEPS, mass)),
        "hmc-em momentum": ours(mt.hmc_em(target, m_step=mt.m_steps.momentum(), **em)),
        "hmc-em fisher": ours(mt.hmc_em(target, m_step=mt.m_steps.fisher(), **em)),
        "blackjax": lambda: run_blackjax(target, peer),
    }


def main():
    jax.config.update("jax_enable_x64", True)
    table = Table(
        title=f"{NUM_CHAINS} chains, {NUM_STEPS} leapfrogs; medians of {ROUNDS} interleaved rounds"
    )
    columns = ["target", "bare, us/iteration", "hmc / bare", "hmc-em momentum / hmc"]
    for column in [*columns, "hmc-em fisher / hmc", "hmc / blackjax"]:
        table.add_column(column, justify="left" if column == "target" else "right")
    problems = {
        "(mu, tau), N = 5,000": (gaussian(5000), 1e-3),
        "logistic, N = 2,000, D = 2": (logistic(2000, 2), 1e-2),
        "logistic, N = 2,000, D = 25": (logistic(2000, 25), 1e-2),
    }
    for name, (target, step_size) in problems.items():
        seconds = time_interleaved(contenders(target, step_size), ROUNDS)
        table.add_row(
            name,
            f"{np.median(seconds['bare']) / NUM_ITERATIONS * 1e6:.0f}",
            f"{ratio(seconds, 'hmc', 'bare'):.3f}",
            f"{ratio(seconds, 'hmc-em momentum', 'hmc'):.3f}",
            f"{ratio(seconds, 'hmc-em fisher', 'hmc'):.3f}",
            f"{ratio(seconds, 'hmc', 'blackjax'):.3f}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

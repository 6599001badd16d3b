"""What each M-step learns, and how the momentum M-step behaves at stationarity.

    python benchmarks/mass_learning.py

First table: cond(M_I P) on a rotated Gaussian, D = 10, condition 100, after 5,000 iterations of 4
chains (step size .15, 10 leapfrogs, E-steps of 200 pooled draws), started at stationarity and 30
standard deviations out. 1 is ideal, 100 is what the identity has.

Second table: the geometric mean eigenvalue of M_I after 200 momentum M-steps on exact momenta p ~
N(0, M), started from the identity: 1 is right, for every M is a fixed point. The corrected rule has
S = 4 D + 100, the printed one S = 100.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import momentem as mt

DIM, SEEDS = 10, range(3)


def learnt_condition(m_step, scale, seed):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    precision = basis * np.logspace(-1, 1, DIM) @ basis.T
    bound = jax.tree_util.Partial(gaussian, jnp.asarray(precision))
    target = mt.density(bound, jnp.zeros(DIM))
    starts = rng.normal(size=(4, DIM)) @ np.linalg.cholesky(np.linalg.inv(precision)).T
    sampler = mt.hmc_em(target, 0.15, 10, m_step=m_step, e_step=mt.e_steps.constant(200))
    trace = mt.sample(
        target, sampler, num_draws=16, num_warmup=5000, positions=scale * starts, seed=seed
    )
    whitened = np.linalg.eigvals(
        trace["em"].to_dataset()["final_inverse_mass"].values @ precision
    ).real
    return whitened.max() / whitened.min()


def gaussian(precision, x):
    return -0.5 * x @ precision @ x


def resting_eigenvalue(m_step, dim, size, num_m_steps=200):
    averaging = mt.schedules.polynomial()

    def iterate(mass, inputs):
        k, key = inputs
        learnt = mt.Learnt(mass, jnp.array(0.1))
        p = jax.vmap(mass.sample)(jax.random.split(key, size))
        statistic = m_step.update(m_step.init(mass, size), mt.Info(p, p, p, {}), learnt)
        return mass.average(m_step.estimate(statistic, learnt), averaging(k)), None

    ks = jnp.arange(1, num_m_steps + 1, dtype=float)
    keys = jax.random.split(jax.random.key(dim), num_m_steps)
    mass = jax.lax.scan(iterate, mt.dense_mass(np.eye(dim)), (ks, keys))[0]
    return float(jnp.exp(-mass.log_determinant() / dim))


def main():
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", mt.SamplingWarning)  # the masses are asked about, not the draws
    console = Console()
    learning = Table(title=f"cond(M_I P), range over {len(SEEDS)} seeds")
    for column in ("M-step", "stationary start", "far start"):
        learning.add_column(column)
    for name in ("momentum", "momentum_printed", "score", "draws", "fisher"):
        m_step = getattr(mt.m_steps, name)()
        cells = []
        for scale in (1, 30):
            found = [learnt_condition(m_step, scale, seed) for seed in SEEDS]
            cells.append(f"{min(found):.3g} … {max(found):.3g}")
        learning.add_row(name, *cells)
    console.print(learning)

    resting = Table(title="geometric mean eigenvalue of M_I after 200 M-steps at rest")
    for column in ("D", "momentum, S = 4 D + 100", "momentum_printed, S = 100"):
        resting.add_column(column)
    for dim in (2, 10, 50):
        corrected = resting_eigenvalue(mt.m_steps.momentum(), dim, 4 * dim + 100)
        printed = resting_eigenvalue(mt.m_steps.momentum_printed(), dim, 100)
        resting.add_row(str(dim), f"{corrected:.3g}", f"{printed:.3g}")
    console.print(resting)


if __name__ == "__main__":
    main()

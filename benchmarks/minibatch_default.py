"""The default sampler of minibatch targets, with nothing set, against the known posterior.

    python benchmarks/minibatch_default.py logistic 1e3 1e4 1e5 1e6
    python benchmarks/minibatch_default.py poisson 1e5 --dtypes float32
    python benchmarks/minibatch_default.py linear 1e5

D = 20 columns, mixed at random with singular values over a factor 16 and scaled over a factor 10^3,
so that the posterior's precision has a condition number of some 10^6. Chains start at `initial` = 0
with the default spread of 1, which at N = 10^6 is up to 10^5 standard deviations out.

Truth: a long run on all data up to N = 10^4; above, mode and curvature, found by Newton's method in
float64 (the skewness of the posterior is below a hundredth there). Reported: extreme eigenvalues of
the whitened covariance of the draws (1 is right), the largest whitened error of the mean, the
smallest ESS of the whitened coordinates, the kinetic temperature, the length of warm-up, CPU
seconds with compilation, and the warnings.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

D = 20
SCALES = np.logspace(-1.5, 1.5, D)


def log_prior(w):
    return -0.5 * jnp.sum((w / 100) ** 2)


def logistic(w, datum):
    z = datum[0] @ w
    return datum[1] * z - jnp.logaddexp(0.0, z)


def poisson(w, datum):
    z = datum[0] @ w
    return datum[1] * z - jnp.exp(z)


def linear(w, datum):
    return -0.5 * (datum[1] - datum[0] @ w) ** 2


MODELS = {"logistic": logistic, "poisson": poisson, "linear": linear}


def problem(model, num_rows, dtype):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(2))
    mixing = left * np.logspace(0, -1.2, D) @ right * SCALES
    weights = rng.normal(size=D) / SCALES
    weights *= (0.5 if model == "poisson" else 1.5) / np.linalg.norm(mixing @ weights)
    x, y = np.empty((num_rows, D), dtype), np.empty(num_rows, dtype)
    for first in range(0, num_rows, 10**5):
        rows = slice(first, first + 10**5)
        x[rows] = rng.normal(size=(len(x[rows]), D)) @ mixing
        z = x[rows].astype(float) @ weights
        if model == "logistic":
            y[rows] = rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z))
        elif model == "poisson":
            y[rows] = rng.poisson(np.exp(z))
        else:
            y[rows] = z + rng.normal(size=len(z))
    return x, y, weights


def by_newton(model, x, y, start):
    """Return the mode, and a root of the precision there."""
    w, precision = start.copy(), np.eye(D)
    for _ in range(50):
        gradient, precision = -w / 1e4, np.eye(D) / 1e4
        for first in range(0, len(x), 10**5):
            rows, seen = x[first : first + 10**5].astype(float), y[first : first + 10**5]
            z = rows @ w
            if model == "logistic":
                mean = 1 / (1 + np.exp(-z))
                weight = mean * (1 - mean)
            else:
                mean = np.exp(z) if model == "poisson" else z
                weight = mean if model == "poisson" else np.ones_like(z)
            gradient = gradient + rows.T @ (seen - mean)
            precision = precision + (rows * weight[:, None]).T @ rows
        step = np.linalg.solve(precision, gradient)
        w = w + step
        if gradient @ step < 1e-8:
            break
    return w, np.linalg.cholesky(precision)


def by_hmc(mt, model, x, y):
    """Return mean and root of the precision of a long run on all data."""
    data = jax.tree.map(jnp.asarray, (x, y))
    target = mt.dataset(log_prior, MODELS[model], data, jnp.zeros(D, x.dtype))
    trace = mt.sample(target, mt.tuned_hmc_em(target), 10_000, num_chains=8, progress=False)
    draws = trace["posterior"]["position"].values.reshape(-1, D).astype(float)
    return draws.mean(axis=0), np.linalg.cholesky(np.linalg.inv(np.cov(draws.T)))


def score(draws, centre, root):
    """Return extreme eigenvalues of the whitened covariance, mean error and min ESS."""
    import arviz_stats
    from arviz_base import dict_to_dataset

    whitened = (draws.astype(float) - centre) @ root
    flat = whitened.reshape(-1, D)
    eigenvalues = np.linalg.eigvalsh(np.cov(flat.T))
    columns = dict_to_dataset({f"z{i}": whitened[..., i] for i in range(D)})
    ess = min(float(value) for value in arviz_stats.ess(columns, method="mean").values())
    return eigenvalues[0], eigenvalues[-1], np.abs(flat.mean(axis=0)).max(), ess


def row(mt, model, num_rows, dtype, batch, seeds, with_full):
    x, y, weights = problem(model, num_rows, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if num_rows <= 10**4:
            centre, root = by_hmc(mt, model, x, y)
        else:
            centre, root = by_newton(model, x, y, weights)
    samplers = ["minibatch"] * len(seeds) + ["all data"] * with_full
    for seed, name in zip([*seeds, *[0] * with_full], samplers, strict=True):
        begun = time.process_time()
        options = {} if name == "all data" else {"batch_size": batch}
        target = mt.dataset(log_prior, MODELS[model], (x, y), jnp.zeros(D, dtype), **options)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            trace = mt.sample(target, seed=seed, progress=False)
        seconds = time.process_time() - begun
        low, high, error, ess = score(trace["posterior"]["position"].values, centre, root)
        stats, em = trace["sample_stats"].to_dataset(), trace["em"].to_dataset()
        heat = float(stats["kinetic_temperature"].mean()) if "kinetic_temperature" in stats else 1
        control = bool(em["control_variates"][-1]) if "control_variates" in em else "-"
        is_right = low >= 0.85 and high <= 1.15 and error < 0.15 and ess >= 400
        print(
            f"{model:8} N={num_rows:<8.0e} {np.dtype(dtype).name} n={batch} {name} seed {seed}: "
            f"eigenvalues {low:.3f}..{high:.3f}, mean {error:.3f}, ESS {ess:.0f}, "
            f"temperature {heat:.4f}, step {float(stats['step_size'][0, -1]):.3g}, control "
            f"{control}, warm-up {int(em['iteration'][-1]) + 1}, draws {stats.sizes['draw']}, "
            f"{seconds:.1f} CPU s, {'holds' if is_right and abs(heat - 1) <= 0.02 else 'FAILS'}",
            *(f"\n    ! {w.message}" for w in found),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("rows", nargs="+", type=float)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--batch", default="100")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all-data", action="store_true")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    import momentem as mt

    batch = given.batch if given.batch == "auto" else int(given.batch)
    for rows in given.rows:
        for dtype in given.dtypes:
            row(mt, given.model, int(rows), dtype, batch, range(given.seeds), given.all_data)


if __name__ == "__main__":
    main()

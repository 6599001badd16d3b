"""The posteriors of the race: each one log density over an unconstrained vector.

Most are written for any library of arrays, `xp`, so that PyMC is given the same formula.

Logistic regressions have standardised covariates, an intercept, and weights of prior N(0, 10),
where 10 is the variance. Scales are sampled as logarithms. Synthetic data have fixed seeds.
"""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from momentem.reproduce import datasets

__all__ = ["POSTERIORS", "TROUBLE", "Posterior"]


class Posterior(NamedTuple):
    """What is sampled, the variances if they are known (the means are then 0), and whether the log
    density takes another library of arrays as a second argument."""

    logdensity: Callable
    dim: int
    variances: np.ndarray | None = None
    is_portable: bool = True


def logistic(x: np.ndarray, y: np.ndarray) -> Posterior:
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    design = np.insert(x, 0, 1.0, axis=1)

    def logdensity(w, xp: Any = jnp):
        logit = design @ w
        return xp.sum(y * logit - xp.logaddexp(0.0, logit)) - xp.sum(w**2) / 20

    return Posterior(logdensity, design.shape[1])


def table(path: str) -> list[list[str]]:
    """Return the rows of a file below MOMENTEM_DATA, without the header."""
    with open(Path(os.environ.get(datasets.DATA, ".")) / path) as file:
        return list(csv.reader(file))[1:]


def german() -> Posterior:
    rows = np.array(table("german_numeric/german_numeric.csv"), float)
    return logistic(rows[:, :-1], rows[:, -1])


def australian() -> Posterior:
    return logistic(*datasets.australian())


def pima() -> Posterior:
    rows = np.array([row[:-1] for row in table("pima/pima532_ripley.csv")], float)
    return logistic(rows[:, :-1], rows[:, -1])


def schools() -> Posterior:
    effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def logdensity(position, xp: Any = jnp):
        mean, log_scale, z = position[0], position[1], position[2:]
        scale = xp.exp(log_scale)
        prior = -((mean / 5) ** 2) / 2 - xp.log1p((scale / 5) ** 2) + log_scale - xp.sum(z**2) / 2
        return prior - xp.sum(((effect - mean - scale * z) / error) ** 2) / 2

    return Posterior(logdensity, 10)


def gaussian() -> Posterior:
    """A Gaussian with D = 50 and precisions from 1 to 1,000 along randomly rotated axes."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 50)))[0]
    precisions = np.logspace(0, 3, 50)
    precision = axes * precisions @ axes.T
    variances = np.diag(axes / precisions @ axes.T)
    return Posterior(lambda x, xp=jnp: -xp.sum(x * (precision @ x)) / 2, 50, variances)


def radon() -> Posterior:
    """Synthetic houses in 40 counties, similar to the radon data: an intercept per county."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 25, size=40)
    county = np.repeat(np.arange(40), sizes)
    is_basement = (rng.uniform(size=len(county)) < 0.8).astype(float)
    level = 1.5 + 0.35 * rng.normal(size=40)[county] - 0.7 * (1 - is_basement)
    y = level + 0.75 * rng.normal(size=len(county))

    def logdensity(position, xp: Any = jnp):
        mean, slope, log_between, log_within = (position[i] for i in range(4))
        z = position[4:]
        residual = y - mean - xp.exp(log_between) * z[county] - slope * (1 - is_basement)
        prior = -(mean**2 + slope**2) / 20 - (log_between**2 + log_within**2) / 2
        fit = -xp.sum((residual * xp.exp(-log_within)) ** 2) / 2 - len(county) * log_within
        return prior - xp.sum(z**2) / 2 + fit

    return Posterior(logdensity, 44)


def autoregression() -> Posterior:
    """AR(2) of 200 values."""
    rng, y = np.random.default_rng(3), np.zeros(200)
    for t in range(2, 200):
        y[t] = 0.5 + 0.6 * y[t - 1] - 0.3 * y[t - 2] + 0.7 * rng.normal()

    def logdensity(position, xp: Any = jnp):
        constant, first, second, log_scale = (position[i] for i in range(4))
        residual = y[2:] - constant - first * y[1:-1] - second * y[:-2]
        fit = -xp.sum((residual * xp.exp(-log_scale)) ** 2) / 2 - 198 * log_scale
        return fit - xp.sum(position**2) / 2

    return Posterior(logdensity, 4)


def garch() -> Posterior:
    """GARCH(1, 1) of 300 values: persistence and the shock's share of it are uniform."""
    rng, series, variance = np.random.default_rng(1), np.zeros(300), 1.0
    for t in range(300):
        series[t] = np.sqrt(variance) * rng.normal()
        variance = 0.1 + 0.2 * series[t] ** 2 + 0.7 * variance
    y = jnp.asarray(series)

    def logdensity(position):
        mean, log_constant, persistence_logit, share_logit = position
        persistence, share = jax.nn.sigmoid(position[2:])
        shock, memory = persistence * share, persistence * (1 - share)
        residual = y - mean

        def step(variance, r):
            fit = -jnp.log(variance) / 2 - r**2 / variance / 2
            return jnp.exp(log_constant) + shock * r**2 + memory * variance, fit

        fits = jax.lax.scan(step, jnp.var(y), residual)[1]
        uniform = sum(
            jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u) for u in (persistence_logit, share_logit)
        )
        return jnp.sum(fits) + uniform - mean**2 / 2 - (log_constant + 2) ** 2 / 2

    return Posterior(logdensity, 4, is_portable=False)


def gaussian_process() -> Posterior:
    """60 values of a function of 4 inputs, of which 2 matter: amplitude, noise, 4 lengths."""
    rng = np.random.default_rng(2)
    inputs = rng.uniform(-2, 2, size=(60, 4))
    values = np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.3 * rng.normal(size=60)
    squares, y = jnp.asarray((inputs[:, None] - inputs) ** 2), jnp.asarray(values)

    def logdensity(position):
        amplitude, noise, lengths = (
            jnp.exp(position[0]),
            jnp.exp(position[1]),
            jnp.exp(position[2:]),
        )
        covariance = amplitude**2 * jnp.exp(-squares @ lengths**-2 / 2)
        root = jnp.linalg.cholesky(covariance + (noise**2 + 1e-6) * jnp.eye(60))
        whitened = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        fit = -jnp.sum(whitened**2) / 2 - jnp.sum(jnp.log(jnp.diag(root)))
        return fit - jnp.sum(position**2) / 2

    return Posterior(logdensity, 6, is_portable=False)


def funnel() -> Posterior:
    """Neal's funnel in 10 dimensions."""

    def logdensity(x):
        return -(x[0] ** 2) / 18 - jnp.exp(-x[0]) * jnp.sum(x[1:] ** 2) / 2 - 4.5 * x[0]

    return Posterior(logdensity, 10)


def bimodal() -> Posterior:
    """Two normals, 17 standard deviations apart."""

    def logdensity(x):
        return jnp.logaddexp(-jnp.sum((x - 5) ** 2) / 2, -jnp.sum((x + 5) ** 2) / 2)

    return Posterior(logdensity, 3)


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "German credit": german,
    "Australian credit": australian,
    "Pima": pima,
    "Eight schools": schools,
    "Gaussian": gaussian,
    "Radon-like": radon,
    "AR(2)": autoregression,
    "GARCH(1, 1)": garch,
    "GP regression": gaussian_process,
}
TROUBLE: dict[str, Callable[[], Posterior]] = {"Funnel": funnel, "Two modes": bimodal}

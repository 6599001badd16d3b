"""The O-rings of the space shuttle: HMC against HMC-EM on a posterior that HMC with a plain mass
hardly explores.

Of 23 flights before the Challenger's last, seven had a damaged O-ring; the launch temperatures are
in Fahrenheit (Dalal, Fowlkes and Hoadley, JASA 84, 1989). The logistic regression of damage on the
raw temperature has an intercept and a slope with a correlation of -0.99 and scales that differ by a
factor of 70.

All samplers get the same step size, number of steps, starting mass and number of iterations.
"""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import momentem as mt

matplotlib.use("agg")
from matplotlib import pyplot as plt

TEMPERATURE = np.array(
    [66, 70, 69, 68, 67, 72, 73, 70, 57, 63, 70, 78, 67, 53, 67, 75, 70, 81, 76, 79, 75, 76, 58]
)
DAMAGED = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1])
OUT = Path("demo")


def log_prior(p):
    return -0.5 * (p["intercept"] / 20) ** 2 - 0.5 * p["slope"] ** 2


def log_likelihood(p, flight):
    temperature, damaged = flight
    logit = p["intercept"] + p["slope"] * temperature
    return damaged * logit - jnp.logaddexp(0.0, logit)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    data = (TEMPERATURE.astype(float), DAMAGED.astype(float))
    start = {"intercept": 0.0, "slope": 0.0}
    target = mt.dataset(log_prior, log_likelihood, data, start)

    # an inverse mass below the posterior's smallest variance, so that the first steps are stable
    mass = mt.dense_mass(1e-4 * np.eye(2))
    settings = {"step_size": 0.5, "num_steps": 10, "mass": mass}
    samplers = {
        "HMC": mt.hmc(target, **settings),
        "HMC-EM, momentum": mt.hmc_em(target, m_step=mt.m_steps.momentum(), **settings),
        "HMC-EM, fisher": mt.hmc_em(target, m_step=mt.m_steps.fisher(), **settings),
    }
    console = Console()
    table = Table(title="23 launches: damage of an O-ring against temperature")
    for column in ("method", "parameter", "mean", "sd", "ESS bulk", "ESS tail", "R-hat"):
        table.add_column(column, justify="left" if column in ("method", "parameter") else "right")
    traces = {}
    for name, sampler in samplers.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            traces[name] = mt.sample(target, sampler, num_draws=2000, num_warmup=2000, spread=0.01)
        for row in mt.summary(traces[name], round_to="none").itertuples():
            table.add_row(
                name,
                str(row.Index),
                f"{row.mean:.3f}",
                f"{row.sd:.3f}",
                f"{row.ess_bulk:.0f}",
                f"{row.ess_tail:.0f}",
                f"{row.r_hat:.3f}",
            )
        table.add_section()
        for warning in caught:
            console.print(f"[yellow]{name}:[/yellow] {warning.message}")
    console.print(table)

    OUT.mkdir(exist_ok=True)
    picture = OUT / "o-rings.png"
    draw(traces, picture)
    console.print(f"picture: {picture}")


def draw(traces, path: Path) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.5), constrained_layout=True)
    for name, trace in traces.items():
        posterior = trace["posterior"]
        axes[0, 0].plot(posterior["slope"].values[0], lw=0.6, label=name)
        axes[0, 1].plot(
            posterior["intercept"].values[0], posterior["slope"].values[0], ".", ms=1.5, label=name
        )
        if "em" in trace.children:
            em = trace["em"]
            axes[1, 0].plot(em["iteration"], em["condition_number"], ".-", label=name)
            axes[1, 1].plot(em["iteration"], em["e_step_size"], ".-", label=name)
    best = traces["HMC-EM, fisher"]["posterior"]
    grid = np.linspace(30, 85, 120)
    intercepts, slopes = best["intercept"].values.ravel(), best["slope"].values.ravel()
    risk = 1 / (1 + np.exp(-(intercepts[:, None] + slopes[:, None] * grid)))
    low, middle, high = np.quantile(risk, [0.05, 0.5, 0.95], axis=0)
    axes[0, 2].fill_between(grid, low, high, alpha=0.25, color="C2")
    axes[0, 2].plot(grid, middle, color="C2", label="median and 90 % interval")
    axes[0, 2].plot(TEMPERATURE, DAMAGED, "k|", ms=12)
    axes[0, 2].axvline(31, color="k", ls=":", label="the last launch, 31 F")
    autocorrelation(axes[1, 2], traces)
    titles = ["one chain's slope", "intercept and slope", "risk of damage by temperature"]
    titles += [
        "condition number of the learnt mass",
        "E-step size S",
        "autocorrelation of the slope",
    ]
    labels = [("draw", "slope"), ("intercept", "slope"), ("temperature, F", "probability")]
    labels += [("iteration", ""), ("iteration", "pooled draws"), ("lag", "")]
    for axis, title, (x, y) in zip(axes.flat, titles, labels, strict=True):
        axis.set(title=title, xlabel=x, ylabel=y)
        axis.legend(fontsize=7)
    axes[1, 0].set_yscale("log")
    figure.savefig(path, dpi=120)


def autocorrelation(axis, traces) -> None:
    for name, trace in traces.items():
        chains = trace["posterior"]["slope"].values
        chains = chains - chains.mean()
        lags = [np.mean(chains[:, : chains.shape[1] - lag] * chains[:, lag:]) for lag in range(60)]
        axis.plot(np.array(lags) / lags[0], label=name)


if __name__ == "__main__":
    main()

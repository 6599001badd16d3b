"""The page "How to know that a run is right": a run and a picture for each warning.

    python benchmarks/right.py [FOLDER]

writes right.md and right-*.png into the folder (docs). Every message on the page is one that the
run gave.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax.scipy.stats import cauchy, norm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import momentem as mt

BLUE, ORANGE = "#1f5a94", "#d1731a"
SCHOOLS = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]), jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def two_modes(x):
    return jnp.logaddexp(-0.5 * jnp.sum((x - 5) ** 2), -0.5 * jnp.sum((x + 5) ** 2) - 1)


def heavy(x):
    return jnp.sum(cauchy.logpdf(x))


def centred_schools(p):
    prior = norm.logpdf(p["mu"], 0, 5) + cauchy.logpdf(p["tau"], 0, 5)
    effects = jnp.sum(norm.logpdf(p["theta"], p["mu"], p["tau"]))
    return prior + effects + jnp.sum(norm.logpdf(SCHOOLS[0], p["theta"], SCHOOLS[1]))


def improper(x):
    return -0.5 * x[0] ** 2 + 0.0 * x[1]


def rounded(x):
    return jnp.float32(1e7) - 0.5 * jnp.sum(x**2)


class Case(NamedTuple):
    """A run, what is seen in it, and what to do."""

    title: str
    target: Callable[[], mt.Target]
    draw: Callable[[plt.Axes, dict, dict], None]
    text: str


def rows(axes: plt.Axes, values: np.ndarray, label: str) -> None:
    """Draw one number of every chain, one above the other in colour."""
    for chain, row in enumerate(values):
        colour = plt.get_cmap("viridis")(chain / len(values))
        axes.plot(row, lw=0.6, color=colour, label=f"chain {chain}")
    axes.set(xlabel="draw", ylabel=label)


def ranks(axes: plt.Axes, values: np.ndarray) -> None:
    """Draw the histogram of the ranks of every chain's draws among all draws."""
    order = values.ravel().argsort().argsort().reshape(values.shape)
    for chain, row in enumerate(order):
        heights, edges = np.histogram(row, 20, (0, values.size))
        axes.stairs(heights, edges, color=plt.get_cmap("viridis")(chain / len(values)))
    axes.axhline(values.shape[1] / 20, color="grey", lw=0.5)
    axes.set(xlabel="rank among all draws", ylabel="draws", ylim=(0, None))


def tail(axes: plt.Axes, values: np.ndarray) -> None:
    """Draw running means of the chains."""
    means = np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1)
    rows(axes, means, "running mean of x[0]")


def neck(axes: plt.Axes, draws: dict, stats: dict) -> None:
    """Draw a funnel, its refined and its diverging draws."""
    tau, theta = np.log(draws["tau"]).ravel(), draws["theta"][..., 0].ravel()
    level, lost = stats["refinement_level"].ravel(), stats["diverging"].ravel()
    axes.scatter(theta, tau, 2, c=np.where(level > 0, ORANGE, BLUE), alpha=0.3, lw=0)
    axes.scatter(theta[lost], tau[lost], 14, c="black", marker="x")
    axes.set(xlabel="theta[0]", ylabel="log tau", title="orange: refined; x: diverging")


CASES = {
    "right": Case(
        "A run that is right",
        lambda: mt.density(lambda x: jnp.sum(3 * x - jnp.exp(x)), jnp.zeros(3)),
        lambda axes, draws, stats: ranks(axes, draws["position"][..., 0]),
        "No warning. R-hat is below 1.01, and bulk and tail ESS (5 % and 95 %) are above 100 "
        "per chain for every number. The ranks of each chain's draws among all draws are level: no "
        "chain has seen another part of the posterior than the others.",
    ),
    "places": Case(
        "Separate places",
        lambda: mt.density(two_modes, jnp.zeros(4)),
        lambda axes, draws, stats: rows(axes, draws["position"][..., 0], "position[0]"),
        "Each chain climbs from a start of its own, so modes that do not meet are seen as chains "
        "that stay apart. Their weights are *not* the numbers of chains. If one mode is spurious, "
        "exclude it by a prior; if both are real, no sampler of this kind can weigh them. That no "
        "chain found a second mode does not say that there is none: a larger `spread=` looks "
        "farther.",
    ),
    "heavy": Case(
        "A heavy tail",
        lambda: mt.density(heavy, jnp.zeros(2)),
        lambda axes, draws, stats: tail(axes, draws["position"][..., 0]),
        "A few draws far out decide the mean. Here (a Cauchy distribution) there is no mean, and "
        "running means jump for ever. Report the median and other quantiles, or draw more.",
    ),
    "neck": Case(
        "A narrow neck",
        lambda: mt.density(
            centred_schools,
            {"mu": jnp.array(0.0), "tau": jnp.array(1.0), "theta": jnp.zeros(8)},
            {"tau": mt.constraints.positive},
        ),
        neck,
        "In the neck of a hierarchy the effects are as narrow as their scale is small. Paths are "
        "refined there, up to 64 times; beyond, draws are counted as divergent, and what is "
        "narrower still may be missing. Write the model non-centred: theta = mu + tau * z with "
        "z ~ N(0, 1). A long way below the last draw, nothing is seen at all.",
    ),
    "improper": Case(
        "An improper posterior",
        lambda: mt.density(improper, jnp.zeros(2)),
        lambda axes, draws, stats: rows(axes, draws["position"][..., 1], "position[1]"),
        "Nothing holds this parameter. No sampler can help: give it a proper prior.",
    ),
    "coarse": Case(
        "A log density that is too coarse for float32",
        lambda: mt.density(rounded, jnp.zeros(3, jnp.float32)),
        lambda axes, draws, stats: rows(axes, stats["lp"][:, :200] - 1e7, "lp - 1e7"),
        "float32 holds seven digits. A log density of ten million, such as a sum over many data "
        "with its constants, is rounded to whole numbers, and acceptance is decided by rounding. "
        "Switch to float64, or drop the constants.",
    ),
}

PAGE = """# How to know that a run is right

`momentem.sample` judges its own run when it is over. A run without a warning has passed all the
checks below. A warning names what was seen, where, and what can be done about it.
`python benchmarks/right.py docs` makes this page: each message is what the run in the picture said,
with nothing set.

| check | limit | after |
|---|---|---|
| R-hat, rank-normalised, of every number | 1.01 | Vehtari et al. 2021 |
| ESS of the bulk and of the 5 % and 95 % quantiles | 100 per chain | the same |
| shape of the tails, 1/nu of a density like x^-(1 + nu) | 0.6 | Hill 1975 |
| E-BFMI | 0.3 | Betancourt 2016 |
| divergences: paths that lose their energy even in the shortest steps | none | Betancourt 2017 |
| a chain that stays at one point | 5 % of its draws | |
| rounding of the log density in float32 | 0.2 | |
| numbers that are not finite | none | |

What no check can see: a mode or a neck that no chain has entered. Several chains from wide starts
make it unlikely, and so does a second run with another seed and a larger `spread`.
"""


def show(name: str, case: Case, folder: Path) -> str:
    """Run a case, save its picture, and return its section."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mt.SamplingWarning)
        trace = mt.sample(case.target(), progress=False)
    draws, stats = (
        {key: array.values for key, array in trace[group].to_dataset().items()}
        for group in ("posterior", "sample_stats")
    )
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    case.draw(axes, draws, stats)
    figure.savefig(folder / f"right-{name}.png", dpi=110)
    plt.close(figure)
    said = [str(w.message) for w in caught if issubclass(w.category, mt.SamplingWarning)]
    quoted = "\n>\n".join(f"> {message}" for message in said)
    return f"\n## {case.title}\n\n![{case.title}](right-{name}.png)\n\n{quoted}\n\n{case.text}\n"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    sections = []
    for name, case in CASES.items():
        jax.config.update("jax_enable_x64", name != "coarse")
        sections.append(show(name, case, folder))
    (folder / "right.md").write_text(PAGE + "".join(sections))


if __name__ == "__main__":
    main()

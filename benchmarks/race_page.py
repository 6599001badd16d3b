"""The page of the race: tables and a picture from its runs."""

import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from race_contenders import CONTENDERS, JAX_NUTS, OURS
from race_posteriors import POSTERIORS

__all__ = ["Row", "write"]

BEGIN, END = "<!-- by hand -->", "<!-- end -->"
MAX_RHAT = 1.01
WRONG = 5.0  # combined Monte Carlo errors


class Row(NamedTuple):
    """One run."""

    chains: int
    posterior: str
    dim: int
    contender: str
    seed: int
    bulk: float
    tail: float
    squares: float
    rhat: float
    z: float
    warmup_gradients: int
    gradients: int
    draws: int
    needed: int
    is_drawn: bool
    seconds: float
    cpu: float
    sampling: float
    compile: float
    compile_cpu: float

    @classmethod
    def read(cls, texts: dict[str, str]) -> "Row":
        kinds: dict[str, Callable[[str], Any]] = dict(cls.__annotations__)
        kinds["is_drawn"] = lambda text: text == "True"
        return cls(**{name: kinds[name](text) for name, text in texts.items()})

    def ess(self) -> float:
        return min(self.bulk, self.tail, self.squares)

    def per_gradient(self) -> float:
        return 1000 * self.ess() / (self.warmup_gradients + self.gradients)

    def per_draw_gradient(self) -> float:
        return 1000 * self.ess() / self.gradients

    def central_per_gradient(self) -> float:
        """Return ESS per 1,000 gradients, without tails."""
        return 1000 * min(self.bulk, self.squares) / (self.warmup_gradients + self.gradients)

    def central_per_draw_gradient(self) -> float:
        return 1000 * min(self.bulk, self.squares) / self.gradients

    def per_second(self) -> float:
        return self.ess() / self.sampling

    def per_cpu_second(self) -> float:
        """Return ESS per CPU second, diagnostics included."""
        return self.ess() / self.cpu

    def converged(self) -> float:
        """Return seconds from an empty process; infinite if R-hat is too large at the end."""
        if not self.is_drawn and self.rhat >= MAX_RHAT:
            return float("inf")
        spent = self.warmup_gradients + self.gradients * self.needed / self.draws
        return self.compile + self.seconds * spent / (self.warmup_gradients + self.gradients)

    def converged_cpu(self) -> float:
        if not self.is_drawn and self.rhat >= MAX_RHAT:
            return float("inf")
        spent = self.warmup_gradients + self.gradients * self.needed / self.draws
        return self.compile_cpu + self.cpu * spent / (self.warmup_gradients + self.gradients)


def write(path: Path, rows: list[Row], troubles: dict[str, list[str]]) -> None:
    """Write the page and its picture, and keep what was written by hand.

    Args:
        path: of the page.
        rows: one for each run.
        troubles: warnings by posterior, for posteriors on which there should be one.
    """
    picture = path.with_suffix(".png")
    by_hand = f"{BEGIN}\n{END}"
    if path.is_file() and BEGIN in (old := path.read_text()):
        by_hand = BEGIN + old.split(BEGIN)[1].split(END)[0] + END
    counts = sorted({row.chains for row in rows})
    parts = [introduction(rows, picture), by_hand]
    for chains in counts:
        parts.append(section([row for row in rows if row.chains == chains], chains))
    parts.append(warned(troubles))
    path.write_text("\n\n".join(parts) + "\n")
    draw(picture, [row for row in rows if row.chains == counts[0]])


def introduction(rows: list[Row], picture: Path) -> str:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("momentem", "jax", "numpyro", "blackjax", "nutpie")
    )
    return f"""# Benchmarks

`mt.sample(target)` with nothing set is compared with NumPyro's NUTS (diagonal and dense mass),
BlackJAX's NUTS (window adaptation), BlackJAX's ChEES-HMC (without a mass, its default, and with a
diagonal one) and nutpie (diagonal and low rank), each at its defaults. These are 1,000 draws per
chain after 1,000 iterations of warm-up; nutpie has warm-ups of 400 (diagonal) and 800 (low rank),
and momentem decides both numbers itself.

All contenders sample the same JAX log densities in double precision, from the same starts, uniform
in (-2, 2) in every unconstrained parameter. They take turns, and every number is the median over
the seeds. This page is the output of

    python benchmarks/race.py

which defines every measure. [All runs]({picture.with_suffix(".csv").name}) are in a CSV file.
{versions}; {platform.machine()}, CPU.

nutpie is given the same compiled JAX function, which it calls from outside, once per gradient; most
of its seconds are spent in those calls. "nutpie, PyMC" (diagonal) is given the same formulas in a
PyMC model, compiled by Numba, and starts by its own rule. The GARCH model and the GP were not
translated to PyMC.

![The race in three measures]({picture.name})"""


def median(rows: list[Row], posterior: str, contender: str, measure: Callable[[Row], float]):
    found = [measure(r) for r in rows if (r.posterior, r.contender) == (posterior, contender)]
    return float(np.median(found)) if found else float("nan")


def posteriors_of(rows: list[Row]) -> list[str]:
    return [name for name in POSTERIORS if any(row.posterior == name for row in rows)]


def table(
    rows: list[Row],
    measure: Callable[[Row], float],
    is_more_better: bool,
    mark: Callable[[list[Row]], str] = lambda found: "",
    places: int | None = None,
) -> str:
    """Return a table of contenders by posteriors, the best of each column in bold."""
    names = posteriors_of(rows)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    best = {}
    for name in names:
        values = [median(rows, name, contender, measure) for contender in CONTENDERS]
        best[name] = np.nanmax(values) if is_more_better else np.nanmin(values)
    for contender in CONTENDERS:
        cells = []
        for name in names:
            found = [r for r in rows if (r.posterior, r.contender) == (name, contender)]
            value = median(rows, name, contender, measure)
            text = number(value, places) + (mark(found) if found else "")
            cells.append(f"**{text}**" if value == best[name] else text)
        lines.append(f"| {contender} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value: float, places: int | None = None) -> str:
    if np.isnan(value):
        return "–"
    if np.isinf(value):
        return "not reached"
    if places is not None:
        return f"{value:.{places}f}"
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def has(rows: list[Row], posterior: str, contender: str) -> bool:
    return any((row.posterior, row.contender) == (posterior, contender) for row in rows)


def ratio(rows: list[Row], name: str, measure: Callable[[Row], float], peers: list[str]) -> float:
    """Return the ratio of our median to the best of these contenders."""
    ours = median(rows, name, OURS, measure)
    return ours / np.nanmax([median(rows, name, peer, measure) for peer in peers])


def ratios(rows: list[Row]) -> str:
    names = [name for name in posteriors_of(rows) if has(rows, name, OURS)]
    peers = [name for name in CONTENDERS if name != OURS]
    lines = [
        "| momentem to | " + " | ".join(names) + " | |",
        "|---|" + "---:|" * len(names) + "---|",
    ]

    def add(title: str, measure: Callable[[Row], float], against: list[str], goal: float) -> None:
        found = [ratio(rows, name, measure, against) for name in names]
        reached = sum(value >= goal for value in found)
        cells = " | ".join(f"{value:.2g}" for value in found)
        lines.append(f"| {title} | {cells} | ≥ {goal:g} on {reached} of {len(names)} |")

    add("the best peer, ESS per gradient with warm-up", Row.per_gradient, peers, 1.3)
    add("… without tails", Row.central_per_gradient, peers, 1.3)
    add("the best peer, ESS per gradient of draws", Row.per_draw_gradient, peers, 1.3)
    add("the best JAX NUTS, ESS per second", Row.per_second, JAX_NUTS, 3.0)
    add("… in CPU seconds", Row.per_cpu_second, JAX_NUTS, 3.0)
    add("the best peer, ESS per second", Row.per_second, peers, 1.0)
    add("the best peer, speed to converged", lambda row: 1 / row.converged(), peers, 1.0)
    add("… in CPU seconds", lambda row: 1 / row.converged_cpu(), peers, 1.0)
    return "\n".join(lines)


def not_drawn(found: list[Row]) -> str:
    is_short = any(not row.is_drawn and np.isfinite(row.converged()) for row in found)
    return " *" if is_short else ""


def suspect(found: list[Row]) -> str:
    wrong = sum(row.z > WRONG for row in found)
    return f" ({wrong} of {len(found)} wrong)" if wrong else ""


def by_kind(rows: list[Row]) -> str:
    """Return a table of bulk, tail and squares, each of the parameter with the least."""
    names = posteriors_of(rows)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for contender in CONTENDERS:
        cells = []
        for name in names:
            kinds = (
                median(
                    rows,
                    name,
                    contender,
                    lambda r, kind=kind: (
                        1000 * getattr(r, kind) / (r.warmup_gradients + r.gradients)
                    ),
                )
                for kind in ("bulk", "tail", "squares")
            )
            cells.append(" / ".join(number(value) for value in kinds))
        lines.append(f"| {contender} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section(rows: list[Row], chains: int) -> str:
    names = posteriors_of(rows)
    sizes = {row.posterior: row.dim for row in rows}
    seeds = len({row.seed for row in rows})
    dims = ", ".join(f"{name} {sizes[name]}" for name in names)
    ours = [row for row in rows if row.contender == OURS]
    well = sum(
        row.rhat < MAX_RHAT and min(row.bulk, row.tail) > 400 and row.z <= WRONG for row in ours
    )
    blocks = [
        f"## {chains} chains",
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}. Dimensions: {dims}. Of momentem's "
        f"{len(ours)} runs, {well} have R-hat < 1.01, bulk and tail ESS > 400 and the right "
        "posterior.",
        "### Ratios",
        ratios(rows),
        "### ESS per 1,000 gradients, warm-up counted",
        table(rows, Row.per_gradient, True),
        "The smallest of bulk, tail and squares. Each by itself, as bulk / tail / squares:",
        by_kind(rows),
        "### ESS per 1,000 gradients of draws",
        table(rows, Row.per_draw_gradient, True),
        "### ESS per second, compiled",
        table(rows, Row.per_second, True),
        "### Seconds to compile",
        table(rows, lambda row: row.compile, False),
        "In CPU seconds:",
        table(rows, lambda row: row.compile_cpu, False),
        "### Seconds from nothing to converged",
        "\\* extrapolated in proportion to the ESS for at least one seed, because its run was too "
        "short. Not reached: R-hat is above 1.01 at the end of the run.",
        table(rows, Row.converged, False, not_drawn),
        "In CPU seconds:",
        table(rows, Row.converged_cpu, False, not_drawn),
        "### R-hat",
        "The largest over parameters.",
        table(rows, lambda row: row.rhat, False, places=3).replace("**", ""),
        "### Error",
        "The largest over parameters and squares, in combined Monte Carlo errors. "
        f"With {2 * min(sizes.values())} to {2 * max(sizes.values())} numbers checked, 2 to 3.5 is "
        f"to be expected; a run above {WRONG:g} is counted as wrong.",
        table(rows, lambda row: row.z, False, suspect).replace("**", ""),
    ]
    return "\n\n".join(blocks)


def warned(troubles: dict[str, list[str]]) -> str:
    lines = [
        "## Where it should warn",
        "`mt.sample(target)` warns on posteriors that it cannot sample well:",
    ]
    for name, messages in troubles.items():
        said = "; ".join(messages) if messages else "no warning"
        lines.append(f"- {name}: {said}")
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def draw(path: Path, rows: list[Row]) -> None:
    """Draw three panels, with a row of points per posterior."""
    mpl.use("agg")
    names = posteriors_of(rows)
    panels = {
        "ESS per 1,000 gradients, warm-up counted": Row.per_gradient,
        "ESS per second, compiled": Row.per_second,
        "Seconds from nothing to converged": Row.converged,
    }
    figure, axes = plt.subplots(1, 3, figsize=(13, 0.45 * len(names) + 2), sharey=True)
    colours = plt.colormaps["tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    for axis, (title, measure) in zip(axes, panels.items(), strict=True):
        for i, contender in enumerate(reversed(CONTENDERS)):
            values = [median(rows, name, contender, measure) for name in names]
            look: dict[str, Any] = {"marker": "o", "s": 35, "color": colours[i], "zorder": 2}
            if contender == OURS:
                look = {"marker": "D", "s": 70, "color": "black", "zorder": 3}
            axis.scatter(values, range(len(names)), label=contender, **look)
        axis.set_xscale("log")
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="lower center", ncols=5, fontsize=9)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)

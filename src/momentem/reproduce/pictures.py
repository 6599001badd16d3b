"""Pictures: traces, running RMSE, learnt mass and E-step size of every pair; times as bars."""

from pathlib import Path

import numpy as np

from momentem.reproduce.accuracy import Experiment, Found
from momentem.reproduce.contenders import PLAIN, TUNED
from momentem.reproduce.reports import Report
from momentem.run.figures import new_figure, saved

__all__ = ["accuracy_picture", "speed_picture"]

COLOURS = {"plain": "0.6", "printed": "C1", "tuned": "C0"}


def accuracy_picture(experiment: Experiment, found: Found, folder: Path) -> Path:
    """Draw one row for each pair of plain and learning sampler, for the first seed.

    Args:
        experiment: the experiment.
        found: its results.
        folder: the folder to write to.
    """
    figure = new_figure(figsize=(16, 2.6 * len(PLAIN)))
    axes = figure.subplots(len(PLAIN), 4, squeeze=False)
    problem = found.problems[0]
    for row, (learnt, plain) in zip(axes, PLAIN.items(), strict=True):
        named = {"plain": plain, "printed": learnt, "tuned": TUNED[learnt]}
        for kind, name in named.items():
            run, colour = found.runs[name], COLOURS[kind]
            draws = run.draws[0]
            thin = max(1, len(draws) // 500)
            row[0].plot(np.arange(len(draws))[::thin], draws[::thin, 0], color=colour, lw=0.6)
            centre = problem.mean if problem.generating is None else problem.generating
            squares = np.sum((draws[found.num_warmup :] - centre) ** 2, axis=1)
            running = np.sqrt(np.cumsum(squares) / np.arange(1, len(squares) + 1))
            row[1].plot(running, color=colour, label=name)
            if run.learning:
                row[2].plot(run.learning["inverse_mass_diagonal"], color=colour, lw=0.8)
                row[3].plot(run.learning["e_step_size"], color=colour)
        spread = np.sqrt(problem.covariance[0, 0])
        row[0].axhspan(
            problem.mean[0] - 2 * spread, problem.mean[0] + 2 * spread, color="C2", alpha=0.2
        )
        row[0].set_ylim(problem.mean[0] - 8 * spread, problem.mean[0] + 8 * spread)
        row[0].set_ylabel(learnt)
        row[1].legend(fontsize=7)
        for axis in row[1:]:
            axis.set_yscale("log")
    titles = ("trace of the first parameter", "running RMSE", "learnt 1 / mass", "E-step size")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    figure.suptitle(f"{experiment.title} (band: posterior mean ± 2 sd)")
    return saved(figure, folder / f"{experiment.name}.png")


def speed_picture(report: Report, folder: Path) -> Path:
    """Draw the milliseconds of every sampler on every problem, the paper's beside ours.

    Args:
        report: of `speed.compare`.
        folder: the folder to write to.
    """
    titles = [name.removesuffix(", ms") for name in report.header if name.endswith(", ms")]
    figure = new_figure(figsize=(5 * len(titles), 4.5))
    axes = figure.subplots(1, len(titles), sharey=True)
    names = [row[0] for row in report.rows]
    places = np.arange(len(names))
    for i, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        for shift, column, label in ((0.2, 1 + 2 * i, "paper"), (-0.2, 2 + 2 * i, "here")):
            values = [float(row[column] or "nan") for row in report.rows]
            axis.barh(places + shift, values, 0.4, label=label)
        axis.set(title=title, xscale="log", xlabel="milliseconds per iteration")
        axis.set_yticks(places, names)
    axes[0].invert_yaxis()
    axes[0].legend()
    return saved(figure, folder / f"{report.name}.png")

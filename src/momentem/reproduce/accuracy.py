"""Accuracy of every sampler on a known posterior, over seeds with their own data.

    RMSE         root mean square distance of the draws from the generating values, as in the paper
    mean error   largest error of the posterior mean, in posterior standard deviations
    eigenvalues  extremes of the whitened covariance, averaged over seeds: 1 is right

An exact sampler has the RMSE of the posterior itself, which depends on the data. A chain that stays
near its start can have a smaller RMSE.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from momentem.reproduce.contenders import (
    NAMES,
    PLAIN,
    TUNED,
    Settings,
    contender,
    num_gradients,
)
from momentem.reproduce.grids import FRICTIONS, STEP_SIZES, choose_settings
from momentem.reproduce.problems import Problem
from momentem.reproduce.reports import Report, with_error
from momentem.reproduce.runs import Run, extremes, judge, run
from momentem.reproduce.speed import milliseconds

__all__ = ["Experiment", "Found", "experiment_reports", "measure"]

RIEMANNIAN = (("HMC-EM", "RHMC"), ("SGNHT-EM", "SGR-NPHMC"))  # pairs that the paper compares


class Experiment(NamedTuple):
    """An experiment: its problem, its settings, and the paper's results."""

    name: str
    title: str
    problem: Callable[[int], Problem]  # seed -> problem
    settings: Settings  # those that a grid chooses are overwritten
    grids: dict[str, tuple[float, ...]]  # frictions to choose from, with a step size, by sampler
    num_warmup: int
    num_draws: int
    most_seeds: int = 10
    parameters: tuple[str, ...] = ()  # those with generating values
    paper: dict[str, tuple[float, ...]] = {}  # noqa: RUF012  RMSEs and milliseconds, as printed


class Found(NamedTuple):
    """Results of an experiment."""

    problems: list[Problem]
    settings: Settings
    runs: dict[str, Run]
    judged: dict[str, dict[str, np.ndarray]]  # by sampler and measure, over seeds
    milliseconds: dict[str, float]
    num_warmup: int


def measure(experiment: Experiment, num_seeds: int, shorter: int, seed: int, rounds: int) -> Found:
    """Choose settings, run every sampler on every seed, and judge the draws.

    Args:
        experiment: the experiment.
        num_seeds: number of seeds, each with its own data.
        shorter: divisor of the numbers of iterations.
        seed: the first seed.
        rounds: of timing.
    """
    lengths = experiment.num_warmup // shorter, experiment.num_draws // shorter
    settings = experiment.settings
    pilot = experiment.problem(seed + 1000)
    for name, frictions in experiment.grids.items():
        settings = choose_settings(name, pilot, settings, frictions, *lengths)
    problems = [experiment.problem(seed + i) for i in range(num_seeds)]
    runs, judged = {}, {}
    for name in NAMES:
        samplers = [contender(name, problem, settings) for problem in problems]
        runs[name] = run(problems, samplers, *lengths, seed)
        each = [
            judge(problem, draws[lengths[0] :])
            for problem, draws in zip(problems, runs[name].draws, strict=True)
        ]
        judged[name] = {key: np.array([one[key] for one in each]) for key in each[0]}
    times = milliseconds(problems[0], settings, rounds)
    medians = {name: float(np.median(each)) for name, each in times.items()}
    return Found(problems, settings, runs, judged, medians, lengths[0])


def experiment_reports(experiment: Experiment, found: Found, seed: int) -> list[Report]:
    """Return the table, and the same numbers by M-step."""
    return [_table(experiment, found, seed), _by_m_step(experiment, found)]


def _table(experiment: Experiment, found: Found, seed: int) -> Report:
    header = ["sampler"]
    for parameter in experiment.parameters:
        header += [f"paper {parameter}", f"RMSE {parameter}"]
    header += ["mean error, sd", "eigenvalues", "ESS / 1,000 gradients", "ESS / s"]
    is_timed = any(len(each) > len(experiment.parameters) for each in experiment.paper.values())
    header += [*(["paper ms"] if is_timed else []), "ms", "divergences"]
    rows = []
    for name in NAMES:
        judged, printed = found.judged[name], experiment.paper.get(name, ())
        row = [name]
        for i in range(len(experiment.parameters)):
            row += [f"{printed[i]}" if printed else "", with_error(judged[f"rmse{i}"])]
        row += [with_error(judged["mean"]), _range(judged), f"{_ess(found, name):.3g}"]
        row.append(f"{1e3 * judged['ess'].mean() / found.milliseconds[name]:.3g}")
        row += [f"{printed[-1]}" if printed else ""] if is_timed else []
        row.append(f"{found.milliseconds[name]:.3g}")
        row.append(f"{int(found.runs[name].num_divergences.sum())}")
        rows.append(row)
    notes = [*_circumstances(experiment, found, seed), *_verdicts(experiment, found)]
    return Report(experiment.name, experiment.title, header, rows, notes)


def _ess(found: Found, name: str) -> float:
    """Return the ESS per 1,000 gradients: of all data for HMC and RHMC, of minibatches for the
    others."""
    gradients = found.settings.num_steps * num_gradients(name)
    return 1e3 * found.judged[name]["ess"].mean() / gradients


def _range(judged: dict[str, np.ndarray]) -> str:
    """Return the extreme eigenvalues of the average over seeds, which has less noise than the
    average of the extremes."""
    low, high = extremes(judged["covariance"].mean(axis=0))
    return f"{low:.3g} … {high:.3g}"


def _circumstances(experiment: Experiment, found: Found, seed: int) -> list[str]:
    settings, num_seeds = found.settings, len(found.problems)
    num_draws = found.runs["HMC"].draws.shape[1] - found.num_warmup
    notes = [
        f"{num_seeds} seeds from {seed} on; one chain each, with {found.num_warmup:,} iterations "
        f"of warm-up and {num_draws:,} draws; ± is a standard error over seeds.",
        "Step sizes " + _listed(settings.step_sizes) + "; frictions " + _listed(settings.frictions),
    ]
    notes[-1] += f"; {settings.num_steps} leapfrogs, {settings.fixed_points} fixed-point iterations"
    if experiment.grids:
        notes[-1] += (
            f". For {', '.join(experiment.grids)} a pilot run on other data chose the best step "
            f"size of {STEP_SIZES} and, where the paper has a grid, the best friction of "
            f"{FRICTIONS}"
        )
    notes[-1] += "."
    if experiment.parameters:
        floor = np.sqrt(np.mean([_expected_squares(each) for each in found.problems], axis=0))
        notes.append(
            f"An exact sampler has the RMSE {' and '.join(f'{each:.3g}' for each in floor)} here: "
            "the posterior's spread and the distance of its mean from the generating value."
        )
    return notes


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _expected_squares(problem: Problem) -> Any:
    return (problem.mean - problem.generating) ** 2 + np.diag(problem.covariance)


def _verdicts(experiment: Experiment, found: Found) -> list[str]:
    """Compare pairs of samplers by their differences per seed. A difference within two standard
    errors counts as none."""
    measures = {f"RMSE {name}": f"rmse{i}" for i, name in enumerate(experiment.parameters)}
    measures["error of the posterior mean, sd"] = "mean"
    pairs = list(RIEMANNIAN)
    for learnt, plain in PLAIN.items():
        pairs += [(learnt, plain), (TUNED[learnt], plain)]
    return [
        f"{one} against {other}: "
        + "; ".join(
            f"{what} {_difference(found.judged[one][key] - found.judged[other][key])}"
            for what, key in measures.items()
        )
        + "."
        for one, other in pairs
    ]


def _difference(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    if not np.isfinite(values).all() or not np.isfinite(error):
        return "cannot be determined"
    verdict = "the same" if abs(values.mean()) <= 2 * error else "lower"
    verdict = "higher" if verdict == "lower" and values.mean() > 0 else verdict
    return f"{verdict} ({values.mean():+.2g} ± {error:.1g})"


def _by_m_step(experiment: Experiment, found: Found) -> Report:
    """Return the results of the same dynamics with different masses."""
    masses = ("identity", "momentum, printed", "fisher / noise")
    header = ["sampler"]
    for what in ("mean error, sd", "eigenvalues", "ESS / 1,000 gradients"):
        header += [f"{what}: {mass}" for mass in masses]
    rows = []
    for learnt, plain in PLAIN.items():
        names = (plain, learnt, TUNED[learnt])
        row = [learnt, *[with_error(found.judged[name]["mean"]) for name in names]]
        row += [_range(found.judged[name]) for name in names]
        rows.append([*row, *[f"{_ess(found, name):.3g}" for name in names]])
    notes = [
        "identity: nothing is learnt; momentum, printed: the paper's M-step with the same step "
        "size and friction; fisher / noise: our M-step, which also sets the step size (HMC-EM: the "
        "step size is that of the whitened target)."
    ]
    title = f"{experiment.title}: by M-step"
    return Report(f"{experiment.name}-m-steps", title, header, rows, notes)

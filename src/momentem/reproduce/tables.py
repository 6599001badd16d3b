"""The paper's tables: the experiments of each, and the printed results."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from momentem.reproduce import datasets
from momentem.reproduce.accuracy import Experiment, experiment_reports, measure
from momentem.reproduce.contenders import Settings
from momentem.reproduce.grids import FRICTIONS
from momentem.reproduce.pictures import accuracy_picture, speed_picture
from momentem.reproduce.problems import Problem, classification, gaussian, synthetic
from momentem.reproduce.reports import Report
from momentem.reproduce.speed import compare
from momentem.reproduce.topic_tables import figure1, table4

__all__ = ["TABLES", "reproduce"]

STEP_SIZES = {
    "HMC": 1e-2,
    "RHMC": 0.15,
    "SGHMC": 1e-4,
    "SG-NPHMC": 1e-4,
    "SGR-NPHMC": 0.05,
    "SGNHT": 1e-4,
}
STOCHASTIC = ("SGHMC", "SG-NPHMC", "SGNHT")
NUM_CHAINS = 16  # of table 3, besides one chain: all chains share costs that arise once

TABLE_1 = Experiment(
    name="table1",
    title="Table 1: p(mu, tau | x), 5,000 points of N(0, 1)",
    problem=gaussian,
    settings=Settings(
        STEP_SIZES, {"SGHMC": 10.0, "SG-NPHMC": 1.0, "SGR-NPHMC": 0.01, "SGNHT": 1.0}
    ),
    grids={"SGHMC": (10.0,), "SG-NPHMC": FRICTIONS, "SGNHT": (1.0,)},
    num_warmup=5_000,
    num_draws=5_000,
    parameters=("mu", "tau"),
    paper={
        "HMC": (0.0196, 0.0197, 0.417),
        "HMC-EM": (0.0115, 0.0104, 0.423),
        "RHMC": (0.0111, 0.0089, 5.748),
        "SGHMC": (0.1590, 0.1646, 0.133),
        "SGHMC-EM": (0.0713, 0.2243, 0.132),
        "SG-NPHMC": (0.0326, 0.0433, 0.514),
        "SG-NPHMC-EM": (0.0274, 0.0354, 0.498),
        "SGR-NPHMC": (0.0240, 0.0308, 3.145),
        "SGNHT": (0.0344, 0.0335, 0.148),
        "SGNHT-EM": (0.0317, 0.0289, 0.148),
    },
)

LOGISTIC = Settings(
    STEP_SIZES,
    {"SGHMC": 1.0, "SG-NPHMC": 1.0, "SGR-NPHMC": 0.01, "SGNHT": 1.0},
    fixed_points=2,
)

TABLE_2 = Experiment(
    name="table2",
    title="Table 2: logistic regression, 2,000 points of two normals, labels drawn",
    problem=synthetic,
    settings=LOGISTIC,
    grids={"HMC": (0.0,)} | dict.fromkeys(STOCHASTIC, FRICTIONS),
    num_warmup=10_000,
    num_draws=5_000,
    parameters=("W0", "W1"),
    paper={
        "HMC": (0.0456, 0.1290),
        "HMC-EM": (0.0145, 0.0851),
        "RHMC": (0.0091, 0.0574),
        "SGHMC": (0.2812, 0.2717),
        "SGHMC-EM": (0.2804, 0.2583),
        "SG-NPHMC": (0.4945, 0.4263),
        "SG-NPHMC-EM": (0.0990, 0.4229),
        "SGR-NPHMC": (0.1901, 0.1925),
        "SGNHT": (0.2035, 0.1921),
        "SGNHT-EM": (0.1983, 0.1729),
    },
)

TABLE_2_SURE = TABLE_2._replace(
    name="table2-sure-labels",
    title="Table 2, the other reading: every point has the likelier label",
    problem=partial(synthetic, is_noisy=False),
    most_seeds=3,
)


class Effort(NamedTuple):
    """Size of a reproduction: seeds, length and rounds of timing."""

    num_seeds: int
    shorter: int  # factor by which runs are shorter than the paper's
    rounds: int  # of timing


def _effort(is_quick: bool) -> Effort:
    return Effort(3, 10, 5) if is_quick else Effort(10, 1, 31)


def _accuracy(
    experiments: list[Experiment], effort: Effort, seed: int, folder: Path | None
) -> list[Report]:
    reports = []
    for experiment in experiments:
        num_seeds = min(effort.num_seeds, experiment.most_seeds)
        found = measure(experiment, num_seeds, effort.shorter, seed, effort.rounds)
        reports += experiment_reports(experiment, found, seed)
        if folder is not None:
            accuracy_picture(experiment, found, folder)
    return reports


def table1(is_quick: bool, seed: int, folder: Path | None) -> list[Report]:
    """Return table 1: the Gaussian."""
    return _accuracy([TABLE_1], _effort(is_quick), seed, folder)


def table2(is_quick: bool, seed: int, folder: Path | None) -> list[Report]:
    """Return table 2: the logistic regression, with both readings of its labels."""
    experiments = [TABLE_2] if is_quick else [TABLE_2, TABLE_2_SURE]
    return _accuracy(experiments, _effort(is_quick), seed, folder)


def table3(is_quick: bool, seed: int, folder: Path | None) -> list[Report]:
    """Return table 3: times on three data sets, for one chain and for many, and the accuracy of
    every sampler on the real data."""
    effort = _effort(is_quick)
    real = {"Australian": datasets.australian(), "Heart": datasets.heart()}
    posteriors = {name: classification(data.standardised(), None) for name, data in real.items()}
    problems = {"synthetic": synthetic(seed)} | posteriors
    times = [compare(problems, LOGISTIC, effort.rounds)]
    if not is_quick:
        times.append(compare(problems, LOGISTIC, effort.rounds // 3, 0.5, NUM_CHAINS))
    if folder is not None:
        speed_picture(times[0], folder)
    experiments = [_on_real_data(*each) for each in posteriors.items() if not is_quick]
    return [*times, *_accuracy(experiments, effort, seed, folder)]


def _on_real_data(name: str, problem: Problem) -> Experiment:
    return TABLE_2._replace(
        name=f"table3-{name.lower()}",
        title=f"Logistic regression on the {name} data, standardised",
        problem=lambda seed: problem,
        num_warmup=2_000,
        parameters=(),
        paper={},
    )


TABLES: dict[str, Callable[[bool, int, Path | None], list[Report]]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "figure1": figure1,
}


def reproduce(
    name: str, is_quick: bool = False, out: str | Path | None = None, seed: int = 0
) -> list[Report]:
    """Reproduce one of the paper's tables, show it, and write it with its pictures.

    Args:
        name: "table1" to "table4", or "figure1".
        is_quick: use three seeds and a tenth of the iterations instead of ten seeds and all
            iterations; leave out the other reading of table 2 and the accuracy on table 3's data;
            run 450 iterations instead of 3,000 for table 4 and figure 1.
        out: the folder to write Markdown, CSV and PNG to. Default: nothing is written.
        seed: the same seed gives the same table, except for times.
    """
    if name not in TABLES:
        raise ValueError(f"name must be one of {sorted(TABLES)}, got {name!r}")
    folder = None if out is None else Path(out)
    reports = TABLES[name](is_quick, seed, folder)
    for report in reports:
        report.show()
        if folder is not None:
            report.write(folder)
    return reports

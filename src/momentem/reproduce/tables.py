"""Tables 1 to 3: every sampler over several seeds, each seed with data of its own.

    RMSE         sqrt(mean (draw - generating value)^2), the paper's; the data dominate it
    mean error   largest error of the posterior mean, in posterior standard deviations
    eigenvalues  extremes of the whitened covariance: 1 is right
    ESS          smallest over parameters, per 1,000 draws

Seeds run side by side in one program: samplers are pytrees, so that those of different data are
mapped over like any batch.
"""

import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
from arviz_base import dict_to_dataset
from rich.console import Console
from rich.table import Table

from momentem import datasets
from momentem.reproduce.contenders import PAPERS, PLAIN, TUNED, Settings, contenders
from momentem.reproduce.problems import Problem, classification, gaussian, synthetic
from momentem.targets.density import Target
from momentem.types import Sampler

__all__ = ["TABLES", "reproduce"]


class Experiment(NamedTuple):
    """A table with RMSEs."""

    title: str
    names: tuple[str, str]  # of the parameters
    problem: Callable[[int], Problem]
    settings: Settings
    num_burn_in: int
    num_draws: int
    paper: dict[str, tuple[float, float]]  # RMSEs as printed


TABLE_1 = Experiment(
    "Table 1: p(mu, tau | x), 5,000 points of N(0, 1)",
    ("mu", "tau"),
    gaussian,
    Settings(),
    5_000,
    5_000,
    {
        "HMC": (0.0196, 0.0197),
        "HMC-EM": (0.0115, 0.0104),
        "RHMC": (0.0111, 0.0089),
        "SGHMC": (0.1590, 0.1646),
        "SGHMC-EM": (0.0713, 0.2243),
        "SG-NPHMC": (0.0326, 0.0433),
        "SG-NPHMC-EM": (0.0274, 0.0354),
        "SGR-NPHMC": (0.0240, 0.0308),
        "SGNHT": (0.0344, 0.0335),
        "SGNHT-EM": (0.0317, 0.0289),
    },
)

TABLE_2 = Experiment(
    "Table 2: logistic regression, 2,000 points of two normals",
    ("W0", "W1"),
    synthetic,
    Settings(
        friction={"SGHMC": 1.0, "SGNHT": 1.0, "SG-NPHMC": 1.0, "SGR-NPHMC": 0.01}, fixed_points=2
    ),
    10_000,
    5_000,
    {
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

# milliseconds per iteration on synthetic data, Australian and Heart, as printed
TABLE_3 = {
    "HMC": (1.435, 0.987, 0.791),
    "HMC-EM": (1.428, 0.970, 0.799),
    "RHMC": (1550.0, 367.0, 209.0),
    "SGHMC": (0.200, 0.136, 0.112),
    "SGHMC-EM": (0.203, 0.141, 0.131),
    "SG-NPHMC": (0.731, 0.512, 0.403),
    "SG-NPHMC-EM": (0.803, 0.525, 0.426),
    "SGR-NPHMC": (6.720, 4.568, 3.676),
    "SGNHT": (0.302, 0.270, 0.166),
    "SGNHT-EM": (0.306, 0.251, 0.175),
}


class Rows(NamedTuple):
    """A table before it is set: the same rows go to the screen, to Markdown and to CSV."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def stack(samplers: list[Sampler]) -> tuple[Any, Any]:
    """Samplers of different data as one, and which of its leaves to map over: those that differ."""
    leaves = [jax.tree.leaves(sampler) for sampler in samplers]
    structure = jax.tree.structure(samplers[0])

    def is_shared(values: tuple) -> bool:
        return all(np.array_equal(np.asarray(value), np.asarray(values[0])) for value in values)

    columns = list(zip(*leaves, strict=True))
    axes = [None if is_shared(column) else 0 for column in columns]
    stacked = [
        column[0] if axis is None else jnp.stack([jnp.asarray(value) for value in column])
        for column, axis in zip(columns, axes, strict=True)
    ]
    return structure.unflatten(stacked), structure.unflatten(axes)


def draw(
    problems: list[Problem], samplers: list[Sampler], num_burn_in: int, num_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of one chain per problem, (problem, draw, parameter), and divergences of each."""
    sampler, axes = stack(samplers)
    keys = jax.random.split(jax.random.key(seed), len(problems))
    starts = jnp.stack([jnp.asarray(problem.start) for problem in problems])

    def run(sampler: Sampler, key: Any, start: Any) -> tuple[Any, Any]:
        init_key, run_key = jax.random.split(key)
        state = sampler.init(init_key, start[None])

        def step(i: Any, state: Any) -> tuple[Any, tuple]:
            state, info = sampler.step(jax.random.fold_in(run_key, i), state)
            return state, (info.chains.position[0], info.chains.stats["diverging"][0])

        state = jax.lax.fori_loop(0, num_burn_in, lambda i, state: step(i, state)[0], state)
        _, (positions, diverging) = jax.lax.scan(
            lambda state, i: step(i, state), state, num_burn_in + jnp.arange(num_draws)
        )
        return positions, jnp.sum(diverging)

    mapped = jax.jit(jax.vmap(run, in_axes=(axes, 0, 0)))
    positions, divergences = mapped(sampler, keys, starts)
    pairs = zip(problems, positions, strict=True)
    draws = [_parameters(problem.target, each) for problem, each in pairs]
    return np.stack(draws), np.asarray(divergences)


def _parameters(target: Target, positions: Any) -> np.ndarray:
    """Positions, (draw, D), as constrained parameters side by side."""
    leaves = jax.tree.leaves(jax.vmap(target.constrain)(positions))
    return np.concatenate([np.asarray(leaf).reshape(len(positions), -1) for leaf in leaves], axis=1)


def judge(problem: Problem, draws: np.ndarray) -> dict[str, float]:
    """What one run's draws are worth."""
    root = np.linalg.cholesky(problem.covariance)
    whitened = np.linalg.solve(root, (draws - problem.mean).T).T
    found = {"mean": float(np.abs(whitened.mean(axis=0)).max())}
    eigenvalues = np.linalg.eigvalsh(np.cov(whitened.T)) if np.isfinite(draws).all() else [np.nan]
    found["low"], found["high"] = float(eigenvalues[0]), float(eigenvalues[-1])
    columns = dict_to_dataset({f"x{i}": column[None] for i, column in enumerate(draws.T)})
    ess = min(float(value) for value in arviz_stats.ess(columns, method="mean").values())
    found["ess"] = 1000 * ess / len(draws)
    if problem.generating is not None:
        errors = np.sqrt(np.mean((draws - problem.generating) ** 2, axis=0))
        found |= {f"rmse{i}": float(error) for i, error in enumerate(errors)}
    return found


def _with_error(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.3g} ± {error:.1g}"


def accuracy(experiment: Experiment, num_seeds: int, shorter: int, seed: int) -> Rows:
    """A table of RMSEs, the paper's beside ours, and of errors that can be told from the data's."""
    problems = [experiment.problem(seed + i) for i in range(num_seeds)]
    made = [contenders(problem, experiment.settings) for problem in problems]
    lengths = experiment.num_burn_in // shorter, experiment.num_draws // shorter
    rows, found = [], {}
    for name in made[0]:
        draws, divergences = draw(problems, [each[name] for each in made], *lengths, seed)
        judged = [judge(*pair) for pair in zip(problems, draws, strict=True)]
        columns = {key: np.array([each[key] for each in judged]) for key in judged[0]}
        found[name] = columns
        printed = experiment.paper.get(name)
        rows.append(
            [
                name,
                *[f"{value}" for value in printed or ("", "")],
                _with_error(columns["rmse0"]),
                _with_error(columns["rmse1"]),
                _with_error(columns["mean"]),
                f"{columns['low'].mean():.2g} … {columns['high'].mean():.2g}",
                f"{columns['ess'].mean():.3g}",
                f"{int(divergences.sum())}",
            ]
        )
    a, b = experiment.names
    header = ["sampler", f"paper {a}", f"paper {b}", f"RMSE {a}", f"RMSE {b}"]
    header += ["mean error, sd", "eigenvalues", "ESS / 1,000", "divergences"]
    floor = [
        np.sqrt(np.mean([_expected_square(problem)[i] for problem in problems])) for i in (0, 1)
    ]
    notes = [
        f"{num_seeds} seeds from {seed} on, each with its own data; {lengths[0]:,} iterations of "
        f"burn-in and {lengths[1]:,} draws; ± is a standard error over seeds.",
        f"An exact sampler's RMSE is {floor[0]:.3g} and {floor[1]:.3g} here: posterior spread and "
        "distance of the posterior mean from the generating value.",
        f"Settings: {experiment.settings}.",
        *_verdicts(found),
    ]
    return Rows(experiment.title, header, rows, notes)


def _expected_square(problem: Problem) -> np.ndarray:
    assert problem.generating is not None
    return (problem.mean - problem.generating) ** 2 + np.diag(problem.covariance)


def _verdicts(found: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Whether learning lowered the error of the posterior mean, by seed-wise differences."""
    verdicts = []
    for learnt, plain in PLAIN.items():
        for name in (learnt, TUNED[learnt]):
            difference = found[name]["mean"] - found[plain]["mean"]
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            if not np.isfinite(error):
                verdict = "cannot be told from one seed"
            elif abs(difference.mean()) <= 2 * error:
                verdict = "no difference outside two standard errors"
            else:
                verdict = "better" if difference.mean() < 0 else "worse"
            verdicts.append(
                f"{name} against {plain}, error of the posterior mean: {verdict} "
                f"({difference.mean():+.3g} ± {error:.1g} sd)."
            )
    return verdicts


@jax.jit
def _iterate(sampler: Sampler, key: Any, state: Any, count: Any) -> Any:
    def step(i: Any, state: Any) -> Any:
        return sampler.step(jax.random.fold_in(key, i), state)[0]

    return jax.lax.fori_loop(0, count, step, state)


def _milliseconds(samplers: dict[str, Sampler], start: np.ndarray, rounds: int) -> dict:
    """Per iteration of one chain, in each round; contenders take turns, compiled before."""
    key = jax.random.key(0)
    states = {
        name: sampler.init(key, jnp.asarray(start)[None]) for name, sampler in samplers.items()
    }
    counts: dict[str, int] = {}
    for name, sampler in samplers.items():
        jax.block_until_ready(_iterate(sampler, key, states[name], 1))
        begun = time.perf_counter()
        jax.block_until_ready(_iterate(sampler, key, states[name], 20))
        counts[name] = max(20, round(0.02 * 20 / (time.perf_counter() - begun)))
    found: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(rounds):
        for name, sampler in samplers.items():
            begun = time.perf_counter()
            jax.block_until_ready(_iterate(sampler, key, states[name], counts[name]))
            found[name].append(1e3 * (time.perf_counter() - begun) / counts[name])
    return found


def timing(num_seeds: int, shorter: int, seed: int) -> Rows:
    """Table 3: time per iteration, and the ratios that do not depend on the machine."""
    del num_seeds
    australian, heart = datasets.australian(), datasets.heart()
    sets = {
        "synthetic": synthetic(seed),
        "Australian": classification(australian.standardised(), None),
        "Heart": classification(heart.standardised(), None),
    }
    settings = Settings(fixed_points=2, stochastic_step_size=1e-4)
    rounds = max(5, 31 // shorter)
    found = {
        name: _milliseconds(contenders(problem, settings), problem.start, rounds)
        for name, problem in sets.items()
    }
    rows = []
    names = [*PAPERS, *TUNED.values()]
    for name in names:
        row = [name]
        for column, times in enumerate(found.values()):
            row.append(f"{TABLE_3[name][column]}" if name in TABLE_3 else "")
            row.append(f"{np.median(times[name]):.3g}")
        for times in found.values():
            plain = PLAIN.get(name.split(",")[0])
            row.append("" if plain is None else f"{_ratio(times, name, plain):.2f}")
        rows.append(row)
    header = ["sampler"]
    for name in sets:
        header += [f"paper {name}, ms", f"{name}, ms"]
    header += [f"EM / plain, {name}" for name in sets]
    notes = [
        f"Medians of {rounds} interleaved rounds, one chain, {settings.num_steps} leapfrogs.",
        *[
            f"{riemannian} / {other}: "
            + ", ".join(f"{_ratio(times, riemannian, other):.3g}" for times in found.values())
            + "; the paper's "
            + ", ".join(
                f"{a / b:.3g}" for a, b in zip(TABLE_3[riemannian], TABLE_3[other], strict=True)
            )
            + "."
            for riemannian, other in (("RHMC", "HMC-EM"), ("SGR-NPHMC", "SG-NPHMC-EM"))
        ],
    ]
    return Rows("Table 3: milliseconds per iteration", header, rows, notes)


def _ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    return float(np.median(np.array(times[over]) / np.array(times[under])))


def table1(num_seeds: int, shorter: int, seed: int) -> Rows:
    """The Gaussian."""
    return accuracy(TABLE_1, num_seeds, shorter, seed)


def table2(num_seeds: int, shorter: int, seed: int) -> Rows:
    """The logistic regression."""
    return accuracy(TABLE_2, num_seeds, shorter, seed)


TABLES = {"table1": table1, "table2": table2, "table3": timing}


def reproduce(
    name: str, is_quick: bool = False, out: str | Path | None = None, seed: int = 0
) -> Rows:
    """Makes one of the paper's tables again, shows it, and writes it as Markdown and CSV.

    Args:
        name: "table1", "table2" or "table3".
        is_quick: three seeds and a tenth of the iterations instead of ten seeds and all of them.
        out: the folder to write to; None writes nothing.
        seed: the same seed gives the same table (times excepted).
    """
    if name not in TABLES:
        raise ValueError(f"name must be one of {sorted(TABLES)}, got {name!r}")
    num_seeds, shorter = (3, 10) if is_quick else (10, 1)
    rows = TABLES[name](num_seeds, shorter, seed)
    _show(rows)
    if out is not None:
        _write(rows, Path(out), name)
    return rows


def _show(rows: Rows) -> None:
    table = Table(title=rows.title, caption="\n".join(rows.notes), caption_justify="left")
    for column in rows.header:
        table.add_column(column, justify="left" if column == "sampler" else "right")
    for row in rows.rows:
        table.add_row(*row)
    Console(width=180).print(table)


def _write(rows: Rows, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([rows.header, *rows.rows])
    lines = [f"# {rows.title}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in [rows.header, ["---"] * len(rows.header)]]
    lines += ["| " + " | ".join(row) + " |" for row in rows.rows]
    lines += ["", *[f"- {note}" for note in rows.notes], ""]
    (folder / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")

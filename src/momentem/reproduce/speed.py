"""Time per iteration, and ratios of times that do not depend on the machine."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from momentem.reproduce.contenders import (
    NAMES,
    PLAIN,
    TUNED,
    Settings,
    contender,
    num_gradients,
)
from momentem.reproduce.problems import Problem
from momentem.reproduce.reports import Report
from momentem.reproduce.timing import bare, iterate, ratio, time_interleaved
from momentem.xla import keys

__all__ = ["BARE", "compare", "milliseconds"]

BARE = "minibatch gradients alone"

SLOW = (("RHMC", "HMC-EM"), ("SGR-NPHMC", "SG-NPHMC-EM"))

# milliseconds per iteration on the paper's machine
PAPER = {
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


def milliseconds(
    problem: Problem, settings: Settings, rounds: int, seconds: float = 0.02, num_chains: int = 1
) -> dict[str, list[float]]:
    """Measure milliseconds per iteration of all chains, in each round, for every contender and for
    minibatch gradients alone.

    Args:
        problem: the problem to sample.
        settings: of the contenders.
        rounds: number of turns of each contender.
        seconds: approximate length of a turn.
        num_chains: number of chains in one program.
    """
    key, start = keys.key(0), jnp.tile(jnp.asarray(problem.start)[None], (num_chains, 1))
    runs: dict[str, Callable[[int], Any]] = {
        BARE: lambda num: bare(problem.noisy, key, start, num, settings.num_steps)
    }
    for name in NAMES:
        sampler = contender(name, problem, settings)
        state = sampler.init(key, start)
        runs[name] = lambda num, sampler=sampler, state=state: iterate(sampler, key, state, num)
    counts = {name: _count(run, seconds) for name, run in runs.items()}
    turns = {name: lambda name=name: runs[name](counts[name]) for name in runs}
    found = time_interleaved(turns, rounds)
    return {name: [1e3 * each / counts[name] for each in found[name]] for name in runs}


def _count(run: Callable[[int], Any], seconds: float) -> int:
    """Return the number of iterations that take about `seconds`."""
    jax.block_until_ready(run(1))
    begun = time.perf_counter()
    jax.block_until_ready(run(20))
    return max(20, round(20 * seconds / (time.perf_counter() - begun)))


def compare(
    problems: dict[str, Problem],
    settings: Settings,
    rounds: int,
    seconds: float = 0.1,
    num_chains: int = 1,
) -> Report:
    """Return table 3: the times of every contender on every problem.

    Args:
        problems: by name.
        settings: of the contenders.
        rounds: number of turns of each contender.
        seconds: approximate length of a turn. E-steps grow, so a short turn has a larger share of
            M-steps than a run.
        num_chains: number of chains in one program. The paper has one.
    """
    found = {
        name: milliseconds(each, settings, rounds, seconds, num_chains)
        for name, each in problems.items()
    }
    rows = []
    for name in (*NAMES, BARE):
        row = [name]
        for column, times in enumerate(found.values()):
            row.append(f"{PAPER[name][column]}" if name in PAPER else "")
            row.append(f"{np.median(times[name]):.3g}")
        plain = PLAIN.get(name.split(",")[0])
        row += [f"{ratio(times, name, plain):.2f}" if plain else "" for times in found.values()]
        is_noisy, gradients = name.startswith("SG"), num_gradients(name)
        row += [
            f"{ratio(times, name, BARE) / gradients:.2f}" if is_noisy else ""
            for times in found.values()
        ]
        rows.append(row)
    header = ["sampler"]
    for name in problems:
        header += [f"{name}, paper ms", f"{name}, ms"]
    header += [f"EM / plain, {name}" for name in problems]
    header += [f"/ its gradients, {name}" for name in problems]
    notes = [
        f"Medians of {rounds} interleaved rounds, {settings.num_steps} leapfrogs, "
        f"{settings.fixed_points} fixed-point iterations, double precision; chains side by side: "
        f"{num_chains}.",
        "/ its gradients: the time of the sampler divided by the time of as many minibatch "
        "gradients, two per step for the Nose-Poincare samplers, and one for the others.",
        *_slowness(found),
    ]
    name, chains = (
        ("table3", "") if num_chains == 1 else ("table3-chains", f", {num_chains} chains")
    )
    return Report(name, f"Table 3: milliseconds per iteration{chains}", header, rows, notes)


def _slowness(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return notes on the times of Riemannian over learnt masses, and of learnt over fixed masses,
    with the paper's ratios beside ours."""
    notes = []
    for riemannian, learnt in SLOW:
        printed = zip(PAPER[riemannian], PAPER[learnt], strict=True)
        notes.append(
            f"{riemannian} / {learnt}: "
            + ", ".join(f"{ratio(times, riemannian, learnt):.3g}" for times in found.values())
            + "; the paper's "
            + ", ".join(f"{a / b:.3g}" for a, b in printed)
            + "."
        )
    for learnt, plain in PLAIN.items():
        for name in (learnt, TUNED[learnt]):
            ratios = [ratio(times, name, plain) for times in found.values()]
            verdict = "costs nothing" if max(ratios) <= 1.05 else "costs more than 5 %"
            notes.append(f"{name} {verdict}: {', '.join(f'{each:.2f}' for each in ratios)}.")
    return notes

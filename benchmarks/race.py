"""A race of `mt.sample(target)` with nothing set against NumPyro, BlackJAX and nutpie at their
defaults.

    MOMENTEM_DATA=... python benchmarks/race.py [--quick] [--chains 4 32] [--out docs/benchmarks.md]

German credit and Pima are read from MOMENTEM_DATA, and left out if they are not there. Per
posterior and seed the contenders take turns, each in a new process, in which it runs twice: the
first run compiles, the second is measured. The order rotates by one from posterior to posterior.
These are measured on all parameters and on their squares around the mean:

    ESS                  the smallest: bulk and tail of the parameters, bulk of the squares
    gradients            leapfrog steps, summed over chains
    seconds              of a run that is compiled already, warm-up and draws; for momentem without
                         its diagnostics, which the others do not make
    compile              seconds of the first run less those of the second, which is the same;
                         libraries are imported and JAX is initialised before
    time to converged    compile, warm-up, and the first draws at which R-hat < 1.01 and every ESS
                         >= 400; searched in steps of a twentieth, extrapolated in proportion to the
                         ESS if the run was too short. The seconds of a run, of the whole call with
                         its diagnostics, are divided by gradients
    error                of means and of mean squares, in combined Monte Carlo errors, against
                         20,000 further draws of NumPyro's dense NUTS, or the exact values

Seconds are those on the clock. CPU seconds are measured as well, for machines that do other work.

Every run is written to a CSV file beside the page, and the page is made from it; `--draw` makes the
page again without running. Text between the two "by hand" marks of the page is kept.
"""

import argparse
import csv
import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, NamedTuple

import arviz_stats
import jax
import numpy as np
from arviz_base import dict_to_dataset
from threadpoolctl import threadpool_limits

import momentem as mt
from momentem.run.loop import begin
from race_contenders import CONTENDERS, OURS, REFERENCE, SPREAD, Run, target_of
from race_page import Row, write
from race_posteriors import POSTERIORS, TROUBLE, Posterior

MAX_RHAT, MIN_ESS = 1.01, 400
QUICK = ("Eight schools", "AR(2)", "Pima")


class Reference(NamedTuple):
    """Means of the parameters, means of their squares around those means, and their errors."""

    centre: np.ndarray
    means: np.ndarray
    errors: np.ndarray


def now() -> np.ndarray:
    """Return seconds on the clock, and of the CPU."""
    return np.array([perf_counter(), process_time()])


def with_squares(draws: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return np.concatenate([draws, (draws - centre) ** 2], axis=-1)


def means_and_errors(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ess = arviz_stats.ess(dict_to_dataset({"x": values}), method="mean")["x"].values
    return values.mean(axis=(0, 1)), values.std(axis=(0, 1)) / np.sqrt(ess)


def reference(posterior: Posterior, num_draws: int) -> Reference:
    dim, num_chains = posterior.dim, 4
    if posterior.variances is not None:
        means = np.concatenate([np.zeros(dim), posterior.variances])
        return Reference(np.zeros(dim), means, np.zeros(2 * dim))
    run = CONTENDERS[REFERENCE](posterior, num_chains)
    pieces = []
    while sum(piece.shape[0] * piece.shape[1] for piece in pieces) < num_draws:
        seed = 1000 + len(pieces)
        pieces.append(run(seed, starts_of(posterior, num_chains, seed)).draws)
    draws = np.concatenate(pieces)
    centre = draws.mean(axis=(0, 1))
    return Reference(centre, *means_and_errors(with_squares(draws, centre)))


def starts_of(posterior: Posterior, num_chains: int, seed: int) -> np.ndarray:
    """Return the starts that `mt.sample` draws from the same seed."""
    return np.asarray(mt.starts(begin(seed)[0], target_of(posterior), num_chains, SPREAD))


def judged(draws: np.ndarray) -> dict[str, float]:
    """Return the smallest ESS of each kind, and the largest R-hat."""
    plain = dict_to_dataset({"x": draws})
    squares = dict_to_dataset({"x": (draws - draws.mean(axis=(0, 1))) ** 2})
    return {
        "bulk": float(arviz_stats.ess(plain, method="bulk")["x"].min()),
        "tail": float(arviz_stats.ess(plain, method="tail")["x"].min()),
        "squares": float(arviz_stats.ess(squares, method="bulk")["x"].min()),
        "rhat": float(arviz_stats.rhat(plain)["x"].max()),
    }


def least(found: dict[str, float]) -> float:
    return min(found["bulk"], found["tail"], found["squares"])


def needed(draws: np.ndarray, found: dict[str, float]) -> tuple[int, bool]:
    """Return the draws per chain until convergence, and whether they were drawn or extrapolated."""
    num_draws = draws.shape[1]
    if not least(found) > 0:
        return 10**9, False
    share = MIN_ESS / least(found)
    for twentieth in range(max(1, int(20 * share)), 21):
        length = num_draws * twentieth // 20
        here = found if length == num_draws else judged(draws[:, :length])
        if here["rhat"] < MAX_RHAT and least(here) >= MIN_ESS:
            return length, True
    return int(num_draws * max(1.0, share)), False


class Timed(NamedTuple):
    """A run, its seconds, and those of compiling: on the clock, and of the CPU."""

    run: Run
    took: np.ndarray
    compiling: np.ndarray


def timed(name: str, contender: str, num_chains: int, seed: int) -> Timed:
    """Run twice in this process, which has compiled nothing else, and return the second run.
    Compiling took the difference of the two times."""
    posterior = POSTERIORS[name]()
    starts = starts_of(posterior, num_chains, seed)
    jax.clear_caches()  # momentem draws its starts anew
    begun = now()
    runner = CONTENDERS[contender](posterior, num_chains)
    runner(seed, starts)
    compiled = now()
    run = runner(seed, starts)
    took = now() - compiled
    return Timed(run, took, np.maximum(0.0, compiled - begun - took))


def in_new_process(name: str, contender: str, num_chains: int, seed: int) -> Timed:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.npz"
        which = [name, contender, str(num_chains), str(seed), str(file)]
        subprocess.run([sys.executable, __file__, "--one", *which], check=True)
        with np.load(file) as found:
            draws, (before, after), sampling, took, compiling = (found[key] for key in found)
    return Timed(Run(draws, int(before), int(after), float(sampling)), took, compiling)


def save(file: str, one: Timed) -> None:
    run = one.run
    gradients = [run.warmup_gradients, run.gradients]
    np.savez(file, run.draws, gradients, run.sampling, one.took, one.compiling)


def race(
    name: str,
    contenders: list[str],
    num_chains: int,
    seeds: list[int],
    num_reference: int,
    turn: int,
) -> list[Row]:
    """Return the rows of all runs on one posterior."""
    posterior = POSTERIORS[name]()
    names = [c for c in contenders if posterior.is_portable or c != "nutpie, PyMC"]
    names = names[turn % 9 :] + names[: turn % 9]
    if not names:
        return []
    truth = reference(posterior, num_reference)
    rows = []
    for seed, contender in product(seeds, names):
        run, took, compiling = in_new_process(name, contender, num_chains, seed)
        found = judged(run.draws)
        length, is_drawn = needed(run.draws, found)
        means, errors = means_and_errors(with_squares(run.draws, truth.centre))
        z = np.abs(means - truth.means) / np.hypot(errors, truth.errors)
        row = Row(
            chains=num_chains,
            posterior=name,
            dim=posterior.dim,
            contender=contender,
            seed=seed,
            **found,
            z=float(z.max()),
            warmup_gradients=run.warmup_gradients,
            gradients=run.gradients,
            draws=run.draws.shape[1],
            needed=length,
            is_drawn=is_drawn,
            seconds=float(took[0]),
            cpu=float(took[1]),
            sampling=float(min(took[0], run.sampling)),
            compile=float(compiling[0]),
            compile_cpu=float(compiling[1]),
        )
        rows.append(row)
        print(
            f"{name:18s} {contender:25s} seed {seed}  ESS {least(found):6.0f}  per 1,000 "
            f"{row.per_gradient():6.1f}  R-hat {row.rhat:.3f}  z {row.z:4.1f}  "
            f"{row.seconds:6.2f} s  compile {row.compile:5.1f} s ({row.compile_cpu:4.1f})  "
            f"converged {row.converged():6.1f} ({row.converged_cpu():6.1f})",
            flush=True,
        )
    return rows


def warnings_of(posterior: Posterior) -> list[str]:
    """Return the warnings of `mt.sample(target)`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mt.sample(target_of(posterior))
    return [str(one.message) for one in caught if issubclass(one.category, mt.SamplingWarning)]


def stored(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with open(path) as file:
        return [Row.read(row) for row in csv.DictReader(file)]


def store(path: Path, rows: list[Row]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([format(v, ".4g") if isinstance(v, float) else v for v in r] for r in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="momentem's default against its peers")
    parser.add_argument("--quick", action="store_true", help="three posteriors, one seed")
    parser.add_argument("--chains", type=int, nargs="+", default=[4])
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--only", nargs="+", default=None, help="names of posteriors")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), help="names")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--draw", action="store_true", help="the page anew, without running")
    parser.add_argument("--one", nargs=5, help="posterior, contender, chains, seed, file: one run")
    args = parser.parse_args()
    default = Path("tables/race.md") if args.quick else Path("docs/benchmarks.md")
    out: Any = default if args.out is None else args.out
    out.parent.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # nutpie's many small calls
    warnings.simplefilter("ignore")
    threadpool_limits(1)  # on small matrices the threads of BLAS wait for each other
    if args.one:
        posterior, contender, chains, seed, file = args.one
        save(file, timed(posterior, contender, int(chains), int(seed)))
        return
    table = out.with_suffix(".csv")
    rows = stored(table)
    if not args.draw:
        names = args.only or (QUICK if args.quick else POSTERIORS)
        seeds = [0] if args.quick else list(range(args.seeds))
        for chains in args.chains:
            for turn, name in enumerate(names):
                try:
                    length = 8000 if args.quick else 20_000
                    new = race(name, args.contenders, chains, seeds, length, turn)
                except FileNotFoundError as error:
                    print(f"{name} is left out: {error}")
                    continue
                replaced = {(r.chains, r.posterior, r.contender) for r in new}
                kept = [r for r in rows if (r.chains, r.posterior, r.contender) not in replaced]
                rows = kept + new
                store(table, rows)
    troubles = {name: warnings_of(build()) for name, build in TROUBLE.items()}
    write(out, rows, troubles)
    print(f"{out}, from {len(rows)} runs; {OURS} against {len(CONTENDERS) - 1} peers")


if __name__ == "__main__":
    main()

"""The default on nineteen posteriors with trusted answers: right, or warned of?

    MOMENTEM_DATA=... python benchmarks/trusted.py [--seeds 0 1 …] [--dtypes float64 float32]
        [--contenders momentem nuts nuts-dense] [--only NAME ...] [--csv FILE]
    python benchmarks/trusted.py --csv FILE --page docs/trusted.md

`mt.sample(target)` with nothing set runs on every posterior of `trusted_posteriors`, over seeds and
dtypes. A run is right if R-hat < 1.01, bulk and tail ESS > 400, and its means, standard deviations
and quantiles at 1 % and 99 % are within 5 combined Monte Carlo errors of the reference, and its
means within a tenth of a standard deviation. A run that is wrong without a warning is silent, and
there must be none. NumPyro's NUTS can run too, with a diagonal and a dense mass.

Per run: gradients per chain in warm-up (the way in included) and in draws; ESS, the smallest of
bulk and tail, per 1,000 gradients, warm-up counted. `--page` writes the runs of a CSV file as a
page.
"""

import argparse
import csv
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

FIELDS = [
    *("posterior", "contender", "dtype", "seed", "verdict"),
    *("rhat", "ess", "worst_mean", "worst_sd", "worst_quantile", "bias"),
    *("warmup", "draws", "per_gradient", "seconds", "warnings"),
]
Z = 5.0


def run_one(contender: str, name: str, seed: int) -> dict:
    """Run one contender, and compare its draws with the reference."""
    import time

    import arviz_stats
    import numpy as np
    from arviz_base import dict_to_dataset

    from trusted_contenders import CONTENDERS
    from trusted_posteriors import posterior

    trusted = posterior(name)
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters, warmup, draws = CONTENDERS[contender](trusted, seed)
    seconds = time.perf_counter() - begun
    said = [str(w.message) for w in caught if type(w.message).__name__ == "SamplingWarning"]
    found, reference = trusted.report(parameters), SimpleNamespace(**trusted.reference)
    with np.errstate(all="ignore"):
        chains = {n: np.asarray(found[n], float) for n in reference.names}
        data = dict_to_dataset(chains)

        def each(statistic, **options):
            values = statistic(data, **options)
            return np.array([float(values[n]) for n in reference.names])

        rhat = each(arviz_stats.rhat).max()
        ess = min(each(arviz_stats.ess, method=m).min() for m in ("bulk", "tail"))
        mean = np.array([chains[n].mean() for n in reference.names])
        sd = np.array([chains[n].std() for n in reference.names])
        mean_z = np.abs(mean - reference.mean) / np.hypot(
            each(arviz_stats.mcse, method="mean"), reference.mcse_mean
        )
        sd_z = np.abs(sd - reference.sd) / np.hypot(
            each(arviz_stats.mcse, method="sd"), reference.mcse_sd
        )
        quantile_z = max(
            _quantile_errors(chains, reference, data, prob).max() for prob in (0.01, 0.99)
        )
        bias = (np.abs(mean - reference.mean) / reference.sd).max()
    worst = [mean_z.max(), sd_z.max(), quantile_z]
    is_right = rhat < 1.01 and ess > 400 and max(worst) < Z and bias < 0.1
    verdict = "right" if is_right else "warned" if said else "silent"
    per_gradient = 1000 * ess / (len(next(iter(chains.values()))) * (warmup + draws))
    return dict(
        verdict=verdict, rhat=rhat, ess=ess, worst_mean=worst[0], worst_sd=worst[1],
        worst_quantile=worst[2], bias=bias, warmup=warmup, draws=draws,
        per_gradient=per_gradient, seconds=seconds, warnings=" | ".join(said),
    )  # fmt: skip


def _quantile_errors(chains, reference, data, prob):
    """Return the errors of quantiles in Monte Carlo errors, on the scale of probability: the share
    of draws below the reference's quantile. The reference has 10,000 independent draws."""
    import arviz_stats
    import numpy as np

    column, errors = int(np.argmin(np.abs(np.subtract(reference.probs, prob)))), []
    ess = arviz_stats.ess(data, method="quantile", prob=prob)
    for i, name in enumerate(reference.names):
        share = (chains[name] <= reference.quantiles[i][column]).mean()
        size = 1 / (1 / max(float(ess[name]), 1.0) + 1 / 10_000)
        errors.append(abs(share - prob) / np.sqrt(prob * (1 - prob) / size))
    return np.array(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--dtypes", nargs="*", default=["float64", "float32"])
    parser.add_argument("--contenders", nargs="*", default=["momentem"])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--csv", type=Path, default=Path("trusted.csv"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", type=Path, help="write the page, and run nothing")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        contender, name = options.worker
        return work(contender, name, options.seeds)
    if options.page:
        options.page.write_text(page(list(csv.DictReader(options.csv.open()))))
        return None

    from concurrent.futures import ThreadPoolExecutor

    from trusted_posteriors import NAMES

    names = [n for n in NAMES if not options.only or any(part in n for part in options.only)]
    jobs: list[tuple[str, str, str]] = [
        (d, c, n) for n in names for d in options.dtypes for c in options.contenders
    ]
    is_new = not options.csv.exists()
    with options.csv.open("a", newline="") as file, ThreadPoolExecutor(options.jobs) as pool:
        rows = csv.DictWriter(file, FIELDS)
        if is_new:
            rows.writeheader()
        for found in pool.map(lambda j: _in_process(j[0], j[1], j[2], options.seeds), jobs):
            for row in found:
                rows.writerow(row)
                print(_line(row), flush=True)
            file.flush()


def _in_process(dtype: str, contender: str, name: str, seeds: list[int]) -> list[dict]:
    command = [sys.executable, __file__, "--worker", contender, name, "--seeds", *map(str, seeds)]
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    environment = {
        **os.environ,
        "JAX_ENABLE_X64": str(int(dtype == "float64")),
        "XLA_FLAGS": flags,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:  # a run that failed must not be missing from the table unnoticed
        raise RuntimeError(f"{contender} failed on {name} in {dtype}:\n{done.stderr[-2000:]}")
    rows = list(csv.DictReader(done.stdout.splitlines(), FIELDS))
    return [{**row, "dtype": dtype} for row in rows]


def work(contender: str, name: str, seeds: list[int]) -> None:
    rows = csv.DictWriter(sys.stdout, FIELDS)
    for seed in seeds:
        found = run_one(contender, name, seed)
        rows.writerow({"posterior": name, "contender": contender, "seed": seed, **found})


PAGE = """# Nineteen posteriors with trusted answers

Made by `python benchmarks/trusted.py`, with nothing set: 4 chains, starts at 0 ± 1 on the
unconstrained scale. The posteriors and their reference draws are those of
[posteriordb](https://github.com/stan-dev/posteriordb). A run is *right* if R-hat < 1.01, bulk
and tail ESS > 400, means, standard deviations and the quantiles at 1 % and 99 % are within 5
combined Monte Carlo errors of the reference, and means within a tenth of a standard deviation. A
run that is not right is *warned* of, or *silent*. ESS is the smallest of bulk and tail;
gradients are per chain, and those of the way in and of warm-up count. Medians over seeds, and
the largest warm-up.
"""


def page(rows: list[dict]) -> str:
    """Return the page of a table of runs."""
    parts = [PAGE]
    for contender in dict.fromkeys(row["contender"] for row in rows):
        for dtype in ("float64", "float32"):
            own = [r for r in rows if (r["contender"], r["dtype"]) == (contender, dtype)]
            parts += _table(contender, dtype, own) if own else []
    return "\n".join(parts + _ratios([r for r in rows if r["dtype"] == "float64"])) + "\n"


def _ratios(rows: list[dict]) -> list[str]:
    """Return a table of the ESS per gradient of momentem in units of those of the others."""
    from statistics import median

    ess: dict[tuple, list[float]] = {}
    for row in rows:
        ess.setdefault((row["contender"], row["posterior"]), []).append(float(row["per_gradient"]))
    peers = [c for c in dict.fromkeys(r["contender"] for r in rows) if c != "momentem"]
    if not peers:
        return []
    found = [
        "\n## ESS per gradient, momentem's in units of NUTS's\n",
        "Ratios of the medians over seeds, float64, warm-up counted on both sides. Of NUTS every "
        "run counts, right or not.\n",
        f"| posterior | {' | '.join(peers)} |",
        f"|---|{'---|' * len(peers)}",
    ]
    ratios = []
    for name in dict.fromkeys(r["posterior"] for r in rows if r["contender"] == peers[-1]):
        own = [median(ess["momentem", name]) / median(ess[c, name]) for c in peers]
        ratios.append(min(own))
        found.append(f"| {name.split('-')[1]} | {' | '.join(f'{ratio:.3g}' for ratio in own)} |")
    high = sum(ratio >= 1.3 for ratio in ratios)
    found.append(
        f"\nAt least 1.3 against all of them on {high} of {len(ratios)}; the least is "
        f"{min(ratios):.3g}."
    )
    return found


def _table(contender: str, dtype: str, rows: list[dict]) -> list[str]:
    from statistics import median

    counts = {v: sum(r["verdict"] == v for r in rows) for v in ("right", "warned", "silent")}
    clean = sum(r["verdict"] == "right" and not r["warnings"] for r in rows)
    warmups = [float(r["warmup"]) for r in rows]
    found = [
        f"\n## {contender}, {dtype}\n",
        f"{len(rows)} runs: {', '.join(f'{n} {v}' for v, n in counts.items())}; {clean} of the "
        f"{counts['right']} right runs without a warning. Gradients of warm-up per chain: median "
        f"{median(warmups):.0f}, at most {max(warmups):.0f}.\n",
        "| posterior | right | warned | silent | warm-up | at most | ESS per 1,000 gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(r["posterior"] for r in rows):
        own = [r for r in rows if r["posterior"] == name]
        told = [str(sum(r["verdict"] == v for r in own)) for v in counts]
        warmup = [float(r["warmup"]) for r in own]
        ess = median(float(r["per_gradient"]) for r in own)
        numbers = [*told, f"{median(warmup):.0f}", f"{max(warmup):.0f}", f"{ess:.3g}"]
        found.append(f"| {name.split('-')[1]} | {' | '.join(numbers)} |")
    said = [r for r in rows if r["warnings"]]
    if said:
        found.append("\nWarnings:\n")
    found += [
        f"- {r['posterior'].split('-')[1]}, seed {r['seed']} ({r['verdict']}): {r['warnings']}"
        for r in said
    ]
    return found


def _line(row: dict) -> str:
    numbers = " ".join(f"{field} {float(row[field]):.4g}" for field in FIELDS[5:-1])
    return (
        f"{row['posterior']} {row['contender']} {row['dtype']} seed {row['seed']}: "
        f"{row['verdict'].upper()} {numbers} {row['warnings'][:300]}"
    )


if __name__ == "__main__":
    main()

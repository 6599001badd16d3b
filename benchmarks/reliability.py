"""Reliability in figures: one command prints the table.

python benchmarks/reliability.py                 all of it, about 90 minutes and 9 GB of disk
python benchmarks/reliability.py --only memory --draws 1000000
python benchmarks/reliability.py --page docs/durable.md     and writes it into the page

crashes     a crash, and a full disk, at every mkdir, creation, write, sync and rename of a run, of
            five kinds of run; started again to the same bits
mutations   files of all formats that are read, mutated: refused, told of, or the same
kills       SIGKILL at random times of HMC-EM, SGNHT-EM and SG-NPHMC-EM (minibatches), resumed;
            SHA-256 of all draws, statistics and M-steps against a run that was not killed
memory      10^7 draws of 100 numbers, streamed: peak memory above that of a run of 5,000
injections  NaN and infinities in value, gradient and data, at the start, on the way in, in warm-up,
            at a draw, in one chain, of every sampler
exceptions  raised by the model's Python, in the same places, of every sampler
concurrency eight threads, spawned and forked processes, Ctrl-C
soak        many calls in one process
hostile     files that were cut, changed or made to harm
overhead    what out= and the progress bar cost, medians of interleaved rounds, and their bits
devices     two processes: one killed, stopped or stuck, and the launcher, launched again; draws by
            SHA-256 against a run that nobody harmed, and seconds until all processes were gone
"""

import argparse
import contextlib
import logging
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import concurrency
import crash_points
import faults
import hostile_files
import injections
import kills
import lost_peers
import momentem as mt
import mutated_files
import raised
import soak
from momentem.reproduce.timing import ratio, time_interleaved

MAX_GROWTH = 300e6  # bytes, of the streamed run
MAX_LOG, MAX_BAR = 0.03, 0.02
COLUMNS = ("figure", "tries", "survived", "lost", "silent", "found", "holds")
BEGIN, END = "<!-- scoreboard: make reliability writes it -->", "<!-- end of the scoreboard -->"


class Row(NamedTuple):
    """A figure of the scoreboard."""

    figure: str
    found: str
    holds: bool
    tries: Any = ""  # with numbers, of which some may be lost, and some silent
    lost: Any = ""
    silent: Any = ""

    def cells(self):
        """Return what the table shows."""
        survived = "" if self.tries == "" else self.tries - self.lost - self.silent
        numbers = (self.tries, survived, self.lost, self.silent)
        return self.figure, *map(str, numbers), self.found, "yes" if self.holds else "NO"


def check_crashes(given):
    for name in crash_points.CASES:
        for failure, is_full in (("crash", False), ("full disk", True)):
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                tried, bad = crash_points.trials(name, folder, is_full)
            figure = f"{failure} at every point, {name}"
            yield Row(figure, str(bad or "the same bits"), not bad, tried, len(bad), 0)


def check_mutations(given):
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name, answers, bad in mutated_files.trials(given.mutations, folder, given.seed):
            counts = ", ".join(f"{answer} {times}" for answer, times in sorted(answers.items()))
            found = f"{counts} {bad or ''}".strip()
            tries = sum(answers.values())
            yield Row(f"mutated files, {name}", found, not bad, tries, 0, len(bad))


def check_kills(given):
    shares = [given.kills // 3 + (i < given.kills % 3) for i in range(3)]
    for name, share in zip(kills.CASES, shares, strict=True):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            found = kills.trials(name, share, Path(folder), given.seed)
        is_right = found["right"] == found["runs"] and not found["torn"] and found["lost"] <= 1
        bad = found["runs"] - found["right"] + found["torn"]
        yield Row(
            f"kill -9, {name}",
            f"{found['right']} of {found['runs']} runs resumed to the same bits, {found['torn']} "
            f"torn, at most {found['lost']} segment drawn again",
            is_right,
            *(found["kills"], bad, 0),
        )


STREAM = """
import resource, sys, tempfile, time, warnings, jax, jax.numpy as jnp, momentem as mt
warnings.simplefilter("ignore")
target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(100))
sampler = mt.hmc(target, 0.5, 1)
for num_draws in (5_000, int(sys.argv[2]) // 10, int(sys.argv[2])):
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        begun = time.perf_counter()
        trace = mt.sample(target, sampler, num_draws, 0, 1, out=folder)
        assert trace["posterior"].sizes["draw"] == num_draws
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(num_draws, peak, time.perf_counter() - begun, flush=True)
"""


def check_memory(given):
    needed = 4.2e2 * given.draws
    if shutil.disk_usage(given.folder).free < 1.5 * needed:
        yield "memory", f"not run: it needs {1.5 * needed / 1e9:.0f} GB of disk", False
        return
    script = [sys.executable, "-c", STREAM, given.folder, str(given.draws)]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.split("\n")
    rows = [[float(word) for word in line.split()] for line in lines if line]
    for num_draws, peak, seconds in rows[1:]:
        growth = peak - rows[0][1]
        yield (
            f"{num_draws:.0e} draws x 100, streamed",
            f"{growth / 1e6:.0f} MB above the peak of 5,000 draws ({rows[0][1] / 1e6:.0f} MB), for "
            f"{4e2 * num_draws / 1e6:.0f} MB of draws, in {seconds:.0f} s",
            growth < MAX_GROWTH,
        )


def check_injections(given):
    cases = injections.cases()
    bad = []
    for name, (inject, pattern) in cases.items():
        if not re.search(pattern, injections.answer(inject)):
            bad.append(name)
    found = str(bad or "each named by chain, iteration or row")
    yield Row("NaN, where and when", found, not bad, len(cases), 0, len(bad))
    for sampler in faults.SAMPLERS:
        kinds = Counter(kind for _, _, kind in faults.trials(sampler))
        bad = kinds["SILENT"] + kinds["SPURIOUS"]
        found = ", ".join(f"{kind} {times}" for kind, times in sorted(kinds.items()))
        tries = sum(kinds.values())
        yield Row(f"NaN and infinities, {sampler}", found, not bad, tries, 0, bad)


def check_exceptions(given):
    with raised.small_chunks():
        for sampler in raised.NAMES:
            found = dict(raised.trials(sampler))
            bad = {name: wrong for name, wrong in found.items() if wrong}
            silent = sum(wrong.startswith("SILENT") for wrong in bad.values())
            said = str(bad or "told, and the same bits")
            counts = len(found), len(bad) - silent, silent
            yield Row(f"exceptions, {sampler}", said, not bad, *counts)


def check_soak(given):
    for kind in soak.KINDS:
        number = given.calls if kind == "same" else given.calls // 10
        command = [sys.executable, soak.__file__, kind, str(number)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        grown, num_threads = map(int, text.split())
        found = f"{grown / 1e6:.1f} MB more after the first {soak.FIRST}, {num_threads} thread"
        is_flat = grown < soak.MOST_GROWTH and num_threads == 1
        yield Row(f"repeated calls, {kind}", found, is_flat, number, int(not is_flat), 0)


def check_concurrency(given):
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        tries, bad = concurrency.threads(folder)
        yield Row("eight threads at once", "the same bits as alone", not bad, tries, bad, 0)
        tries, bad = concurrency.spawned()
        yield Row("spawned processes", "the same bits", not bad, tries, bad, 0)
        read, drew, expected = concurrency.forked(folder)
        is_right = read == expected and drew == "an error"
        found = f"a log is {'read' if read == expected else read}; sampling: {drew}"
        yield Row("forked children", found, is_right, 2, int(not is_right), 0)
        tries, lost, other = concurrency.interrupted(folder, given.interrupts, given.seed)
        found = "each ended by itself, and was resumed to the same bits"
        is_right = not lost and not other
        yield Row("Ctrl-C at random times", found, is_right, tries, lost + other, 0)


def check_hostile(given):
    target = mt.density(
        lambda p: -0.5 * jnp.sum(p["x"] ** 2) - p["y"] ** 2, {"x": jnp.zeros(3), "y": 0.0}
    )
    sampler = mt.hmc(target, 0.5, 3)
    taken, ran, before = [], 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        good = Path(folder) / "good"
        mt.sample(target, sampler, 10, 10, 2, out=good)
        for num_draws in (20, 30, 40):
            mt.resume(good, target, sampler, num_draws)
        for i, (name, tamper) in enumerate(hostile_files.HOSTILE.items()):
            copy, marker = Path(folder) / f"run{i}", Path(folder) / f"marker{i}"
            shutil.copytree(good, copy)
            tamper(copy, marker)
            with contextlib.suppress(ValueError, OSError):
                mt.resume(copy, target, sampler, 50)
                taken.append(name)
            with contextlib.suppress(ValueError, OSError):
                mt.load(copy)
            ran += marker.exists()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    yield (
        "hostile files",
        f"{len(hostile_files.HOSTILE)}, taken {len(taken)} {taken or ''}, code run {ran}, memory "
        f"grew by {grown:.0f} MB (with compilation)",
        not taken and not ran,
    )


def logistic():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 20))
    y = (rng.uniform(size=2000) < 1 / (1 + np.exp(-x @ np.ones(20)))).astype(float)

    def log_likelihood(w, datum):
        logit = datum[0] @ w
        return datum[1] * logit - jnp.logaddexp(0.0, logit)

    return mt.dataset(lambda w: -0.05 * jnp.sum(w**2), log_likelihood, (x, y), jnp.zeros(20))


@contextlib.contextmanager
def terminal():
    """Return a terminal without a screen."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        os.environ["FORCE_COLOR"] = "1"
        try:
            yield
        finally:
            del os.environ["FORCE_COLOR"]


def check_overhead(given):
    target = logistic()
    sampler = mt.hmc(target, 0.05, 10)
    found = {}

    def plain():
        found["plain"] = mt.sample(target, sampler, given.length, 0, 4, progress=False)

    def logged():
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            trace = mt.sample(target, sampler, given.length, 0, 4, progress=False, out=folder)
            found["logged"] = trace.load()

    def bar():
        with terminal():
            found["bar"] = mt.sample(target, sampler, given.length, 0, 4)

    seconds = time_interleaved({"plain": plain, "logged": logged, "bar": bar}, given.rounds)
    for name, most in (("logged", MAX_LOG), ("bar", MAX_BAR)):
        cost = ratio(seconds, name, "plain") - 1
        is_same = found[name]["posterior"].equals(found["plain"]["posterior"])
        yield (
            f"cost of {'out=' if name == 'logged' else 'the progress bar'}",
            f"{100 * cost:.1f} % of {np.median(seconds['plain']):.1f} s, "
            f"{'the same' if is_same else 'OTHER'} bits",
            cost < most and is_same,
        )


def check_devices(given):
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        whole = lost_peers.launched(folder / "whole")
        shas = whole.shas()
        exact = lost_peers.gradients(lost_peers.regression(None))
        worst = max(
            np.max(np.abs(np.load(folder / f"gradients-{i}.npy") / exact - 1)) for i in (0, 1)
        )
        is_right = whole.code == 0 and len(set(shas.values())) == 1 and worst < 1e-12
        yield "gradient in 2 processes x 2 devices", f"{worst:.1e} off that of one device", is_right
        for harm in (*lost_peers.HARMS, "worker stuck for 60 s"):
            found = lost_peers.trial(harm, folder / harm.replace(" ", "-"), given.timeout)
            is_same = found.shas == shas
            yield (
                harm,
                f"all processes gone after {found.seconds:.1f} s (timeout {given.timeout:g} s); "
                f"launched again: {'the same' if is_same else 'OTHER'} bits",
                is_same and found.is_gone and found.seconds < given.timeout + 10,
            )


CHECKS = {
    "crashes": check_crashes,
    "mutations": check_mutations,
    "kills": check_kills,
    "memory": check_memory,
    "injections": check_injections,
    "exceptions": check_exceptions,
    "concurrency": check_concurrency,
    "soak": check_soak,
    "hostile": check_hostile,
    "overhead": check_overhead,
    "devices": check_devices,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CHECKS, action="append")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--mutations", type=int, default=2000, help="files that are mutated")
    parser.add_argument("--draws", type=int, default=10**7)
    parser.add_argument("--length", type=int, default=20_000, help="draws of a timed run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=20, help="of processes that wait")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills' times")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where run logs go")
    parser.add_argument("--calls", type=int, default=1000, help="in one process")
    parser.add_argument("--interrupts", type=int, default=20)
    parser.add_argument("--page", type=Path, help="page whose table gets the rows, docs/durable.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("jax").setLevel(logging.CRITICAL)  # it prints tracebacks of callbacks
    jax.config.update("jax_enable_x64", True)
    table = Table(*COLUMNS, title=f"Reliability (seed {given.seed})")
    is_right = True
    for name in given.only or CHECKS:
        rows = []
        for row in CHECKS[name](given):
            rows.append(Row(*row))
            print(": ".join(cell for cell in rows[-1].cells() if cell), flush=True)
            table.add_row(*rows[-1].cells())
            is_right &= rows[-1].holds
            if given.page is not None:
                write_page(given.page, name, rows)
    Console(width=160).print(table)
    return 0 if is_right else 1


def write_page(path, check, rows):
    """Put the rows of a check so far into the table of a page, in the place of those figures."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    head = ["check", *COLUMNS]
    lines = [line for line in rest.partition(END)[0].splitlines() if line.startswith("| `")]
    again = tuple(f"| `{check}` | {row.figure} |" for row in rows)
    lines = [line for line in lines if not line.startswith(again)]
    lines += ["| " + " | ".join((f"`{check}`", *row.cells())) + " |" for row in rows]
    order = [f"| `{name}`" for name in CHECKS]
    lines.sort(key=lambda line: next(i for i, each in enumerate(order) if line.startswith(each)))
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]
    path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(table) + f"\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())

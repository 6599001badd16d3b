"""Runs that are killed again and again: a process that samples, and one that kills it.

    python benchmarks/kills.py CASE FOLDER      resumes the run in FOLDER, or begins it

The worker publishes a segment for every chunk, which is more often than any real run does, so that
many kills happen while it writes.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import momentem as mt
from momentem.run import loop
from momentem.run.log import read as reading
from momentem.run.log import write as store

NUM_WARMUP, NUM_DRAWS = 600, 1400


def log_prior(p):
    return -0.5 * jnp.sum(p["w"] ** 2) - p["tau"]


def log_likelihood(p, row):
    residual = row[0] - row[1:] @ p["w"]
    return 0.5 * jnp.log(p["tau"]) - 0.5 * p["tau"] * residual**2


def regression(batch_size):
    data = np.random.default_rng(0).normal(size=(200, 4))
    initial = {"w": jnp.zeros(3), "tau": 1.0}
    constraints = {"tau": mt.constraints.positive}
    options = {} if batch_size is None else {"batch_size": batch_size}
    return mt.dataset(log_prior, log_likelihood, data, initial, constraints, **options)


def case(name):
    """Return the target and sampler of a case."""
    target = regression(None if name == "hmc_em" else 20)
    if name == "hmc_em":
        return target, mt.hmc_em(target, 0.1, 5, e_step=mt.e_steps.constant(200))
    if name == "sgnht_em":
        return target, mt.sgnht_em(target, num_steps=5)
    return target, mt.sg_nphmc_em(target, num_steps=5)


CASES = ("hmc_em", "sgnht_em", "sg_nphmc_em")


def sha(trace):
    """Return the SHA-256 of every draw, statistic and M-step."""
    digest = hashlib.sha256()
    for group in sorted(trace.children):
        for name in sorted(trace[group].data_vars):
            digest.update(np.ascontiguousarray(trace[group][name].values).tobytes())
    return digest.hexdigest()


def prepare(folder):
    """Set short chunks with a segment after each, and a cache of compiled programs."""
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).parent / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    loop.CHUNK_ITERATIONS, store.SEGMENT_SECONDS = 16, 0.0


def worker(name, folder):
    prepare(folder)
    extend = store.RunLog.extend

    def told(self, chunk):
        print(chunk.here.iteration, flush=True)
        extend(self, chunk)

    store.RunLog.extend = told
    target, sampler = case(name)
    print("ready", flush=True)
    if (Path(folder) / "manifest.json").exists():
        trace = mt.resume(folder, target, sampler)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        trace = mt.sample(target, sampler, NUM_DRAWS, NUM_WARMUP, 4, out=folder)
    print(sha(trace), flush=True)


def start(name, folder) -> Any:
    script = [sys.executable, __file__, name, str(folder)]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", f"the worker said {line!r}"
    return process


def finished(name, folder):
    """Return the hash of an uninterrupted run, and the seconds for which it drew."""
    process = start(name, folder)
    first = process.stdout.readline()  # the hash, if there was nothing left to draw
    begun = time.perf_counter()
    lines = [*first.split(), *process.communicate()[0].split()]
    assert process.returncode == 0
    return lines[-1], time.perf_counter() - begun


def killed(name, folder, seconds, is_drawing):
    """Kill the worker after a time from its start, or from its first draws. Return what it had
    drawn and published, or the hash if it was done first."""
    before = len(reading.open_run(folder).segments) if (folder / "manifest.json").exists() else 0
    process = start(name, folder)
    first = process.stdout.readline() if is_drawing else ""
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    lines = [*first.split(), *process.communicate()[0].split()]
    if process.returncode == 0:
        return lines[-1]
    drawn = [int(line) for line in lines if line.isdigit() and len(line) < 10]
    if not (folder / "manifest.json").exists():
        return {"drawn": drawn, "published": 0, "is_whole": not drawn, "lost": 0}
    run = reading.open_run(folder)
    about = run.segments[-1].about
    published = about["first"] + about["iterations"]
    lost = sum(iteration > published for iteration in drawn)  # a line per chunk, that is segment
    is_whole = run.fault is None and len(run.segments) >= before
    return {"drawn": drawn, "published": published, "is_whole": is_whole, "lost": lost}


def trials(name, num_kills, folder, seed):
    """Kill and resume until there were enough kills and the last killed run is done. Each process
    is a new one, with other hashes and addresses."""
    rng = random.Random(seed)
    expected, seconds = finished(name, folder / "whole")  # compiles, for all that follow
    if num_kills > 5:  # or most kills would come too late
        expected, seconds = finished(name, folder / "again")
    kills, runs, right, torn, lost = 0, 0, 0, 0, 0
    path = folder / "killed"
    while True:
        if kills < num_kills:
            # one in ten while it starts: reads, traces, writes the first segment and the manifest
            found = killed(name, path, rng.uniform(0, seconds), is_drawing=rng.random() < 0.9)
        else:
            found = finished(name, path)[0]
        if isinstance(found, dict):
            kills += 1
            torn += not found["is_whole"]
            lost = max(lost, found["lost"])
            continue
        runs += 1
        right += found == expected
        shutil.rmtree(path)
        if kills >= num_kills:
            return {"kills": kills, "runs": runs, "right": right, "torn": torn, "lost": lost}


if __name__ == "__main__":
    worker(*sys.argv[1:])

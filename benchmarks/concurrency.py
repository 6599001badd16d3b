"""Threads, processes and Ctrl-C: the same bits as alone, and nothing lost.

threads    eight at once, each with a model of its own, in memory and to a folder
spawn      two processes that multiprocessing starts afresh
fork       a child of a process that has sampled: it reads a log, and is told that it cannot sample
Ctrl-C     SIGINT at random times of a run to a folder, which ends by itself and is resumed
"""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

import kills
import momentem as mt

NUM_THREADS = 8
MOST_SECONDS = 60.0  # that a forked child may take
MOST_RUN = 300.0  # that a run may take


def draw(scale, out=None):
    """Return the hash of a run of a model of its own."""
    target = mt.density(lambda x: -0.5 * jnp.sum((x / scale) ** 2), jnp.zeros(3))
    sampler = mt.hmc_em(target, 0.3, 3, e_step=mt.e_steps.constant(100))
    return kills.sha(mt.sample(target, sampler, 60, 60, 2, out=out, progress=False))


def threads(folder):
    """Return the number of runs, and how many have other bits than alone."""
    scales = [1.0 + i % 2 for i in range(NUM_THREADS)]  # some models are the same
    outs = [None if i % 3 else Path(folder) / f"run{i}" for i in range(len(scales))]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(draw, scales, outs))
    alone = {scale: draw(scale) for scale in set(scales)}
    return len(found), sum(a != alone[scale] for a, scale in zip(found, scales, strict=True))


def _configured(scale):
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    return draw(scale)


def spawned():
    """Return the number of runs in processes that were started afresh, and those of other bits."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_configured, (1.0, 2.0))
    return len(found), sum(a != draw(scale) for a, scale in zip(found, (1.0, 2.0), strict=True))


def in_child(work):
    """Return what a forked child says: what `work` returns, "an error", or "it hangs"."""
    end, start = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of every fork
        child = os.fork()
    if not child:
        code = 1
        try:
            os.write(start, work().encode())
            code = 0
        finally:
            os._exit(code)
    os.close(start)
    begun = time.perf_counter()
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.perf_counter() - begun > MOST_SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    with os.fdopen(end) as file:
        said = file.read()
    return said if ended[0] and not ended[1] else "an error" if ended[0] else "it hangs"


def forked(folder):
    """Return what a forked child says of a log, of a run of its own, and what is right."""
    expected = draw(1.0, Path(folder) / "log")
    read = in_child(lambda: kills.sha(mt.load(Path(folder) / "log")))
    return read, in_child(lambda: draw(1.0)), expected


def worker(folder):
    """Run in a process that gets SIGINT, and say what came of it."""
    kills.prepare(folder)
    target, sampler = kills.case("hmc_em")
    print("ready", flush=True)
    sizes = kills.NUM_DRAWS, kills.NUM_WARMUP, 4
    trace = mt.sample(target, sampler, *sizes, out=folder, resume=True, progress=False)
    print(trace.attrs["is_interrupted"], kills.sha(trace), flush=True)


def interrupted(folder, num_tries, seed):
    """Return the number of interrupts, of those that a run did not survive, and of runs that had
    other bits in the end."""
    rng, folder = random.Random(seed), Path(folder) / "interrupted"
    folder.mkdir()

    def run(name, seconds=None):
        command = [sys.executable, __file__, str(folder / name)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        begun = time.perf_counter()
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
        try:
            text = process.communicate(timeout=MOST_RUN)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            text = process.communicate()[0]
        return process.returncode, text.split(), time.perf_counter() - begun

    run("first")  # compiles
    _, whole, seconds = run("whole")
    assert len(whole) == 2, "the run that nobody interrupts must end"
    lost = other = 0
    for i in range(num_tries):
        # the first seconds are those in which it traces, and loads its programs
        code, said, _ = run(f"run{i}", rng.uniform(0.2, 1.0) * seconds)
        has_trace = code == 0 and len(said) == 2
        is_before = not any((folder / f"run{i}").glob("0000000[1-9]-*"))
        lost += not has_trace and not is_before
        other += run(f"run{i}")[1] != whole
        shutil.rmtree(folder / f"run{i}")
    return num_tries, lost, other


if __name__ == "__main__":
    worker(sys.argv[1])

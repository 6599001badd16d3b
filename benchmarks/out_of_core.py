"""Data larger than memory: time per iteration of a stream over that of rows in memory.

    python benchmarks/out_of_core.py [--gigabytes 20] [--limit 4] [--folder DIR]

A logistic regression (49 covariates, float32, batches of 500, 32 chains) on a file that is made
once, in a process whose memory is limited by `ulimit -d` (RLIMIT_DATA limits all that the process
allocates; the system may drop pages of mapped files). The file's pages are dropped from the cache
before the start. It is compared with the same sampler on one window's rows, held in memory. Runs
are interleaved; the ratio is that of medians.
"""

import argparse
import os
import resource
import tempfile
import time
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import momentem as mt

DIM, BATCH, NUM_CHAINS, NUM_ITERATIONS, ROUNDS = 49, 500, 32, 500, 5
HOLD = 104  # iterations of 10 gradients: a chain uses half as many rows as the window has


def made(path, num_rows):
    """Write the file: covariates, a one, and the label."""
    rng, weights = np.random.default_rng(0), np.linspace(-1, 1, DIM, dtype=np.float32)
    size = 2**20
    with path.open("wb") as file:
        for first in range(0, num_rows, size):
            rows = np.ones((min(size, num_rows - first), DIM + 2), np.float32)
            rows[:, :DIM] = rng.standard_normal((len(rows), DIM), np.float32)
            chance = 1 / (1 + np.exp(-rows[:, :DIM] @ weights))
            rows[:, -1] = rng.uniform(size=len(rows)) < chance
            rows.tofile(file)
        os.fsync(file.fileno())


def forgotten(path):
    """Drop the pages of a file from the system's cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def log_prior(w):
    return -0.5 * jnp.sum(w**2)


def log_likelihood(w, row):
    logit = row[:-1] @ w
    return row[-1] * logit - jnp.logaddexp(0.0, logit)


def target_of(data):
    return mt.dataset(
        log_prior, log_likelihood, data, jnp.zeros(DIM + 1, jnp.float32), batch_size=BATCH
    )


def seconds(target):
    sampler = mt.sghmc(target, step_size=1e-5, num_steps=10)
    begun = time.perf_counter()
    mt.sample(target, sampler, NUM_ITERATIONS, num_warmup=0, num_chains=NUM_CHAINS, progress=False)
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--limit", type=float, default=4)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    warnings.simplefilter("ignore", mt.SamplingWarning)

    limit = int(options.limit * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    num_rows = int(options.gigabytes * 1e9) // (4 * (DIM + 2))
    path = options.folder / f"momentem-{num_rows}.rows"
    if not path.exists() or path.stat().st_size != num_rows * 4 * (DIM + 2):
        print(f"making {path.name}: {options.gigabytes} GB", flush=True)
        made(path, num_rows)
    forgotten(path)

    rows = np.memmap(path, np.float32, "r", shape=(num_rows, DIM + 2))
    stream = mt.stream(mt.sources.from_arrays(rows), hold=HOLD)
    streamed, held = target_of(stream), target_of(np.array(rows[: stream.window_rows]))
    runs = {"stream": streamed, "memory": held}
    times = {name: [] for name in runs}
    for target in runs.values():
        seconds(target)  # compiles
    stalled = []
    for _ in range(ROUNDS):
        for name, target in runs.items():
            before = stream.stalled
            times[name].append(seconds(target))
            if name == "stream":
                stalled.append((stream.stalled - before) / times[name][-1])
    stream_, memory = (np.array(times[name]) / NUM_ITERATIONS * 1e3 for name in runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"rows {num_rows:.3g}, {options.gigabytes} GB, limit {options.limit} GB of memory")
    print(f"ms per iteration: stream {np.median(stream_):.2f}, memory {np.median(memory):.2f}")
    print(f"stream / memory: {np.median(stream_ / memory):.2f}, of rounds {stream_ / memory}")
    print(f"waited for data: {100 * np.median(stalled):.0f} % of the stream's time")
    print(f"peak resident memory, mapped pages included: {peak:.1f} GB")


if __name__ == "__main__":
    main()

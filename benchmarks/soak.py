"""Many calls in one process: memory is flat after the first fifty, and no thread is left.

    python benchmarks/soak.py same 950       one model
    python benchmarks/soak.py new 950        a new model in every call, which is compiled anew
    python benchmarks/soak.py stream 950     likewise, with data that a thread reads

Prints the bytes that the calls have added after the first fifty, and the number of threads.
"""

import gc
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import momentem as mt

FIRST = 50
MOST_GROWTH = 60e6  # one program takes 12 MB, and up to sixteen are kept
KINDS = ("same", "new", "stream")


def normal():
    return mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))


def caller(kind):
    """Return a function that samples."""
    same, x = normal(), np.random.default_rng(0).normal(size=4000)
    sampler = mt.hmc(same, 0.5, 3)

    def call():
        if kind == "same":
            return mt.sample(same, sampler, 10, 10, 2, progress=False)
        if kind == "new":
            target = normal()
            return mt.sample(target, mt.hmc(target, 0.5, 3), 10, 10, 2, progress=False)
        rows = mt.stream(mt.sources.from_arrays(x), window_rows=1000)
        target = mt.dataset(
            lambda mu: -0.5 * mu**2, lambda mu, x: -0.5 * (x - mu) ** 2, rows, 0.0, batch_size=20
        )
        return mt.sample(target, mt.sghmc(target, 0.01, 3), 10, 10, 2, progress=False)

    return call


def memory():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main(kind, num_calls):
    warnings.simplefilter("ignore")
    jax.config.update("jax_disable_most_optimizations", True)
    call, before = caller(kind), 0
    for i in range(FIRST + num_calls):
        call()
        if i + 1 == FIRST:
            before = memory()
    print(memory() - before, threading.active_count())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

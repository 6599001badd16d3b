"""Agreement of several processes on one run, and a time limit for lost processes.

A collective waits for every process. Process 0 therefore makes all decisions that depend on a
clock. JAX ends a process when another one has died. If another one is only stuck, a process would
wait for ever, so waits have a time limit, after which the process ends itself.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import jax
import numpy as np

__all__ = ["STALLED", "TIMEOUT", "TIMEOUT_VARIABLE", "agree", "is_first", "smallest", "time_limit"]

TIMEOUT = 300.0  # seconds; longer than any compilation and any chunk should take
TIMEOUT_VARIABLE = "MOMENTEM_TIMEOUT"
STALLED = 75  # exit code for a temporary failure: a new start may succeed


def is_first() -> bool:
    """Return whether this is process 0, which decides for all."""
    return jax.process_index() == 0


def agree(value: int) -> int:
    """Return the value of process 0 in all processes."""
    if jax.process_count() == 1:
        return value
    with time_limit():
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def smallest(value: int) -> int:
    """Return the smallest value of all processes in all processes."""
    if jax.process_count() == 1:
        return value
    with time_limit():
        from jax.experimental import multihost_utils

        return int(np.min(multihost_utils.process_allgather(np.int32(value))))


@contextmanager
def time_limit() -> Iterator[None]:
    """End the process if the `with` block, which waits for other processes, takes too long."""
    if jax.process_count() == 1:
        yield
        return
    seconds = float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT))
    timer = Timer(seconds, _end, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(seconds: float) -> None:
    """End the process at once. The main thread is inside a collective and cannot receive an
    exception."""
    print(
        f"momentem: process {jax.process_index()} has waited {seconds:g} s for the others, and "
        "ends; start all processes again to resume from the newest segments",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STALLED)

"""Several processes, one run: what they agree on, and what ends them when one is lost.

A collective waits for every process. So whatever a clock decides, process 0 decides for all. JAX
ends a process whose peer has died; one whose peer is merely stuck would wait for ever, so a wait
has a time limit, after which the process ends itself.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = ["TIMEOUT", "TIMEOUT_VARIABLE", "agree", "is_first", "smallest", "time_limit"]

TIMEOUT = 300.0  # seconds, longer than any program should compile and any chunk take
TIMEOUT_VARIABLE = "MOMENTEM_TIMEOUT"
STALLED = 75  # the exit code: a failure that a new start may not meet again


def is_first() -> bool:
    """Whether this is the process that speaks for all."""
    return jax.process_index() == 0


def agree(value: int) -> int:
    """The value of process 0, in all of them."""
    if jax.process_count() == 1:
        return value
    with time_limit():
        return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def smallest(value: int) -> int:
    """The smallest value of any process, in all of them."""
    if jax.process_count() == 1:
        return value
    with time_limit():
        return int(np.min(multihost_utils.process_allgather(np.int32(value))))


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends the process if what is inside, which waits for others, takes too long."""
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
    """At once: the main thread is inside a collective, and hears no exception."""
    print(
        f"momentem: process {jax.process_index()} has waited {seconds:g} s for the others, and "
        "ends; start all of them again to go on from the newest segments",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STALLED)

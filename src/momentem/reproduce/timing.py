"""Interleaved timing: contenders take turns, and ratios are medians over rounds of one run.

Machines are noisy: only a ratio between contenders of the same round means anything.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax


def interleaved(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round; the first call of each, which compiles, is not
    counted."""
    for run in contenders.values():
        jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            begun = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    """The median over rounds of one contender's time over another's."""
    pairs = zip(seconds[over], seconds[under], strict=True)
    return statistics.median(a / b for a, b in pairs)

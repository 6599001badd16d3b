"""Interleaved timing: contenders take turns, and ratios are medians over the rounds of one run.

Times on a machine vary, so only ratios of times in the same round are compared.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from momentem.pytrees import Static
from momentem.types import Sampler

__all__ = ["bare", "iterate", "ratio", "time_interleaved"]


def time_interleaved(
    contenders: dict[str, Callable[[], Any]], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round. The first call of each, which compiles,
    is not counted."""
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
    """Return the median over rounds of one contender's time divided by another's."""
    pairs = zip(seconds[over], seconds[under], strict=True)
    return statistics.median(a / b for a, b in pairs)


@jax.jit
def iterate(sampler: Sampler, key: Any, state: Any, num_iterations: Any) -> Any:
    """Run a sampler in a compiled loop, and return the last state."""

    def step(i: Any, state: Any) -> Any:
        return sampler.step(jax.random.fold_in(key, i), state)[0]

    return jax.lax.fori_loop(0, num_iterations, step, state)


@partial(jax.jit, static_argnames="num_steps")
def bare(target: Any, key: Any, positions: Any, num_iterations: Any, num_steps: int) -> Any:
    """Compute minibatch gradients, and nothing else, in a compiled loop. The minibatches of an
    iteration are drawn at once, as in the kernels."""

    def step(i: Any, positions: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, i), len(positions))
        batches = jax.vmap(lambda key: target.batches(key, Static(num_steps)))(keys)

        def descend(positions: Any, batch: Any) -> tuple[Any, None]:
            estimates = jax.vmap(target.noisy_gradient)(batch, positions)
            return positions + 1e-12 * estimates.gradient, None

        return jax.lax.scan(descend, positions, jnp.swapaxes(batches, 0, 1))[0]

    return jax.lax.fori_loop(0, num_iterations, step, positions)

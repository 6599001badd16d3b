"""Means, variances and effective sample sizes of what is not kept, updated draw by draw.

    mean     <- mean + (x - mean) / n
    variance <- variance + ((x - mean_old) (x - mean_new) - variance) / n

(Welford 1962). The variance is kept as a mean, not as a sum: in float32 a sum of squares stops
growing at 2^24 draws.

The effective sample size is by batch means: batches of consecutive draws, whose length doubles
when all places are taken, by merging neighbours in pairs. So memory does not grow with the draws,
and the length is told by their number alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from momentem.types import Count

__all__ = ["NUM_BATCHES", "Moments", "observe"]

NUM_BATCHES = 32  # places; at least half of them are full batches


class Moments(NamedTuple):
    """Of every parameter by name, per chain."""

    num_draws: Count
    mean: dict[str, Array]
    variance: dict[str, Array]  # over n, not n - 1
    batches: dict[str, Array]  # means of them, (chain, batch, …), the last being filled

    @classmethod
    def fresh(cls, forms: Mapping[str, Any], num_chains: int) -> "Moments":
        """Of no draws yet, of parameters of these shapes and dtypes."""

        def zeros(*lead: int) -> dict[str, Array]:
            return {name: jnp.zeros((*lead, *x.shape), x.dtype) for name, x in forms.items()}

        one = zeros(num_chains)
        return cls(jnp.array(0), one, dict(one), zeros(num_chains, NUM_BATCHES))

    def by_chain(self) -> dict[str, dict[str, np.ndarray]]:
        """As groups of a trace; the variance over n - 1."""
        n = int(self.num_draws)
        unbiased = np.float64(n / (n - 1)) if n > 1 else np.nan
        return {
            "posterior_mean": {name: np.asarray(x) for name, x in self.mean.items()},
            "posterior_variance": {
                name: (np.asarray(x) * unbiased).astype(x.dtype)
                for name, x in self.variance.items()
            },
        }

    def ess(self) -> dict[str, np.ndarray]:
        """The effective sample size of all chains' mean, by name: draws times their variance over
        that of the batches' means times their length, both about the mean of all chains, so that
        chains that disagree lower it. Batches are merged until they are no more than long.

        Its relative error is about sqrt(2 / batches), the chains' together: .18 for four chains of
        16; nan below four draws, or of what never moved.
        """
        n = int(self.num_draws)
        return {name: _ess(n, *(np.asarray(of[name]) for of in self[1:])) for name in self.mean}


def observe(moments: Moments, draw: dict[str, Array]) -> Moments:
    """The moments with one more draw of every chain."""
    before, count = moments.num_draws, moments.num_draws + 1
    length = _length(before)
    # the first draw for which places are lacking: its batch is twice as long as the one before
    is_full = (before > 0) & (length > _length(jnp.maximum(before - 1, 0)))
    place, filled = before // length, before % length + 1
    mean, variance, batches = {}, {}, {}
    for name, x in draw.items():
        n, old = count.astype(x.dtype), moments.mean[name]
        mean[name] = old + (x - old) / n
        spread = (x - old) * (x - mean[name])
        variance[name] = moments.variance[name] + (spread - moments.variance[name]) / n
        kept = jax.lax.cond(is_full, _merged, lambda batches: batches, moments.batches[name])
        rest = (x - kept[:, place]) / filled.astype(x.dtype)
        batches[name] = kept.at[:, place].add(rest)
    return Moments(count, mean, variance, batches)


def _length(before: Count) -> Count:
    """Of the batch that a draw belongs to when it comes after so many: the least power of two by
    which all fit."""
    rounds = before // NUM_BATCHES
    num_bits = jnp.iinfo(rounds.dtype).bits - jax.lax.clz(rounds)
    return jnp.left_shift(jnp.ones_like(rounds), num_bits)


def _merged(batches: Array) -> Array:
    """In pairs, into the first half of the places."""
    halves = 0.5 * (batches[:, ::2] + batches[:, 1::2])
    return jnp.concatenate([halves, jnp.zeros_like(halves)], axis=1)


def _ess(n: int, mean: np.ndarray, variance: np.ndarray, batches: np.ndarray) -> np.ndarray:
    if n < 4:
        return np.full(mean.shape[1:], np.nan, mean.dtype)
    length = 1 << ((n - 1) // NUM_BATCHES).bit_length()
    full = batches[:, : n // length]
    while full.shape[1] > length:
        pairs = full.shape[1] // 2
        full, length = 0.5 * (full[:, 0 : 2 * pairs : 2] + full[:, 1 : 2 * pairs : 2]), 2 * length
    spread, of_batches = variance.mean(0) + mean.var(0), full.reshape(-1, *mean.shape[1:])
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.asarray(len(mean) * n * spread / (length * of_batches.var(0, ddof=1)))

"""Means, variances and effective sample sizes of parameters that are not kept, draw by draw.

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

from momentem.moments import Moments
from momentem.moments import observe as observe_moments
from momentem.types import Count

__all__ = ["NUM_BATCHES", "Streamed", "observe"]

NUM_BATCHES = 32  # places; at least half of them are full batches


class Streamed(NamedTuple):
    """Of every parameter by name, per chain."""

    num_draws: Count
    mean: dict[str, Array]
    variance: dict[str, Array]  # over n, not n - 1
    batches: dict[str, Array]  # means of them, (chain, batch, …), the last being filled

    @classmethod
    def fresh(cls, forms: Mapping[str, Any], num_chains: int) -> "Streamed":
        """Of no draws yet, of parameters of these shapes and dtypes."""
        batches = {
            name: jnp.zeros((num_chains, NUM_BATCHES, *form.shape), form.dtype)
            for name, form in forms.items()
        }
        return cls(*Moments.fresh(forms, num_chains), batches)

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


def observe(streamed: Streamed, draw: dict[str, Array]) -> Streamed:
    """With one more draw of every chain."""
    before, mean, variance, batches = streamed
    length = _length(before)
    # the first draw for which places are lacking: its batch is twice as long as the one before
    is_full = (before > 0) & (length > _length(jnp.maximum(before - 1, 0)))
    place, filled = before // length, before % length + 1
    grown = {}
    for name, x in draw.items():
        kept = jax.lax.cond(is_full, _merged, lambda batches: batches, batches[name])
        rest = (x - kept[:, place]) / filled.astype(x.dtype)
        grown[name] = kept.at[:, place].add(rest)
    return Streamed(*observe_moments(Moments(before, mean, variance), draw), grown)


def _length(before: Count) -> Count:
    """Of the batch that a draw belongs to when it comes after so many: the least power of two by
    which all fit."""
    rounds = before // NUM_BATCHES
    num_bits = jnp.iinfo(rounds.dtype).bits - jax.lax.clz(rounds)
    return jnp.left_shift(jnp.ones_like(rounds), num_bits)


def _merged(batches: Array) -> Array:
    """In pairs, into the first half of the places."""
    pairs = _pairs(batches)
    return jnp.concatenate([pairs, jnp.zeros_like(pairs)], axis=1)


def _pairs(batches: Any) -> Any:
    """The means of neighbours; an odd last one is left out."""
    even = batches[:, : batches.shape[1] // 2 * 2]
    return 0.5 * (even[:, ::2] + even[:, 1::2])


def _ess(n: int, mean: np.ndarray, variance: np.ndarray, batches: np.ndarray) -> np.ndarray:
    if n < 4:
        return np.full(mean.shape[1:], np.nan, mean.dtype)
    length = 1 << ((n - 1) // NUM_BATCHES).bit_length()
    full = batches[:, : n // length]
    while full.shape[1] > length:
        full, length = _pairs(full), 2 * length
    spread, of_batches = variance.mean(0) + mean.var(0), full.reshape(-1, *mean.shape[1:])
    with np.errstate(invalid="ignore"):  # 0 / 0
        return np.asarray(len(mean) * n * spread / (length * of_batches.var(0, ddof=1)))

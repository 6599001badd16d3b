"""Running means, variances and effective sample sizes of parameters that are not kept.

The effective sample size comes from batch means. Batches are consecutive draws. When all places are
full, neighbouring batches are merged in pairs, which doubles their length. Memory therefore does
not grow with the number of draws, and that number alone determines the length of a batch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from momentem.moments import Moments, add_samples
from momentem.types import Count

__all__ = ["NUM_BATCHES", "Streamed", "observe"]

NUM_BATCHES = 32  # places; at least half of them hold full batches


class Streamed(NamedTuple):
    """Moments and batch means of every parameter by name, per chain."""

    num_draws: Count
    mean: dict[str, Array]
    variance: dict[str, Array]  # over n, not n - 1
    batches: dict[str, Array]  # batch means, (chain, batch, …); the last batch is being filled

    @classmethod
    def fresh(cls, forms: Mapping[str, Any], num_chains: int) -> "Streamed":
        """Return empty moments for parameters of these shapes and dtypes."""
        batches = {
            name: jnp.zeros((num_chains, NUM_BATCHES, *form.shape), form.dtype)
            for name, form in forms.items()
        }
        zeros = {name: jnp.zeros_like(array[:, 0]) for name, array in batches.items()}
        return cls(*Moments.fresh(zeros, zeros), batches)

    def by_chain(self) -> dict[str, dict[str, np.ndarray]]:
        """Return means and variances (over n - 1) as groups of a trace."""
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
        """Return the effective sample size of the mean of all chains, by name.

        It is the number of draws times their variance, divided by the variance of the batch means
        times the batch length. Both variances are about the mean of all chains, so chains that
        disagree lower it. Batches are merged until there are no more of them than each has draws.

        Its relative error is about sqrt(2 / batches), with the batches of all chains counted: 0.18
        for four chains of 16 batches. It is NaN for fewer than four draws, and for scalars that
        never moved.
        """
        n = int(self.num_draws)
        return {name: _ess(n, *(np.asarray(of[name]) for of in self[1:])) for name in self.mean}


def observe(streamed: Streamed, draw: dict[str, Array]) -> Streamed:
    """Add one more draw of every chain."""
    before, mean, variance, batches = streamed
    length = _length(before)
    # true for the first draw without a free place: its batch is twice as long as the last
    is_full = (before > 0) & (length > _length(jnp.maximum(before - 1, 0)))
    place, filled = before // length, before % length + 1
    grown = {}
    for name, x in draw.items():
        kept = jax.lax.cond(is_full, _merge, lambda batches: batches, batches[name])
        rest = (x - kept[:, place]) / filled.astype(x.dtype)
        grown[name] = kept.at[:, place].add(rest)
    one = {name: x[None] for name, x in draw.items()}
    return Streamed(*add_samples(Moments(before, mean, variance), one), grown)


def _length(before: Count) -> Count:
    """Return the batch length for a draw, given the number of draws before it: the smallest power
    of two for which all draws fit."""
    rounds = before // NUM_BATCHES
    num_bits = jnp.iinfo(rounds.dtype).bits - jax.lax.clz(rounds)
    return jnp.left_shift(jnp.ones_like(rounds), num_bits)


def _merge(batches: Array) -> Array:
    """Merge batches in pairs into the first half of the places."""
    pairs = _pairs(batches)
    return jnp.concatenate([pairs, jnp.zeros_like(pairs)], axis=1)


def _pairs(batches: Any) -> Any:
    """Return the means of pairs of neighbours. An odd last batch is left out."""
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

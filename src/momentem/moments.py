"""Means and variances, updated draw by draw (Welford 1962).

    mean     <- mean + (x - mean) / n
    variance <- variance + ((x - mean_old) (x - mean_new) - variance) / n

The variance is kept as a mean, not as a sum: in float32 a sum of squares stops growing at 2^24
draws.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from momentem.types import Count

__all__ = ["Moments", "observe"]


class Moments(NamedTuple):
    """Of every parameter by name, per chain."""

    num_draws: Count
    mean: dict[str, Array]
    variance: dict[str, Array]  # over n, not n - 1

    @classmethod
    def fresh(cls, forms: Mapping[str, Any], num_chains: int) -> "Moments":
        """Of no draws yet, of parameters of these shapes and dtypes."""
        zeros = {
            name: jnp.zeros((num_chains, *form.shape), form.dtype) for name, form in forms.items()
        }
        return cls(jnp.array(0), zeros, dict(zeros))


def observe(moments: Moments, draw: dict[str, Array]) -> Moments:
    """The moments with one more draw of every chain."""
    count = moments.num_draws + 1
    mean, variance = {}, {}
    for name, x in draw.items():
        n, old = count.astype(x.dtype), moments.mean[name]
        mean[name] = old + (x - old) / n
        spread = (x - old) * (x - mean[name])
        variance[name] = moments.variance[name] + (spread - moments.variance[name]) / n
    return Moments(count, mean, variance)

"""Running means and covariances (Welford 1962; Chan, Golub and LeVeque 1983).

With m new samples x of mean b, after n that had the mean a and the covariance C (both over n),

    mean       <- a + (b - a) m / (n + m)
    covariance <- C + [sum (x - b)(x - b)' + (b - a)(b - a)' n m / (n + m) - m C] / (n + m)

The covariance is kept as a mean, not as a sum: in float32 a sum of squares stops growing at 2^24
samples. Moments without samples are empty whatever else they hold, so that they are emptied by
their count alone (docs/decisions/0004-statistics-empty-by-count.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from momentem.types import Count

__all__ = ["Moments", "add_samples", "sum_of_squares"]


class Moments(NamedTuple):
    """Mean and covariance of the samples so far: of an array, or of each array of a tree."""

    num_samples: Count
    mean: Any
    covariance: Any  # over n, not n - 1; in the structure that `add_samples` is given

    @classmethod
    def fresh(cls, mean: Any, covariance: Any) -> "Moments":
        """Return the moments of no samples, with the shapes of `mean` and `covariance`."""
        zeros = jax.tree.map(jnp.zeros_like, (mean, covariance))
        return cls(jnp.array(0), *zeros)


def sum_of_squares(deviations: Array) -> Array:
    """Return the sum of squares over the leading axis: variances, element by element."""
    return jnp.sum(deviations**2, axis=0)


def add_samples(
    moments: Moments, samples: Any, square: Callable[[Array], Array] = sum_of_squares
) -> Moments:
    """Return the moments with more samples.

    Args:
        moments: so far.
        samples: of the structure of `moments.mean`, each with a leading axis of samples.
        square: (deviations) -> the sum of their outer products over the leading axis, in the
            structure of the covariance.

    Examples:
        >>> import jax.numpy as jnp
        >>> empty = Moments.fresh(jnp.zeros(2), jnp.zeros(2))
        >>> add_samples(empty, jnp.array([[0.0, 1.0], [2.0, 1.0]])).covariance.tolist()
        [1.0, 0.0]
    """
    old = moments.num_samples

    def updated(a: Array, C: Array, x: Array) -> tuple[Array, Array]:
        n, m = old.astype(x.dtype), len(x)
        a, C = (jnp.where(old == 0, jnp.zeros_like(leaf), leaf) for leaf in (a, C))
        b = jnp.mean(x, axis=0)
        spread = square(x - b[None]) + square((b - a)[None]) * (n * m / (n + m))
        return a + (b - a) * (m / (n + m)), C + (spread - m * C) / (n + m)

    means, structure = jax.tree.flatten(moments.mean)
    trees = jax.tree.leaves(moments.covariance), jax.tree.leaves(samples)
    pairs = [updated(*leaves) for leaves in zip(means, *trees, strict=True)]
    mean, covariance = (jax.tree.unflatten(structure, each) for each in zip(*pairs, strict=True))
    return Moments(old + len(trees[1][0]), mean, covariance)

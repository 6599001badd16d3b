"""The `noise` M-step's statistic and estimate for a low-rank mass: O(D window) memory.

The second moments of the last minibatches' noise, scaled to a unit diagonal, are taken to be a
multiple b of the identity but for a few directions, the spiked model. Of W samples in D dimensions
even the identity has eigenvalues up to (1 + sqrt(D/W))^2. What is below that is noise, and what is
above is brought down to what its direction, which is uncertain too, can carry
(Donoho, Gavish and Johnstone 2018, for the Frobenius norm).

    M   =  S^-1 [b I + U (Lambda - b) U'] S^-1,      S^-2 = (n/N) diag V + prior curvature
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.types import Count, Info, Scalar, Vector

__all__ = ["LastNoises", "add_last", "estimate_low_rank", "no_noises"]

PER_DIRECTION, LEAST_ROWS = 5, 50  # rows of the window
LEAST_BACKGROUND = 1e-2  # b


class LastNoises(NamedTuple):
    """The last samples of the gradient's noise, the sums of their squares, and where draws were."""

    num_samples: Count
    num_noises: Count
    noise: Float[Array, "window dim"]
    information: Any  # likewise; None where the noise is it
    square: Vector  # summed, of the information
    position: Vector  # summed


def no_noises(mass: Any, has_information: bool) -> LastNoises:
    """Return the statistic of no samples."""
    zeros = jnp.zeros_like(mass.inverse_mass_diagonal())
    rows = jnp.zeros((max(LEAST_ROWS, PER_DIRECTION * mass.rank), len(zeros)), zeros.dtype)
    information = rows if has_information else None
    return LastNoises(jnp.array(0), jnp.zeros((), int), rows, information, zeros, zeros)


def add_last(old: LastNoises, info: Info) -> LastNoises:
    """Add the draws of all chains: one sample of each to the window, and all to the squares."""
    is_empty, number = old.num_samples == 0, len(info.position)
    window = len(old.noise)
    rows = (old.num_samples + jnp.arange(number)[-window:]) % window
    plain = info.noise if info.information is None else info.information

    def kept(array: Array) -> Array:
        return jnp.where(is_empty, jnp.zeros_like(array), array)

    def with_last(rows_so_far: Array, samples: Array) -> Array:
        return rows_so_far.at[rows].set(samples[-window:, -1])

    new = info.noise.shape[1] * jnp.sum(~info.stats["diverging"])  # the others are zeros
    return LastNoises(
        num_samples=old.num_samples + number,
        num_noises=kept(old.num_noises) + new.astype(old.num_noises.dtype),
        noise=with_last(old.noise, info.noise),
        information=None if old.information is None else with_last(old.information, plain),
        square=kept(old.square) + jnp.sum(plain**2, axis=(0, 1)),
        position=kept(old.position) + jnp.sum(info.position, axis=0),
    )


def estimate_low_rank(
    statistic: LastNoises, old: Any, scale: Any, prior: Vector
) -> tuple[Any, Vector, Vector]:
    """Return the mass, and the variances of the noise in its frame with and without control
    variates. It has the class and rank of the old mass; `scale` is n/N."""
    rank = old.rank
    plain = statistic.noise if statistic.information is None else statistic.information
    (window, dim), dtype = plain.shape, plain.dtype
    variances = scale * statistic.square / statistic.num_noises.astype(dtype)
    spread = 1 / jnp.sqrt(variances + prior)
    rows = plain * spread[None] * jnp.sqrt(scale / window)
    eigenvalues, turn = jnp.linalg.eigh(rows @ rows.T)
    eigenvalues, turn = eigenvalues[::-1], turn[:, ::-1]
    share = (1 - rank / window) * max(1, dim - rank)
    background = jnp.maximum(jnp.sum(eigenvalues[rank:]) / share, LEAST_BACKGROUND)
    excess = background * (shrink_spikes(eigenvalues[:rank] / background, dim / window) - 1)
    flat = background + jnp.mean(spread**2 * prior)
    columns = rows.T @ turn[:, :rank] / jnp.sqrt(jnp.maximum(eigenvalues[:rank], 1e-30))[None]
    directions, _ = jnp.linalg.qr(columns)  # orthonormal where an eigenvalue is about zero too
    mass = old._replace(
        scale=spread / jnp.sqrt(flat),
        directions=directions.T,
        eigenvalues=flat / (flat + excess),
    )

    def variances_of(noises: Array) -> Vector:
        return jnp.mean(jax.vmap(mass.whiten)(noises) ** 2, axis=0)

    return mass, variances_of(statistic.noise), variances_of(plain)


def shrink_spikes(seen: Float[Array, " rank"], ratio: float) -> Float[Array, " rank"]:
    """Return eigenvalues from those seen in a sample, in units of the background; `ratio` is D/W.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(shrink_spikes(jnp.array([1.5, 100.0]), 0.01).round(1))
        [  1.4 100. ]
    """
    edge = (1 + math.sqrt(ratio)) ** 2
    above = jnp.maximum(seen, 1.0001 * edge)
    b = above + 1 - ratio
    spike = (b + jnp.sqrt(b**2 - 4 * above)) / 2
    cosine: Scalar | Array = (1 - ratio / (spike - 1) ** 2) / (1 + ratio / (spike - 1))
    return jnp.where(seen > edge, 1 + (spike - 1) * cosine, 1.0)

"""Minibatches of data that are divided over devices: one block of rows from every device.

Rows are shuffled once and divided into K strata, one per device along the mesh's axis of data. Half
a minibatch is a block of n/2K rows from each stratum. Each block has its own start:

    g~(theta) = grad log p(theta) + sum_k N_k/(n/2K) sum_{i in block k} grad log p(datum_i | theta)

All rows of a stratum are in its block with the same probability, so the gradient is unbiased. The
halves are drawn independently of each other, so half their difference has the covariance of the
gradient's noise, as without strata. No row leaves its device: only the sum over k is communicated.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial
from jaxtyping import Array, Int

from momentem.devices._mesh import spread_rows
from momentem.pytrees import Static
from momentem.targets._density import Target
from momentem.targets._minibatch import (
    NoisyGradient,
    StochasticTarget,
    add_prior,
    combine_halves,
    curvature_diagonal,
    read_block,
    reduce_words,
)
from momentem.types import PRNGKey, Scalar, Vector

__all__ = ["build_stratified"]


def build_stratified(
    target: Target,
    log_prior: Callable[[Vector], Scalar],
    log_likelihood: Callable[[Vector, Any], Scalar],
    rows: Any,
    batch_size: int,
    mesh: Mesh,
) -> StochasticTarget:
    """Return the minibatch form of a target. Its rows are host arrays, to be divided over a
    mesh."""
    num_rows, number = len(jax.tree.leaves(rows)[0]), mesh.shape["data"]
    if batch_size % (2 * number) or batch_size // 2 > num_rows:
        raise ValueError(
            f"batch_size must be a multiple of {2 * number}, because each half of a minibatch has "
            f"a block from each of the {number} devices along the mesh's axis of data, got "
            f"{batch_size}"
        )
    size = batch_size // (2 * number)
    order = np.random.default_rng(0).permutation(num_rows)
    counts = _counts(num_rows, number)
    # every stratum is wrapped around its end, to the length of the longest one plus a block
    wrapped = np.stack(
        [np.resize(part, counts[0] + size) for part in np.array_split(order, number)]
    )
    stored = jax.tree.map(lambda leaf: spread_rows(mesh, leaf[wrapped]), rows)
    sizes = Static(num_rows), Static(number), Static(size)
    return StochasticTarget(
        *target,
        batches=Partial(_draw_starts, *sizes[:2]),
        noisy_gradient=Partial(_noisy_gradient, log_prior, log_likelihood, stored, *sizes),
        prior_curvature=Partial(curvature_diagonal, log_prior),
        information_scale=batch_size / num_rows,
    )


def _counts(num_rows: int, number: int) -> np.ndarray:
    """Return the number of rows in each stratum, as in `np.array_split`."""
    return np.array([num_rows // number + (k < num_rows % number) for k in range(number)])


def _draw_starts(
    num_rows: Static, number: Static, key: PRNGKey, how_many: Static
) -> Int[Array, "minibatches 2 strata"]:
    """Draw the first row of every block: for each minibatch, half and stratum."""
    counts = _counts(num_rows.value, number.value)
    shape = (how_many.value, 2, number.value)
    size, wrap = (np.broadcast_to(n.astype(np.uint32), shape) for n in (counts, 2**32 % counts))
    return reduce_words(jax.random.bits(key, (2, *shape), jnp.uint32), size, wrap)


def _noisy_gradient(
    log_prior: Callable,
    log_likelihood: Callable,
    rows: Any,
    num_rows: Static,
    number: Static,
    size: Static,
    batch: Int[Array, "2 strata"],
    position: Vector,
) -> NoisyGradient:
    scales = jnp.asarray(_counts(num_rows.value, number.value) / size.value, position.dtype)

    def read(stratum: Any, start: Array) -> Any:
        return read_block(stratum, start, size.value)

    def scaled_log_likelihood(position: Vector, starts: Int[Array, " strata"]) -> Scalar:
        each = jax.vmap(jax.vmap(log_likelihood, in_axes=(None, 0)), in_axes=(None, 0))
        return jnp.sum(scales * jnp.sum(each(position, jax.vmap(read)(rows, starts)), axis=1))

    halves = jax.vmap(jax.value_and_grad(scaled_log_likelihood), in_axes=(None, 0))
    return add_prior(log_prior, position, combine_halves(*halves(position, batch)))

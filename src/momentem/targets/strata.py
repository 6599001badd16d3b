"""Minibatches of data that are divided over devices: a block of rows from every device.

Rows are shuffled once and dealt into K strata, one per device along the mesh's axis of data. Half a
minibatch is a block of n/2K rows from each stratum, at a start of its own:

    g~(theta) = grad log p(theta) + sum_k N_k/(n/2K) sum_{i in block k} grad log p(datum_i | theta)

Every row is in its block with the same chance, so the gradient is unbiased; the halves are drawn
independently of each other, so their half difference has the covariance of its noise, as without
strata. No row leaves its device: the only thing sent is the sum over k.
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
    below,
    curvature_diagonal,
    of_halves,
    read_block,
    with_prior,
)
from momentem.types import PRNGKey, Scalar, Vector

__all__ = ["stratified"]


def stratified(
    target: Target,
    log_prior: Callable[[Vector], Scalar],
    log_likelihood: Callable[[Vector, Any], Scalar],
    rows: Any,
    batch_size: int,
    mesh: Mesh,
) -> StochasticTarget:
    """The minibatch form of a target whose rows, arrays of the host, are divided over a mesh."""
    num_rows, number = len(jax.tree.leaves(rows)[0]), mesh.shape["data"]
    if batch_size % (2 * number) or batch_size // 2 > num_rows:
        raise ValueError(
            f"batch_size must be a multiple of {2 * number}, two halves of a block from each of "
            f"the {number} devices along the mesh's axis of data, got {batch_size}"
        )
    size = batch_size // (2 * number)
    order = np.random.default_rng(0).permutation(num_rows)
    counts = _counts(num_rows, number)
    # wrapped around its own end, each stratum is as long as the longest with a block after it
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
    """Rows in each stratum, as `np.array_split` deals them."""
    return np.array([num_rows // number + (k < num_rows % number) for k in range(number)])


def _draw_starts(
    num_rows: Static, number: Static, key: PRNGKey, how_many: Static
) -> Int[Array, "minibatches 2 strata"]:
    """Of so many minibatches, where the block of each half begins in each stratum."""
    counts = _counts(num_rows.value, number.value)
    shape = (how_many.value, 2, number.value)
    size, wrap = (np.broadcast_to(n.astype(np.uint32), shape) for n in (counts, 2**32 % counts))
    return below(jax.random.bits(key, (2, *shape), jnp.uint32), size, wrap)


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
    return with_prior(log_prior, position, of_halves(*halves(position, batch)))

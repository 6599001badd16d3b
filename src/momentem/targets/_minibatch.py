"""Targets whose gradient is estimated from a fresh minibatch in every step.

    g~(theta) = grad log p(theta) + (N/n) sum_{i in batch} grad log p(datum_i | theta)

A minibatch has two halves, drawn independently of each other, with gradients ga and gb:

    gradient  (ga + gb) / 2        unbiased
    noise     (ga - gb) / 2        mean 0, and exactly the covariance V of the gradient's noise

By default the rows are shuffled once, and a half is a block of consecutive rows at a uniform start,
wrapped around the end. Every row is in the block with the same probability, and reading the block
needs no gather. Given the shuffle, the halves are still independent, so the noise estimate is
correct for that shuffle. (docs/decisions/0005-half-blocks.md)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from momentem.checks import check_instance
from momentem.pytrees import Static
from momentem.targets._density import Target
from momentem.targets.advice import advise_on_target
from momentem.targets.describe import describe
from momentem.targets.parameters import Parameters
from momentem.types import PRNGKey, Scalar, Vector
from momentem.xla.host_memory import empty_rows, on_device
from momentem.xla.keys import key

__all__ = [
    "AnyTarget",
    "NoisyGradient",
    "StochasticTarget",
    "blocks",
    "check_stochastic_target",
    "check_target",
    "whole_gradient",
    "with_replacement",
]


class NoisyGradient(NamedTuple):
    """The gradient estimate of one minibatch, and samples of its noise."""

    gradient: Vector
    noise: Vector  # mean 0, with the covariance of the gradient's noise
    information: Any  # mean 0, covariance (N/n) x Fisher information; None: use `noise`
    logdensity: Scalar  # estimate of the log density from the same minibatch


class StochasticTarget(NamedTuple):
    """A posterior for stochastic kernels: the fields of a Target, and gradients of minibatches."""

    logdensity: Callable[[Vector], Scalar]  # from all data, or estimated from a window
    initial: Vector
    constrain: Callable[[Vector], Parameters]
    unconstrain: Callable[[Parameters], Vector]
    unravel: Callable[[Vector], Parameters]
    origin: Any  # an Origin, or None
    batches: Callable[..., Any]  # (key, Static number) -> minibatches along a leading axis
    noisy_gradient: Callable[..., NoisyGradient]  # (minibatch, position) -> estimate
    prior_curvature: Callable[[Vector], Vector]  # diagonal of -hess log prior
    information_scale: Any  # n/N
    whole: Any = None  # position -> log density and gradient of all data; None: by `logdensity`
    sizes: Any = None  # Static N and n; None: unknown

    def __repr__(self) -> str:
        return describe(self)


AnyTarget = Target | StochasticTarget


def check_target(target: Any) -> None:
    """Refuse anything but a target."""
    check_instance(AnyTarget, advise_on_target(target), target=target)


def check_stochastic_target(target: Any) -> None:
    """Refuse anything but a minibatch target."""
    remedy = "build it with momentem.dataset(…, batch_size=…)"
    check_instance(StochasticTarget, remedy, target=target)


EXACT_DIMENSION, NUM_PROBES = 256, 64  # for the prior's curvature: a Hessian, or random probes


BLOCK = 4096  # rows whose terms are summed at once, over all data


def whole_gradient(target: AnyTarget, position: Vector) -> tuple[Scalar, Vector]:
    """Return the log density and its gradient from all data."""
    if isinstance(target, StochasticTarget) and target.whole is not None:
        return target.whole(position)
    return jax.value_and_grad(target.logdensity)(position)


def one_gradient(target: StochasticTarget, key: PRNGKey, position: Vector) -> NoisyGradient:
    """Return the gradient estimate of one fresh minibatch."""
    batch = jax.tree.map(lambda leaf: leaf[0], target.batches(key, Static(1)))
    return target.noisy_gradient(batch, position)


class Scheme(NamedTuple):
    """Scheme that draws the rows of half a minibatch from N rows, and reads them."""

    prepare: Callable[..., Any]  # (rows, half size) -> rows as stored
    draw: Callable[..., Any]  # (key, shape, N, half size) -> places of the halves
    read: Callable[..., Any]  # (stored rows, place, half size) -> the half's rows


def blocks() -> Scheme:
    """Return the scheme that draws blocks of consecutive rows from a shuffled copy of the data.

    Rows within half a minibatch are drawn without replacement. It is the default of `dataset`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.dataset(
        ...     log_prior=lambda mu: -0.5 * mu**2,
        ...     log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        ...     data=jnp.arange(100.0),
        ...     initial=0.0,
        ...     batch_size=10,
        ...     batches=mt.blocks(),
        ... )
    """
    return Scheme(_shuffle_and_wrap, draw_starts, read_block)


def with_replacement() -> Scheme:
    """Return the scheme that draws every row of a minibatch independently, with replacement.

    It is the textbook scheme, and ten times slower than `blocks`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.dataset(
        ...     log_prior=lambda mu: -0.5 * mu**2,
        ...     log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        ...     data=jnp.arange(100.0),
        ...     initial=0.0,
        ...     batch_size=10,
        ...     batches=mt.with_replacement(),
        ... )
    """
    return Scheme(_keep_rows, _draw_indices, _read_rows)


def _shuffle_and_wrap(rows: Any, half: int) -> Any:
    order = np.random.default_rng(0).permutation(len(jax.tree.leaves(rows)[0]))
    wrapped = np.concatenate([order, order[:half]])

    def shuffle(leaf: Array) -> np.ndarray:
        out = empty_rows(len(wrapped), leaf)
        # other modes would use a buffer
        return np.take(np.asarray(leaf), wrapped, axis=0, out=out, mode="clip")

    return on_device(jax.tree.map(shuffle, rows))


def draw_starts(
    key: PRNGKey, shape: tuple[int, ...], num_rows: int, half: int
) -> Int[Array, "..."]:
    """Draw the first rows of blocks, uniformly below `num_rows`."""
    del half
    return reduce_words(jax.random.bits(key, (2, *shape), jnp.uint32), num_rows, 2**32 % num_rows)


def reduce_words(words: Array, size: Any, wrap: Any) -> Int[Array, "..."]:
    """Map pairs of random words to integers that are uniform below `size`; `wrap` is 2^32 mod
    `size`.

    The arithmetic is that of `jax.random.randint`, which splits its key into three. The words here
    come from one key, which saves a fifth of the time of a step.
    """
    high, low = words
    return ((high % size * wrap + low % size) % size).astype(int)


def read_block(rows: Any, start: Array, half: int) -> Any:
    """Return `half` consecutive rows, beginning at `start`."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, half), rows)


def _keep_rows(rows: Any, half: int) -> Any:
    del half
    return rows


def _draw_indices(
    key: PRNGKey, shape: tuple[int, ...], num_rows: int, half: int
) -> Int[Array, "..."]:
    return jax.random.randint(key, (*shape, half), 0, num_rows)


def _read_rows(rows: Any, indices: Array, half: int) -> Any:
    del half
    return jax.tree.map(lambda leaf: leaf[indices], rows)


def build_stochastic(
    target: Target,
    log_prior: Callable[[Vector], Scalar],
    log_likelihood: Callable[[Vector, Any], Scalar],
    rows: Any,
    num_rows: int,
    batch_size: int,
    scheme: Scheme,
    is_part: bool = False,
) -> StochasticTarget:
    """Return the minibatch form of a target. Its prior and likelihood are Partials of flat vectors.
    If the rows in memory are only part of the data, there is no gradient of all."""
    half = batch_size // 2
    stored = scheme.prepare(rows, half)
    sizes = Static(num_rows), Static(half)
    return StochasticTarget(
        *target,
        batches=Partial(draw_halves, Partial(scheme.draw), *sizes),
        noisy_gradient=Partial(
            _noisy_gradient, Partial(scheme.read), log_prior, log_likelihood, stored, *sizes
        ),
        prior_curvature=Partial(curvature_diagonal, log_prior),
        information_scale=batch_size / num_rows,
        whole=None if is_part else Partial(_whole, log_prior, log_likelihood, stored, sizes[0]),
        sizes=(sizes[0], Static(batch_size)),
    )


def _whole(
    log_prior: Callable, log_likelihood: Callable, rows: Any, num_rows: Static, position: Vector
) -> tuple[Scalar, Vector]:
    """Return the log density and its gradient from all rows, block by block. What rounding takes
    from the sum of the blocks is added to the next (Kahan 1965): with 10^6 rows in float32, the
    plain sum of the log density is off by several units."""
    size = min(BLOCK, num_rows.value)

    def add(i: Any, carry: tuple) -> tuple:
        # the last block begins early, and its first rows have been counted
        start = jnp.minimum(i * size, num_rows.value - size)
        data = read_block(rows, start, size)
        is_new = start + jnp.arange(size) >= i * size

        def of_block(position: Vector) -> Scalar:
            terms = jax.vmap(log_likelihood, in_axes=(None, 0))(position, data)
            return jnp.sum(jnp.where(is_new, terms, 0))

        totals, lost = carry
        terms = jax.tree.map(jnp.subtract, jax.value_and_grad(of_block)(position), lost)
        new = jax.tree.map(jnp.add, totals, terms)
        return new, jax.tree.map(lambda a, b, c: (a - b) - c, new, totals, terms)

    none = jnp.zeros_like(position[0]), jnp.zeros_like(position)
    likelihood, _ = jax.lax.fori_loop(0, -(-num_rows.value // size), add, (none, none))
    return jax.tree.map(jnp.add, jax.value_and_grad(log_prior)(position), likelihood)


def draw_halves(
    draw: Callable, num_rows: Static, half: Static, key: PRNGKey, number: Static
) -> Any:
    """Draw `number` minibatches along a leading axis, each as the places of its two halves."""
    return draw(key, (number.value, 2), num_rows.value, half.value)


def _noisy_gradient(
    read: Callable,
    log_prior: Callable,
    log_likelihood: Callable,
    rows: Any,
    num_rows: Static,
    half: Static,
    batch: Any,
    position: Vector,
) -> NoisyGradient:
    def scaled_log_likelihood(position: Vector, data: Any) -> Scalar:
        terms = jax.vmap(log_likelihood, in_axes=(None, 0))(position, data)
        return num_rows.value / half.value * jnp.sum(terms)

    halves = jax.vmap(jax.value_and_grad(scaled_log_likelihood), in_axes=(None, 0))
    values, gradients = halves(position, jax.vmap(lambda b: read(rows, b, half.value))(batch))
    return add_prior(log_prior, position, combine_halves(values, gradients))


def add_prior(log_prior: Callable, position: Vector, likelihood: NoisyGradient) -> NoisyGradient:
    """Return the estimate for a posterior from the estimate for its likelihood."""
    prior, prior_gradient = jax.value_and_grad(log_prior)(position)
    return likelihood._replace(
        gradient=prior_gradient + likelihood.gradient, logdensity=prior + likelihood.logdensity
    )


def combine_halves(values: Float[Array, " 2"], gradients: Float[Array, "2 dim"]) -> NoisyGradient:
    """Return the estimate of a minibatch from the log densities and gradients of its halves."""
    difference = (gradients[0] - gradients[1]) / 2
    return NoisyGradient(
        gradient=(gradients[0] + gradients[1]) / 2,
        noise=difference,
        information=None,
        logdensity=(values[0] + values[1]) / 2,
    )


def curvature_diagonal(log_prior: Callable, position: Vector) -> Vector:
    """Return the diagonal of -hess log prior.

    It is exact up to EXACT_DIMENSION dimensions. Above, it is Hutchinson's estimate: the mean of
    z * (H z) over NUM_PROBES vectors z of random signs. The estimate is exact where parameters are
    independent a priori. Otherwise, entry i has the standard error
    sqrt(sum_{j != i} H_ij^2 / NUM_PROBES).
    """
    if len(position) <= EXACT_DIMENSION:
        return -jnp.diagonal(jax.hessian(log_prior)(position))
    _, times_hessian = jax.linearize(jax.grad(log_prior), position)

    def add_probe(i: Any, total: Vector) -> Vector:
        signs = jax.random.rademacher(jax.random.fold_in(key(0), i), position.shape, position.dtype)
        return total + signs * times_hessian(signs)

    total = jax.lax.fori_loop(0, NUM_PROBES, add_probe, jnp.zeros_like(position))
    return -total / NUM_PROBES

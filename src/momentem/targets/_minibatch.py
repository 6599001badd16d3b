"""A target whose gradient is estimated from a fresh minibatch in every step.

    g~(theta) = grad log p(theta) + (N/n) sum_{i in batch} grad log p(datum_i | theta)

A minibatch is two halves drawn independently of each other, with gradients ga and gb:

    gradient  (ga + gb) / 2        unbiased
    noise     (ga - gb) / 2        mean 0, and the covariance V of the gradient's noise exactly

By default a half is a block of consecutive rows of a copy that was shuffled once, wrapped around
its end, at a uniform start: every row is in it with the same chance, and reading it costs no
gather. Given the shuffle the halves are still independent, so that the noise estimate is right for
that very shuffle. (docs/decisions/0005-half-blocks.md)
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
    "with_replacement",
]


class NoisyGradient(NamedTuple):
    """A gradient from one minibatch, and what the minibatch says of its noise."""

    gradient: Vector
    noise: Vector  # mean 0, covariance that of the gradient's noise
    information: Any  # mean 0, covariance (N/n) times the Fisher information; None: the noise is it
    logdensity: Scalar  # the same minibatch's estimate of the log density


class StochasticTarget(NamedTuple):
    """What a stochastic kernel needs to know of a posterior: a Target, and its gradient in part."""

    logdensity: Callable[[Vector], Scalar]  # of all data, or estimated from a window of them
    initial: Vector
    constrain: Callable[[Vector], Parameters]
    unconstrain: Callable[[Parameters], Vector]
    unravel: Callable[[Vector], Parameters]
    batches: Callable[..., Any]  # (key, Static number) -> so many minibatches, along a leading axis
    noisy_gradient: Callable[..., NoisyGradient]  # (minibatch, position) -> estimate
    prior_curvature: Callable[[Vector], Vector]  # diagonal of -hess log prior
    information_scale: Any  # n/N


AnyTarget = Target | StochasticTarget


def check_target(target: Any) -> None:
    """Refuse what is no target."""
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)


def check_stochastic_target(target: Any) -> None:
    """Refuse what is no minibatch target."""
    remedy = "build it by momentem.dataset(…, batch_size=…)"
    check_instance(StochasticTarget, remedy, target=target)


EXACT_DIMENSION, NUM_PROBES = 256, 64  # of the prior's curvature: a Hessian, or random probes


def one_gradient(target: StochasticTarget, key: PRNGKey, position: Vector) -> NoisyGradient:
    """The estimate of one fresh minibatch."""
    batch = jax.tree.map(lambda leaf: leaf[0], target.batches(key, Static(1)))
    return target.noisy_gradient(batch, position)


class Scheme(NamedTuple):
    """How the rows of half a minibatch are drawn from N rows and read."""

    prepare: Callable[..., Any]  # (rows, half size) -> rows as stored
    draw: Callable[..., Any]  # (key, shape, N, half size) -> where halves are
    read: Callable[..., Any]  # (stored rows, where, half size) -> the half's rows


def blocks() -> Scheme:
    """Halves are consecutive rows of a shuffled copy: without replacement within a half."""
    return Scheme(_shuffle_and_wrap, draw_starts, read_block)


def with_replacement() -> Scheme:
    """Halves are rows drawn one by one, with replacement: the textbook's, and ten times slower."""
    return Scheme(_as_they_are, _draw_indices, _read_rows)


def _shuffle_and_wrap(rows: Any, half: int) -> Any:
    order = np.random.default_rng(0).permutation(len(jax.tree.leaves(rows)[0]))
    wrapped = np.concatenate([order, order[:half]])

    def shuffled(leaf: Array) -> np.ndarray:
        out = empty_rows(len(wrapped), leaf)
        return np.take(np.asarray(leaf), wrapped, axis=0, out=out, mode="clip")  # else it buffers

    return on_device(jax.tree.map(shuffled, rows))


def draw_starts(
    key: PRNGKey, shape: tuple[int, ...], num_rows: int, half: int
) -> Int[Array, "..."]:
    """Uniform below num_rows."""
    del half
    return below(jax.random.bits(key, (2, *shape), jnp.uint32), num_rows, 2**32 % num_rows)


def below(words: Array, size: Any, wrap: Any) -> Int[Array, "..."]:
    """Uniform below `size` from two words each, where `wrap` is 2^32 mod `size`: the arithmetic of
    `jax.random.randint`, which draws from three keys what this draws from one: that is a fifth of
    the time of a step."""
    high, low = words
    return ((high % size * wrap + low % size) % size).astype(int)


def read_block(rows: Any, start: Array, half: int) -> Any:
    """So many consecutive rows."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, half), rows)


def _as_they_are(rows: Any, half: int) -> Any:
    del half
    return rows


def _draw_indices(
    key: PRNGKey, shape: tuple[int, ...], num_rows: int, half: int
) -> Int[Array, "..."]:
    return jax.random.randint(key, (*shape, half), 0, num_rows)


def _read_rows(rows: Any, indices: Array, half: int) -> Any:
    del half
    return jax.tree.map(lambda leaf: leaf[indices], rows)


def stochastic(
    target: Target,
    log_prior: Callable[[Vector], Scalar],
    log_likelihood: Callable[[Vector, Any], Scalar],
    rows: Any,
    num_rows: int,
    batch_size: int,
    scheme: Scheme,
) -> StochasticTarget:
    """The minibatch form of a target whose prior and likelihood are given over flat vectors
    (Partials)."""
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
    )


def draw_halves(
    draw: Callable, num_rows: Static, half: Static, key: PRNGKey, number: Static
) -> Any:
    """So many minibatches, along a leading axis, each as where its two halves are."""
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
    return with_prior(log_prior, position, of_halves(values, gradients))


def with_prior(log_prior: Callable, position: Vector, likelihood: NoisyGradient) -> NoisyGradient:
    """The estimate of a posterior from that of its likelihood."""
    prior, prior_gradient = jax.value_and_grad(log_prior)(position)
    return likelihood._replace(
        gradient=prior_gradient + likelihood.gradient, logdensity=prior + likelihood.logdensity
    )


def of_halves(values: Float[Array, " 2"], gradients: Float[Array, "2 dim"]) -> NoisyGradient:
    """The estimate of a minibatch from the log densities and gradients of its halves."""
    difference = (gradients[0] - gradients[1]) / 2
    return NoisyGradient(
        gradient=(gradients[0] + gradients[1]) / 2,
        noise=difference,
        information=None,
        logdensity=(values[0] + values[1]) / 2,
    )


def curvature_diagonal(log_prior: Callable, position: Vector) -> Vector:
    """Return the diagonal of -hess log prior.

    It is exact up to EXACT_DIMENSION dimensions. Above, it is Hutchinson's estimate, the mean of
    z * (H z) over NUM_PROBES vectors z of random signs: exact where parameters are independent a
    priori, and else with the standard error sqrt(sum_{j != i} H_ij^2 / NUM_PROBES) in entry i.
    """
    if len(position) <= EXACT_DIMENSION:
        return -jnp.diagonal(jax.hessian(log_prior)(position))
    _, times_hessian = jax.linearize(jax.grad(log_prior), position)

    def add_probe(i: Any, total: Vector) -> Vector:
        signs = jax.random.rademacher(jax.random.fold_in(key(0), i), position.shape, position.dtype)
        return total + signs * times_hessian(signs)

    total = jax.lax.fori_loop(0, NUM_PROBES, add_probe, jnp.zeros_like(position))
    return -total / NUM_PROBES

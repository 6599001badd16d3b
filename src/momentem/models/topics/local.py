"""The documents' local step: which topics the words of a document come from.

Given topics phi and weights r, a document's tokens w get topics z_w as

    theta / |theta| ~ Dirichlet(r),   z_w | theta ~ phi_wk theta_k / phi_w . theta

and the global gradient needs E[z | y] and E[psi(r_k + n_k)], with n_k the tokens of topic k.

    gibbs(n)         n exact sweeps theta | z, z | theta from a short fixed point: right in law as n
                     grows
    fixed_point(n)   pi_wk <- phi_wk (r_k + n_k - pi_wk), normalised, with n_k = sum_w y_w pi_wk, n
                     times: each word given the expected topics of the others (Asuncion and others
                     2009, "CVB0"); no randomness, and a bias that topics do not recover from

No document keeps a state: both start from the weights alone. Documents lie one after the other in a
flat list of tokens, so that a minibatch of any lengths is one program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from momentem.checks import check_count
from momentem.types import PRNGKey, Static

__all__ = ["Local", "LocalStep", "Tokens", "fixed_point", "gibbs"]

Words = Float[Array, "documents words topics"]  # phi at the words of each document
Counts = Float[Array, "documents words"]
Weights = Float[Array, " topics"]
Loads = Float[Array, "documents topics"]
Flat = Float[Array, "tokens topics"]

TINY = 1e-30  # a load that no word can tell from none
NUM_FIRST = 3  # cheap iterations before those that count
NUM_TRIES = 3  # proposals of a gamma variate: all are refused once in 10^4


class Tokens(NamedTuple):
    """Documents one after the other."""

    phi: Flat  # of every token's word
    counts: Float[Array, " tokens"]  # what a token stands for, 0 where there is none
    documents: Int[Array, " tokens"]  # which it is of, ascending
    num_documents: Static


class Local(NamedTuple):
    """What a local step finds."""

    expected: Flat  # the tokens' topics, or their expectation given something of the right law
    numbers: Loads  # n_k, or its expectation
    present: Loads  # whether topic k has any word, or the chance of it
    loads: Loads  # theta up to its scale, a smooth function of phi and r


class LocalStep(NamedTuple):
    """How documents are explained by topics."""

    solve: Callable[..., Local]  # (key, tokens, weights) -> Local


def fixed_point(num: int = 5) -> LocalStep:
    """The collapsed posterior's fixed point.

    Args:
        num: of iterations.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_fixed_point, Static(num)))


def gibbs(num: int = 2) -> LocalStep:
    """Exact Gibbs sweeps, the last of which is told.

    Args:
        num: of sweeps.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_gibbs, Static(num)))


def responsibilities(
    phi: Float[Array, "*words topics"], loads: Any
) -> Float[Array, "*words topics"]:
    """phi_wk theta_k / phi_w . theta, with loads that fit phi."""
    joint = phi * loads
    return joint / jnp.sum(joint, axis=-1, keepdims=True)


class Field(NamedTuple):
    """Shares of topics in every word, and r + E[n], which predicts the document's next word."""

    shares: Words
    loads: Loads


def collapsed_field(num: int, phi: Words, counts: Counts, weights: Weights) -> Field:
    """pi_wk <- phi_wk (r_k + n_k - pi_wk), normalised, with n_k = sum_w y_w pi_wk.

    Started from a few iterations that leave - pi_wk out, which are two matrix-vector products each.
    """

    def climb(_: Any, loads: Loads) -> Loads:
        rates = jnp.einsum("dwk,dk->dw", phi, loads)
        return weights[None] + loads * jnp.einsum("dwk,dw->dk", phi, counts / rates)

    def exclude(_: Any, field: Field) -> Field:
        others = jnp.maximum(field.loads[:, None] - field.shares, TINY)
        shares = responsibilities(phi, others)
        return Field(shares, weights[None] + jnp.einsum("dw,dwk->dk", counts, shares))

    total = jnp.sum(counts, axis=1, keepdims=True)
    start = weights[None] * (1 + total / jnp.sum(weights))
    loads = jax.lax.fori_loop(0, NUM_FIRST, climb, start)
    return jax.lax.fori_loop(0, num, exclude, Field(responsibilities(phi, loads[:, None]), loads))


def summed(tokens: Tokens, values: Array) -> Array:
    """Sums over the tokens of each document."""
    zeros = jnp.zeros((tokens.num_documents.value, *values.shape[1:]), values.dtype)
    return zeros.at[tokens.documents].add(values, indices_are_sorted=True)


def climbed(tokens: Tokens, weights: Weights) -> Loads:
    """A few iterations of g_k <- r_k + sum_w y_w phi_wk g_k / phi_w . g."""

    def climb(_: Any, loads: Loads) -> Loads:
        rates = jnp.sum(tokens.phi * loads[tokens.documents], axis=1)
        scale = jax.lax.optimization_barrier(tokens.counts / rates)
        return weights[None] + loads * summed(tokens, tokens.phi * scale[:, None])

    total = summed(tokens, tokens.counts)[:, None]
    start = weights[None] * (1 + total / jnp.sum(weights))
    return jax.lax.fori_loop(0, NUM_FIRST, climb, start)


def _fixed_point(num: Static, key: PRNGKey, tokens: Tokens, weights: Weights) -> Local:
    del key
    phi, y, documents, _ = tokens

    def exclude(_: Any, field: tuple[Flat, Loads]) -> tuple[Flat, Loads]:
        shares, loads = field
        shares = responsibilities(phi, jnp.maximum(loads[documents] - shares, TINY))
        return shares, weights[None] + summed(tokens, y[:, None] * shares)

    loads = climbed(tokens, weights)
    field = (responsibilities(phi, loads[documents]), loads)
    shares, loads = jax.lax.fori_loop(0, num.value, exclude, field)
    # of independent words, all missing: a share of 1 leaves no chance
    absent = jnp.exp(summed(tokens, y[:, None] * jnp.log1p(-jnp.minimum(shares, 1 - 1e-6))))
    return Local(y[:, None] * shares, loads - weights[None], 1 - absent, loads)


def _gibbs(num: Static, key: PRNGKey, tokens: Tokens, weights: Weights) -> Local:
    phi, y, documents, num_documents = tokens
    T, shape, dtype = num.value, (num_documents.value, len(weights)), phi.dtype
    normal_key, uniform_key, token_key = jax.random.split(key, 3)
    # drawn before they are used, or a compiler that merges loops draws them again for every topic
    normals, uniforms, chances = jax.lax.optimization_barrier(
        (
            jax.random.normal(normal_key, (T, NUM_TRIES, *shape), dtype),
            jax.random.uniform(uniform_key, (T, NUM_TRIES + 1, *shape), dtype, minval=1e-7),
            jax.random.uniform(token_key, (T + 1, len(y)), dtype),
        )
    )

    def numbers(joint: Flat, chance: Array) -> Loads:
        places = documents * shape[1] + picked(joint, chance)
        return jnp.zeros(shape[0] * shape[1], dtype).at[places].add(y).reshape(shape)

    smooth = climbed(tokens, weights)
    loads, n = smooth, numbers(phi * smooth[documents], chances[0])
    for i in range(T):
        # as logarithms: a gamma of small shape underflows
        logs = log_gamma(weights[None] + n, normals[i], uniforms[i])
        loads = jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True))
        joint = jax.lax.optimization_barrier(phi * loads[documents])
        n = jax.lax.optimization_barrier(numbers(joint, chances[i + 1]))
    # E[z | theta] has the mean of z and less noise
    expected = y[:, None] * responsibilities(phi, loads[documents])
    return Local(expected, n, (n > 0).astype(dtype), smooth)


def log_gamma(shape: Any, normals: Any, uniforms: Any) -> Array:
    """Logarithms of gamma variates, by Marsaglia and Tsang's method for shape + 1 >= 1: the first
    of a few proposals that is accepted, and the last if none is."""
    d = shape + 2 / 3
    v = (1 + normals / jnp.sqrt(9 * d)[None]) ** 3
    log_v = jnp.log(jnp.maximum(v, TINY))
    is_good = (v > 0) & (jnp.log(uniforms[:-1]) < normals**2 / 2 + d[None] * (1 - v + log_v))
    chosen = log_v[-1]
    for i in reversed(range(len(normals) - 1)):
        chosen = jnp.where(is_good[i], log_v[i], chosen)
    return jnp.log(d) + chosen + jnp.log(uniforms[-1]) / shape


def picked(joint: Flat, chances: Any) -> Int[Array, " tokens"]:
    """A topic for every token, with chances in proportion to the rows of `joint`: first a block of
    about sqrt(K) topics, then one of them, which never sums up more than sqrt(K) numbers."""
    num, K = joint.shape
    side = round(K**0.5)
    num_blocks = -(-K // side)
    if num_blocks * side > K:
        joint = jnp.pad(joint, ((0, 0), (0, num_blocks * side - K)))
    blocks = joint.reshape(num, num_blocks, side)
    total = jnp.stack(_partial_sums(jnp.sum(blocks, axis=2)), axis=1)
    u = chances * total[:, -1]
    block = jnp.minimum(jnp.sum(total <= u[:, None], axis=1), num_blocks - 1)
    before = jnp.pad(total, ((0, 0), (1, 0)))
    u = u - jnp.take_along_axis(before, block[:, None], axis=1)[:, 0]
    within = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    steps = jnp.stack(_partial_sums(within), axis=1)
    inside = jnp.minimum(jnp.sum(steps <= u[:, None], axis=1), side - 1)
    return jnp.minimum(block * side + inside, K - 1)


def _partial_sums(rows: Array) -> list[Array]:
    """Of few columns: XLA's cumulative sum is ten times slower on a CPU."""
    sums = [rows[:, 0]]
    for j in range(1, rows.shape[1]):
        sums.append(sums[-1] + rows[:, j])
    return sums

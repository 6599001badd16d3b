"""The documents' local step: which topics the words of a document come from.

Given topics phi and weights r, a document's tokens w get topics z_w as

    theta / |theta| ~ Dirichlet(r),   z_w | theta ~ phi_wk theta_k / phi_w . theta

and the global gradient needs E[z | y] and E[psi(r_k + n_k)], with n_k the tokens of topic k.

    gibbs(n)         n exact sweeps theta | z, z | theta from a short fixed point: right in law as n
                     grows
    fixed_point(n)   pi_wk <- phi_wk (r_k + n_k - pi_wk), normalised, with n_k = sum_w y_w pi_wk, n
                     times: each word given the expected topics of the others (Asuncion and others
                     2009, "CVB0"); no randomness, and a bias that topics do not recover from

No document keeps a state: both start from the weights alone. Documents are written one after the
other in lines of a few words, so that a minibatch of any lengths is one program, made of small
matrix products, one for each line.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from momentem.checks import check_count
from momentem.pytrees import Static
from momentem.types import PRNGKey
from momentem.xla.normals import normal
from momentem.xla.once import compute_once

__all__ = ["Lines", "Local", "LocalStep", "collapsed_field", "fixed_point", "gibbs", "in_lines"]

Weights = Float[Array, " topics"]
Loads = Float[Array, "documents topics"]
InLines = Float[Array, "lines width topics"]

TINY = 1e-30  # a load that no word can tell from none
NUM_FIRST = 3  # cheap iterations before those that count
NUM_TRIES = 3  # proposals of a gamma variate: all are refused once in 10^4


class Lines(NamedTuple):
    """Documents one after the other, in lines of the same number of words."""

    phi: InLines  # of every word
    counts: Float[Array, "lines width"]  # 0 where there is none
    documents: Int[Array, " lines"]  # which it is of, ascending
    tokens: Int[Array, " tokens"]  # which word of all lines it is
    token_counts: Float[Array, " tokens"]  # what a token stands for, 0 where there is none
    num_documents: Static


def in_lines(phi: InLines, counts: Float[Array, "lines width"]) -> Lines:
    """Documents of a line each, without tokens."""
    none = jnp.zeros(0, int), jnp.zeros(0, counts.dtype)
    return Lines(phi, counts, jnp.arange(len(counts)), *none, Static(len(counts)))


class Local(NamedTuple):
    """What a local step finds."""

    expected: InLines  # y E[z], given something of the right law or not
    numbers: Loads  # n_k, or its expectation
    present: Loads  # whether topic k has any word, or the chance of it
    loads: Loads  # theta up to its scale, a smooth function of phi and r


class LocalStep(NamedTuple):
    """How documents are explained by topics."""

    solve: Callable[..., Local]  # (key, lines, weights) -> Local


def fixed_point(num: int = 5) -> LocalStep:
    """Return the local step that iterates to the collapsed posterior's fixed point.

    Args:
        num: iterations.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_fixed_point, Static(num)))


def gibbs(num: int = 2) -> LocalStep:
    """Return the local step of exact Gibbs sweeps, which gives the result of the last.

    Args:
        num: sweeps.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_gibbs, Static(num)))


def responsibilities(
    phi: Float[Array, "*words topics"], loads: Any
) -> Float[Array, "*words topics"]:
    """Return phi_wk theta_k / phi_w . theta, with loads that fit phi."""
    joint = phi * loads
    # a product with ones, which a processor sums up by eights
    return joint / (joint @ jnp.ones_like(joint, shape=joint.shape[-1:]))[..., None]


def summed(lines: Lines, values: Array) -> Array:
    """Return sums over the lines of each document."""
    zeros = jnp.zeros((lines.num_documents.value, *values.shape[1:]), values.dtype)
    return zeros.at[lines.documents].add(values, indices_are_sorted=True)


def rates_of(lines: Lines, loads: Loads) -> Float[Array, "lines width"]:
    """Return phi_w . theta of every word."""
    return jnp.einsum("lwk,lk->lw", lines.phi, loads[lines.documents])


def gathered(lines: Lines, amounts: Float[Array, "lines width"]) -> Loads:
    """Return sum_w a_w phi_wk over the words of each document."""
    return summed(lines, jnp.einsum("lwk,lw->lk", lines.phi, amounts))


def climbed(lines: Lines, weights: Weights) -> Loads:
    """Return the loads after a few iterations of g_k <- r_k + sum_w y_w phi_wk g_k / phi_w . g."""

    def climb(_: Any, loads: Loads) -> Loads:
        return weights[None] + loads * gathered(lines, lines.counts / rates_of(lines, loads))

    total = summed(lines, jnp.sum(lines.counts, axis=1))[:, None]
    start = weights[None] * (1 + total / jnp.sum(weights))
    return jax.lax.fori_loop(0, NUM_FIRST, climb, start)


class Field(NamedTuple):
    """Shares of topics in every word, and r + E[n], which predicts the document's next word."""

    shares: InLines
    loads: Loads


def collapsed_field(num: int, lines: Lines, weights: Weights) -> Field:
    """pi_wk <- phi_wk (r_k + n_k - pi_wk), normalised, with n_k = sum_w y_w pi_wk.

    Started from a few iterations that leave - pi_wk out, which are two matrix-vector products each.
    """

    def exclude(_: Any, field: Field) -> Field:
        others = jnp.maximum(field.loads[lines.documents][:, None] - field.shares, TINY)
        shares = responsibilities(lines.phi, others)
        numbers = summed(lines, jnp.einsum("lwk,lw->lk", shares, lines.counts))
        return Field(shares, weights[None] + numbers)

    loads = climbed(lines, weights)
    start = Field(responsibilities(lines.phi, loads[lines.documents][:, None]), loads)
    return jax.lax.fori_loop(0, num, exclude, start)


def _fixed_point(num: Static, key: PRNGKey, lines: Lines, weights: Weights) -> Local:
    del key
    shares, loads = collapsed_field(num.value, lines, weights)
    # of independent words, all missing: a share of 1 leaves no chance
    logs = jnp.log1p(-jnp.minimum(shares, 1 - 1e-6))
    present = -jnp.expm1(summed(lines, jnp.einsum("lwk,lw->lk", logs, lines.counts)))
    return Local(lines.counts[:, :, None] * shares, loads - weights[None], present, loads)


def _gibbs(num: Static, key: PRNGKey, lines: Lines, weights: Weights) -> Local:
    T, shape = num.value, (lines.num_documents.value, len(weights))
    dtype, num_tokens = lines.phi.dtype, len(lines.tokens)
    normal_key, uniform_key, token_key = jax.random.split(key, 3)
    normals, uniforms, chances = compute_once(
        (
            normal(normal_key, (T, NUM_TRIES, *shape), dtype),
            jax.random.uniform(uniform_key, (T, NUM_TRIES + 1, *shape), dtype, minval=1e-7),
            jax.random.uniform(token_key, (T + 1, num_tokens), dtype),
        )
    )
    owners = lines.documents[lines.tokens // lines.phi.shape[1]]
    _, owners = compute_once((lines.token_counts, owners))

    def numbers(loads: Loads, chance: Array) -> Loads:
        places = owners * shape[1] + picked(lines, owners, loads, chance)
        empty = jnp.zeros(shape[0] * shape[1], dtype)
        return empty.at[places].add(lines.token_counts).reshape(shape)

    smooth = climbed(lines, weights)
    loads, n = smooth, numbers(smooth, chances[0])
    for i in range(T):
        # as logarithms: a gamma of small shape underflows
        logs = log_gamma(weights[None] + n, normals[i], uniforms[i])
        loads = compute_once(jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True)))
        n = compute_once(numbers(loads, chances[i + 1]))
    # E[z | theta] has the mean of z and less noise
    scales = compute_once(lines.counts / rates_of(lines, loads))
    expected = lines.phi * compute_once(loads[lines.documents])[:, None] * scales[:, :, None]
    return Local(expected, n, (n > 0).astype(dtype), smooth)


def log_gamma(shape: Any, normals: Any, uniforms: Any) -> Array:
    """Return logarithms of gamma variates, by Marsaglia and Tsang's method for shape + 1 >= 1: the
    first of a few proposals that is accepted, and the last if none is."""
    d = shape + 2 / 3
    v = (1 + normals / jnp.sqrt(9 * d)[None]) ** 3
    log_v = jnp.log(jnp.maximum(v, TINY))
    is_good = (v > 0) & (jnp.log(uniforms[:-1]) < normals**2 / 2 + d[None] * (1 - v + log_v))
    chosen = log_v[-1]
    for i in reversed(range(len(normals) - 1)):
        chosen = jnp.where(is_good[i], log_v[i], chosen)
    return jnp.log(d) + chosen + jnp.log(uniforms[-1]) / shape


def picked(
    lines: Lines, owners: Int[Array, " tokens"], loads: Loads, chances: Float[Array, " tokens"]
) -> Int[Array, " tokens"]:
    """Draw a topic for every token, with chances in proportion to phi_wk theta_k.

    First one of about sqrt(K) combs of topics b, b + S, b + 2 S, …, then one of its teeth, so that
    no more than sqrt(K) numbers are ever summed up one after the other; the combs' sums are shared
    by all tokens of a word.
    """
    K = lines.phi.shape[-1]
    spacing = max(1, round(K**0.5))
    firsts = range(0, K, spacing)
    by_line = compute_once(loads[lines.documents])[:, None]

    def tooth(first: int) -> Array:
        part = slice(first, first + spacing)
        rates = lines.phi[:, :, part] * by_line[:, :, part]
        return jnp.pad(rates, ((0, 0), (0, 0), (0, spacing - rates.shape[2])))

    combs: Any = sum(tooth(first) for first in firsts)
    sums = compute_once(combs.reshape(-1, spacing)[lines.tokens])
    columns = [sums[:, b] for b in range(spacing)]
    u, comb = compute_once(_located(columns, chances * sum(columns), owners.dtype))
    topics = comb[:, None] + jnp.arange(0, K, spacing, owners.dtype)[None]
    known = jnp.minimum(topics, K - 1)
    phi, theta = lines.phi.reshape(-1), loads.reshape(-1)
    rates = phi[lines.tokens[:, None] * K + known] * theta[owners[:, None] * K + known]
    rates = compute_once(jnp.where(topics < K, rates, 0))
    _, tooth_of = _located([rates[:, i] for i in range(len(firsts))], u, owners.dtype)
    return jnp.minimum(comb + spacing * tooth_of, K - 1)


def _located(columns: list[Array], u: Array, dtype: Any) -> tuple[Array, Array]:
    """Lay a few columns end to end, and return how far into one of them u is, and which it is.
    (XLA's cumulative sum is ten times slower on a CPU.)"""
    total = before = jnp.zeros_like(u)
    which = jnp.zeros_like(u, dtype)
    for column in columns[:-1]:
        total = total + column
        is_past = total <= u
        which = which + is_past.astype(dtype)
        before = jnp.where(is_past, total, before)
    return u - before, which

"""The documents' local step: which topics the words of a document come from.

Given topics phi and weights r, a document's word counts y_w split over topics as

    theta / |theta| ~ Dirichlet(r),   z_w | theta ~ Multinomial(y_w, phi_wk theta_k / phi_w . theta)

and the global gradient needs z, or E[z | y] and the chances that n_k = sum_w z_wk is not 0.

    fixed_point(n)   pi_wk <- phi_wk (r_k + n_k - pi_wk), normalised, with n_k = sum_w y_w pi_wk, n
                     times: each word given the expected topics of the others (Asuncion and others
                     2009, "CVB0"); no randomness
    gibbs(n)         n exact sweeps z | theta, theta | z: right in law as n grows, and slower

No document keeps a state: both start from the weights alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_count
from momentem.types import PRNGKey, Static

__all__ = ["Local", "LocalStep", "fixed_point", "gibbs"]

Words = Float[Array, "documents words topics"]  # phi at the words of each document
Counts = Float[Array, "documents words"]
Weights = Float[Array, " topics"]
Loads = Float[Array, "documents topics"]

TINY = 1e-30  # a load that no word can tell from none
NUM_FIRST = 5  # cheap iterations before those that count


class Local(NamedTuple):
    """What a local step finds for each document."""

    expected: Words  # z_wk, or its expectation
    present: Loads  # whether topic k has any word, or the chance of it
    loads: Loads  # theta up to its scale


class LocalStep(NamedTuple):
    """How documents are explained by topics."""

    solve: Callable[..., Local]  # (key, phi at the words, counts, weights) -> Local


def fixed_point(num: int = 5) -> LocalStep:
    """The collapsed posterior's fixed point.

    Args:
        num: of iterations.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_fixed_point, Static(num)))


def gibbs(num: int = 3) -> LocalStep:
    """Exact Gibbs sweeps, the last of which is told.

    Args:
        num: of sweeps.
    """
    check_count(1, num=num)
    return LocalStep(Partial(_gibbs, Static(num)))


def responsibilities(phi: Words, loads: Any) -> Words:
    """phi_wk theta_k / phi_w . theta, with loads for each document or for each of its words."""
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


def _fixed_point(num: Static, key: PRNGKey, phi: Words, counts: Counts, weights: Weights) -> Local:
    del key
    shares, loads = collapsed_field(num.value, phi, counts, weights)
    # of independent words, all missing: a share of 1 leaves no chance
    absent = jnp.exp(jnp.einsum("dw,dwk->dk", counts, jnp.log1p(-jnp.minimum(shares, 1 - 1e-6))))
    return Local(counts[..., None] * shares, 1 - absent, loads)


def _gibbs(num: Static, key: PRNGKey, phi: Words, counts: Counts, weights: Weights) -> Local:
    def sweep(key: PRNGKey, loads: Loads) -> tuple[Words, Loads]:
        words_key, loads_key = jax.random.split(key)
        shares = responsibilities(phi, loads[:, None])
        z = jax.random.multinomial(words_key, counts, shares, dtype=shares.dtype)
        shape = weights[None] + jnp.sum(z, axis=1)
        # as logarithms: a gamma of small shape underflows
        logs = jax.random.loggamma(loads_key, shape, dtype=shares.dtype)
        return z, jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True))

    start_key, key = jax.random.split(key)
    logs = jax.random.loggamma(start_key, jnp.broadcast_to(weights, (len(phi), len(weights))))
    loads = jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True)).astype(phi.dtype)
    keys = jax.random.split(key, num.value)
    z, loads = sweep(keys[0], loads)
    z, loads = jax.lax.fori_loop(
        1, num.value, lambda i, carry: sweep(keys[i], carry[1]), (z, loads)
    )
    return Local(z, (jnp.sum(z, axis=1) > 0).astype(z.dtype), loads)

"""Where the chain starts: topics of a few documents each, improved by stochastic EM.

    start      topics are a few documents mixed with all words, weights are equal
    search     from there, `improve` for every minibatch of some iterations
    improve    counts S of a minibatch, and the growth G_k = sum_n E[psi(r_k + n_k) - psi(r_k)], are
               averaged into those of the minibatches before it:

        C <- (1 - kappa_t) C + kappa_t S,     phi = (C + eta) / sum_v (C + eta)
        r_k <- r_k (G_k / H)^kappa_t,         H = sum_n psi(a0 + b0 + Y_n + R) - psi(b0 + R)

which is Cappe and Moulines' online EM (2009) for topics, and for weights its fixed point (Minka
2000). Noise of the minibatches and of the local step, large while kappa is, takes the topics out of
poor optima. A chain that starts from documents takes thousands of minibatches to get as far.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from jaxtyping import Array, Float

from momentem.run.progress import Progress
from momentem.topics._corpus import Corpus
from momentem.topics.documents import DocumentStream
from momentem.topics.local import LocalStep
from momentem.topics.model import Blocks, Model, document_sums, topics_of
from momentem.types import PRNGKey, Scalar, Vector

__all__ = ["Improved", "improve", "search", "start", "unimproved"]

FIRST, HALVING, POWER = 0.2, 100, 0.7  # kappa_t = FIRST (1 + t / HALVING)^-POWER
NUM_HELD = 500  # minibatches before the weights move: there are no topics yet to follow


def start(model: Model, train: Corpus, rng: np.random.Generator) -> Vector:
    """Return a position whose topics are a few documents each, mixed with all words.

    Args:
        model: what is sampled.
        train: its documents.
        rng: draws the documents.
    """
    V, K = model.num_words.value, model.num_topics.value
    unigram = train.frequencies() + 0.5
    unigram = unigram / unigram.sum()
    topics = np.empty((V, K))
    for k in range(K):
        some = train.take(rng.integers(train.num_documents, size=min(5, train.num_documents)))
        own = some.frequencies() + unigram
        topics[:, k] = 0.3 * own / own.sum() + 0.7 * unigram
    dtype = model.rounds.dtype
    return position_at(model, jnp.asarray(topics, dtype), jnp.full(K, 0.05, dtype))


def position_at(model: Model, topics: Any, weights: Any) -> Vector:
    """Return the chain's coordinates of phi and r, with all else at its mean given those."""
    scale = model.topic_shape * len(topics)  # E[sum_v gamma_vk]
    rho = jnp.log(weights)
    T = jnp.maximum(-rho, 0.1)  # E_k = r_k exp(T_k) = 1, its mean
    alpha = jnp.sum(model.rounds) / jnp.sum(T)
    gamma = len(weights) / jnp.max(model.rounds)
    hyper = jnp.log(jnp.stack([alpha, gamma, jnp.ones_like(alpha)]))
    return Model.flat(Blocks(jnp.log(scale * topics), rho, jnp.log(T), hyper))


class Improved(NamedTuple):
    """Expected counts of words in topics, weights, and the minibatches so far."""

    counts: Float[Array, "words topics"]
    weights: Float[Array, " topics"]
    time: Scalar

    def position(self, model: Model) -> Vector:
        """Return the position that has these topics and weights."""
        return position_at(model, _topics(model, self.counts), self.weights)


def unimproved(model: Model, position: Vector, num_tokens: int) -> Improved:
    """Return the state at a position, as if its topics shared all words evenly.

    Args:
        model: what is sampled.
        position: of `start`.
        num_tokens: of the corpus.
    """
    phi, r = topics_of(model, position)
    return Improved(phi * (num_tokens / len(r)), r, jnp.zeros_like(r[0]))


def search(
    model: Model,
    local: LocalStep,
    stream: DocumentStream,
    strata: Any,
    position: Vector,
    key: PRNGKey,
    num_iterations: int,
    progress: bool,
) -> Vector:
    """Return the position that stochastic EM gets to.

    Args:
        model: what is sampled.
        local: how documents are explained.
        stream: of minibatches.
        strata: the number of documents that each of a minibatch stands for.
        position: of `start`.
        key: of the local steps.
        num_iterations: each as many minibatches as the stream has steps.
        progress: show a progress bar.
    """
    state = unimproved(model, position, stream.corpus.num_tokens)
    with Progress(num_iterations, progress) as bar:
        for first in range(0, num_iterations, stream.hold):
            count, index = min(stream.hold, num_iterations - first), first // stream.hold
            own_key = jax.random.fold_in(key, index)
            state = _improve_by(model, local, strata, own_key, state, stream.rows(index), count)
            jax.block_until_ready(state)
            bar.advance(count, "start", 0)
    return state.position(model)


@jax.jit
def _improve_by(
    model: Model,
    local: LocalStep,
    strata: Any,
    key: PRNGKey,
    state: Improved,
    rows: Any,
    count: Any,
) -> Improved:
    """Return the state after the minibatches of the first `count` iterations of a window."""
    num_steps = rows.words.shape[1]

    def step(i: Any, state: Improved) -> Improved:
        batch = jax.tree.map(lambda leaf: leaf[i // num_steps, i % num_steps], rows)
        return improve(model, local, jax.random.fold_in(key, i), state, batch, strata)

    return jax.lax.fori_loop(0, count * num_steps, step, state)


def improve(
    model: Model, local: LocalStep, key: PRNGKey, state: Improved, batch: Any, strata: Any
) -> Improved:
    """Return the state after one more minibatch of two halves, as for `document_sums`."""
    counts, r, t = state
    strata = strata / 2  # each half stands for all documents
    topics = _topics(model, counts)
    (sums,) = document_sums(model, local, key, topics, r, batch, strata)
    lengths = jnp.sum(batch.counts.astype(r.dtype), axis=1)
    totals = jnp.zeros_like(strata).at[batch.documents].add(lengths)
    R, (a0, b0) = jnp.sum(r), model.odds_shapes
    fall = jnp.sum(strata * (digamma(a0 + b0 + totals + R) - digamma(b0 + R)))
    growth = jnp.maximum(sums.weights + fall, 1e-3 * fall)
    kappa = FIRST * (1 + t / HALVING) ** -POWER
    log_ratio = jnp.where(t < NUM_HELD, 0.0, jnp.clip(jnp.log(growth / fall), -2, 2))
    return Improved(
        (1 - kappa) * counts + kappa * sums.counts, r * jnp.exp(kappa * log_ratio), t + 1
    )


def _topics(model: Model, counts: Any) -> Array:
    raised = counts + model.topic_shape
    return raised / jnp.sum(raised, axis=0, keepdims=True)

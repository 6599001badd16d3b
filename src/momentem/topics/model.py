"""Poisson factor analysis with Gamma-process weights, as a minibatch target.

    y_vn ~ Poisson(sum_k phi_vk theta_kn),     phi_vk = gamma_vk / sum_v gamma_vk
    theta_kn ~ Gamma(r_k, p_n / (1 - p_n)),    p_n ~ Beta(a0, b0),    gamma_vk ~ Gamma(eta, 1)
    r_k = E_k exp(-T_k),  E_k ~ Exp(c),  T_k ~ Gamma(d_k, alpha),  Poisson(gamma) atoms in a round

with Exp(1) priors on alpha, gamma and c, cut off after as many rounds as it takes to have K atoms.
The chain moves in x = log gamma_vk, rho = log r, tau = log T and h = log(alpha, gamma, c). theta
and p are integrated out; of a document's words the local step (local.py) gives the expected counts
z_wk, and by Fisher's identity the gradient of the whole is, S being their sum over documents,

    d/dx_vk   S_vk - phi_vk sum_v S_vk + eta - gamma_vk
    d/drho_k  r_k sum_n E[psi(r_k + n_k) - psi(r_k)] + psi(b0 + R) - psi(a0 + b0 + Y_n + R), + prior

where R = sum_k r_k, Y_n is the document's number of words, and E[psi(r + n) - psi(r)], which psi at
the mean of n overstates by far for small r, is P(n > 0) [psi(r + E[n | n > 0]) - psi(r)].

Deviates: the paper moves E, T and the hyperparameters in three chains; here they are blocks of one
vector, whose own step sizes are entries of the mass.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_count, check_positive
from momentem.pytrees import Static
from momentem.targets._minibatch import NoisyGradient, StochasticTarget
from momentem.targets.streams import Window
from momentem.topics.local import Lines, LocalStep, rates_of, summed
from momentem.types import PRNGKey, Scalar, Vector
from momentem.xla.keys import key
from momentem.xla.once import compute_once

__all__ = ["Blocks", "Model", "make_model", "minibatch_target"]

Topics = Float[Array, "words topics"]


class Blocks(NamedTuple):
    """A position, or anything else of its shape, in its four parts."""

    topics: Topics  # x
    weights: Float[Array, " topics"]  # rho
    times: Float[Array, " topics"]  # tau
    hyper: Float[Array, " three"]  # h


class Model(NamedTuple):
    """The numbers that are not sampled."""

    num_words: Static
    num_topics: Static
    rounds: Float[Array, " topics"]  # d_k
    topic_shape: Any  # eta
    odds_shapes: Any  # a0, b0
    even_counts: Float[Array, " words"]  # of each word in a topic, if all topics were alike

    def blocks(self, position: Vector) -> Blocks:
        """Return a flat position in its parts."""
        V, K = self.num_words.value, self.num_topics.value
        topics, weights, times, hyper = jnp.split(position, [V * K, V * K + K, V * K + 2 * K])
        return Blocks(topics.reshape(V, K), weights, times, hyper)

    @staticmethod
    def flat(blocks: Blocks) -> Vector:
        """Return the flat position of its parts."""
        return jnp.concatenate([part.reshape(-1) for part in blocks])

    @property
    def dim(self) -> int:
        """V K + 2 K + 3."""
        K = self.num_topics.value
        return self.num_words.value * K + 2 * K + 3


def make_model(
    num_words: int,
    num_topics: int = 100,
    num_rounds: int | None = None,
    topic_shape: float = 0.05,
    odds_shapes: tuple[float, float] = (0.5, 0.5),
    frequencies: Any = None,
    dtype: Any = jnp.float32,
) -> Model:
    """Return the topic model of a vocabulary.

    Args:
        num_words: V.
        num_topics: K, where the Gamma process is cut off.
        num_rounds: of its construction. Default: the square root of K.
        topic_shape: eta, of the Dirichlet prior of topics.
        odds_shapes: a0 and b0, of the prior of p_n.
        frequencies: how often each word occurs in the corpus, which sets the scale of masses.
            Default: the prior alone sets it.
        dtype: of the chain.
    """
    check_count(1, num_words=num_words, num_topics=num_topics)
    num_rounds = max(1, round(num_topics**0.5)) if num_rounds is None else num_rounds
    check_count(1, num_rounds=num_rounds)
    if num_rounds > num_topics:
        raise ValueError(
            f"num_rounds must be at most num_topics, {num_topics}, got {num_rounds}; lower it"
        )
    check_positive(topic_shape=topic_shape, a0=odds_shapes[0], b0=odds_shapes[1])
    rounds = 1 + np.arange(num_topics) * num_rounds // num_topics
    shapes = jnp.asarray(odds_shapes, dtype)
    eta = jnp.asarray(topic_shape, dtype)
    even = np.zeros(num_words) if frequencies is None else np.asarray(frequencies) / num_topics
    sizes = Static(num_words), Static(num_topics)
    return Model(*sizes, jnp.asarray(rounds, dtype), eta, shapes, jnp.asarray(even, dtype))


def log_prior(model: Model, position: Blocks) -> Scalar:
    """Return the log prior density of all four blocks, in the coordinates of the chain."""
    x, rho, tau, h = position
    log_alpha, log_gamma, log_c = h
    d, T = model.rounds, jnp.exp(tau)
    log_E = rho + T
    topics = jnp.sum(model.topic_shape * x - jnp.exp(x))
    atoms = jnp.sum(log_c - jnp.exp(log_c + log_E) + log_E)
    times = jnp.sum(d * log_alpha - gammaln(d) + d * tau - jnp.exp(log_alpha) * T)
    # every round has Poisson(gamma) atoms: the numbers of atoms and of rounds are known
    num_rounds = jnp.max(d)
    rounds = len(d) * log_gamma - num_rounds * jnp.exp(log_gamma)
    return topics + atoms + times + rounds + jnp.sum(h - jnp.exp(h))


def expected_curvature(model: Model, position: Vector) -> Vector:
    """Return -E[hess log prior] along the axes, plus, for topics, the counts of words that each
    would have if all were alike.

    For topics the prior adds eta. Its own curvature e^x is no guide where there are no data. When
    one topic takes a word for itself, its gradient grows a hundredfold within an E-step; the even
    counts keep the chain stable then.
    """
    d, T = model.rounds, jnp.exp(model.blocks(position).times)
    # of log E, which has 1, and log T, which has d; of h the numbers that it is seen in
    K = jnp.full_like(d[0], len(d))
    hyper = jnp.stack([jnp.sum(d), K, K])
    topics = jnp.repeat((model.topic_shape + model.even_counts)[:, None], len(d), axis=1)
    return Model.flat(Blocks(topics, jnp.ones_like(d), d + T**2, hyper + 1))


def topics_of(model: Model, position: Vector) -> tuple[Topics, Float[Array, " topics"]]:
    """Return phi, whose columns sum to 1, and r."""
    x, rho, _, _ = model.blocks(position)
    gamma = jnp.exp(x)
    # less than e^-60 is no weight at all, and has no digamma
    return gamma / jnp.sum(gamma, axis=0, keepdims=True), jnp.exp(jnp.maximum(rho, -60))


class Sums(NamedTuple):
    """Weighted sums over the documents of a minibatch."""

    counts: Topics  # S
    weights: Float[Array, " topics"]  # d/dr
    log_likelihood: Scalar


def document_sums(
    model: Model,
    local: LocalStep,
    key: PRNGKey,
    phi: Topics,
    r: Any,
    batch: Any,
    *times: Float[Array, " documents"],
) -> tuple[Sums, ...]:
    """Return S, d/dr and the log likelihood of documents in lines, as
    `minibatches.draw_minibatches` writes them: one sum for each of the weightings `times`."""
    indices = batch.words, batch.documents, batch.tokens
    words, documents, tokens = (each.astype(np.int32) for each in indices)
    y, token_counts = (each.astype(phi.dtype) for each in (batch.counts, batch.token_counts))
    at_words = compute_once(phi[words])
    lines = Lines(at_words, y, documents, tokens, token_counts, Static(len(times[0])))
    expected, n, present, loads = local.solve(key, lines, r)
    total, R = summed(lines, jnp.sum(y, axis=1))[:, None], jnp.sum(r)
    a0, b0 = model.odds_shapes

    n_present = n / jnp.maximum(present, 1e-30)
    growth = present * (digamma(r[None] + n_present) - digamma(r)[None])
    d_r = growth + digamma(b0 + R) - digamma(a0 + b0 + total + R)

    # the collapsed bound at smooth loads, whose derivative in phi is that of S at the fixed point
    logs = jnp.log(jnp.maximum(rates_of(lines, loads), 1e-30))
    values = summed(lines, jnp.sum(y * logs, axis=1))
    load_n = jnp.maximum(loads - r[None], 0)
    logs = jnp.log(jnp.maximum(loads, 1e-30))
    values += jnp.sum(gammaln(r[None] + load_n) - gammaln(r)[None] - load_n * logs, axis=1)
    values += (gammaln(a0 + total) + gammaln(b0 + R) - gammaln(a0 + b0 + total + R))[:, 0]

    def sums(times: Array) -> Sums:
        of_lines = expected * times[documents][:, None, None]
        counts = jnp.zeros_like(phi).at[words.reshape(-1)].add(of_lines.reshape(-1, len(r)))
        return Sums(counts, times @ d_r, times @ values)

    return tuple(map(sums, times))


def minibatch_target(
    model: Model,
    local: LocalStep,
    window: Window,
    strata: Float[Array, " documents"],
    initial: Vector,
    batch_share: float,
) -> StochasticTarget:
    """Return the posterior, whose minibatches in an iteration are those that the window has for it.

    Args:
        model: what is sampled.
        local: how documents are explained.
        window: of minibatches of two halves, by iteration and step, as `DocumentStream` draws them.
        strata: the number of documents that each of a minibatch stands for.
        initial: a position.
        batch_share: documents of a minibatch over all documents.
    """
    noisy_gradient = Partial(_noisy_gradient, model, local, strata)
    return StochasticTarget(
        logdensity=Partial(_log_density, noisy_gradient, window),
        initial=initial,
        constrain=Partial(_constrain, model),
        unconstrain=Partial(_unconstrain, model),
        unravel=Partial(_unravel, model),
        origin=None,
        batches=Partial(_batches, window),
        noisy_gradient=noisy_gradient,
        prior_curvature=Partial(expected_curvature, model),
        information_scale=batch_share,
    )


def _log_density(noisy_gradient: Any, window: Window, position: Vector) -> Scalar:
    """Return the first minibatch's estimate, whose gradient is the minibatch's: that of the value,
    which a local step stands behind, is not wanted."""
    rows, keys = _batches(window, key(0), Static(1))
    batch = jax.tree.map(lambda leaf: leaf[0], rows), keys[0]
    here = jax.lax.stop_gradient(position)
    estimate = noisy_gradient(batch, here)
    return estimate.logdensity + (position - here) @ estimate.gradient


def _constrain(model: Model, position: Vector) -> dict[str, Array]:
    phi, r = topics_of(model, position)
    _, _, tau, h = model.blocks(position)
    return {"topics": phi, "weights": r, "times": jnp.exp(tau), "hyper": jnp.exp(h)}


def _unconstrain(model: Model, parameters: Any) -> Vector:
    """Return a position with these parameters. Topics are known up to a scale: the prior's mean."""
    scale = model.topic_shape * model.num_words.value  # E[sum_v gamma_vk]
    parts = {name: jnp.log(parameters[name]) for name in Blocks._fields}
    return Model.flat(Blocks(**(parts | {"topics": jnp.log(scale * parameters["topics"])})))


def _unravel(model: Model, position: Vector) -> dict[str, Array]:
    return model.blocks(position)._asdict()


def _batches(window: Window, key: PRNGKey, number: Static) -> Any:
    """Return the first minibatches of the window's iteration, and a key for each."""
    rows = jax.tree.map(lambda leaf: leaf[window.time, : number.value], window.rows)
    return rows, jax.random.split(key, number.value)


def _noisy_gradient(
    model: Model, local: LocalStep, strata: Any, batch: Any, position: Vector
) -> NoisyGradient:
    documents, key = batch
    phi, r = topics_of(model, position)
    # each half stands for all documents: their mean, and half their difference
    is_first = np.arange(len(strata)) < len(strata) // 2
    ways = strata / 2, jnp.where(is_first, strata, -strata) / 2
    mean, half = document_sums(model, local, key, phi, r, documents, *ways)
    prior, of_prior = jax.value_and_grad(log_prior, argnums=1)(model, model.blocks(position))

    def of_data(sums: Sums) -> Blocks:
        S = sums.counts
        in_topics = jnp.ones_like(S[:, 0]) @ S  # as a sum, XLA merges it with what follows
        zeros = jnp.zeros_like(r), jnp.zeros_like(of_prior.hyper)
        return Blocks(S - phi * in_topics[None], r * sums.weights, *zeros)

    # block by block: a loop over all of them would ask at every number where it is
    gradient = compute_once(Model.flat(Blocks(*map(jnp.add, of_prior, of_data(mean)))))
    difference = compute_once(Model.flat(of_data(half)))
    return NoisyGradient(gradient, difference, None, prior + mean.log_likelihood)

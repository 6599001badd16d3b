"""Sampling the global variables of the topic model, minibatch by minibatch of documents.

Documents are read on the host, a chunk of iterations ahead of the device, from arrays that may be
memory-mapped: neither memory nor time per iteration depends on their number. One compiled program
runs a chunk; between chunks draws are taken, perplexity is measured, progress is told.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from momentem.checks import check_count
from momentem.em.wrapper import FixedState
from momentem.models.topics.corpus import Corpus
from momentem.models.topics.evaluation import Perplexity
from momentem.models.topics.local import LocalStep, fixed_point
from momentem.models.topics.minibatches import draw, strata
from momentem.models.topics.model import Blocks, Model, minibatch_target, topics_of
from momentem.models.topics.recipes import Recipe
from momentem.run.progress import Progress
from momentem.types import Vector

__all__ = ["Fit", "fit", "start"]

CHUNK = 20  # iterations


class Fit(NamedTuple):
    """Samples of the global variables, and how they came about."""

    topics: np.ndarray  # phi, (S, V, K)
    weights: np.ndarray  # r, (S, K)
    hyper: np.ndarray  # alpha, gamma, c, (S, 3)
    trace: dict[str, np.ndarray]  # iteration, seconds, single and average perplexity
    num_divergences: int
    seconds_per_iteration: float  # compilation and evaluation excepted


def start(model: Model, train: Corpus, rng: np.random.Generator) -> Vector:
    """A position whose topics are a few documents each, mixed with all words.

    Args:
        model: what is sampled.
        train: its documents.
        rng: which documents.
    """
    V, K = model.num_words.value, model.num_topics.value
    unigram = train.frequencies() + 0.5
    unigram = unigram / unigram.sum()
    topics = np.empty((V, K))
    for k in range(K):
        some = train.take(rng.integers(train.num_documents, size=min(5, train.num_documents)))
        own = some.frequencies() + unigram
        topics[:, k] = 0.3 * own / own.sum() + 0.7 * unigram
    scale = float(model.topic_shape) * V  # E[sum_v gamma_vk]
    weights = np.full(K, np.log(0.05))
    times = np.log(-weights)  # E_k = r_k exp(T_k) = 1, its mean
    alpha = np.mean(np.asarray(model.rounds)) / np.exp(times[0])
    hyper = np.log([alpha, K / float(model.rounds.max()), 1.0])
    x, rho, tau = (
        jnp.asarray(part, model.rounds.dtype) for part in (np.log(scale * topics), weights, times)
    )
    return Model.flat(Blocks(x, rho, tau, jnp.asarray(hyper, model.rounds.dtype)))


def fit(
    model: Model,
    train: Corpus,
    recipe: Recipe,
    num_steps: int = 10,
    num_burn_in: int = 1500,
    num_held: int = 500,
    num_draws: int = 1500,
    stride: int = 100,
    batch_size: int = 100,
    seed: int = 0,
    local: LocalStep | None = None,
    measure: Perplexity | None = None,
    watch: Callable[[int, float, float], None] | None = None,
    is_progress_shown: bool = True,
) -> Fit:
    """Samples topics, weights and hyperparameters.

    Args:
        model: what is sampled.
        train: documents; empty ones carry no information and are never drawn.
        recipe: how the global variables move.
        num_steps: as the recipe's.
        num_burn_in: iterations in which the recipe may learn.
        num_held: first iterations of those, in which topics alone move: weights that follow topics
            before there are any never recover.
        num_draws: iterations after those.
        stride: between the samples that are kept.
        batch_size: documents of a minibatch, an even number.
        seed: of documents, starts and chains.
        local: how documents are explained; None is `fixed_point()`.
        measure: held-out perplexity, of every sample that is kept.
        watch: called with iteration, single and average perplexity after every sample.
        is_progress_shown: in a terminal.
    """
    check_count(1, num_steps=num_steps, num_draws=num_draws, stride=stride)
    if batch_size < 2 or batch_size % 2:
        raise ValueError(
            f"batch_size must be even, as it is two halves, got {batch_size}; use {batch_size + 1}"
        )
    local = fixed_point() if local is None else local
    host, key = np.random.default_rng(seed), jax.random.key(seed, impl="unsafe_rbg")
    position, chunk = start(model, train, host), min(CHUNK, stride)
    feed = _Feed(train, batch_size, num_steps, chunk, host, position.dtype)
    is_topic = jnp.arange(model.dim) < model.num_words.value * model.num_topics.value

    def target_of(rows: Any) -> Any:
        share = batch_size / train.num_documents
        return minibatch_target(model, local, feed.weighted(rows), position, share)

    def steps(sampler_of: Any, state: Any, keys: Any, rows: Any, is_held: Any) -> Any:
        def step(state: Any, inputs: Any) -> Any:
            key, rows = inputs
            state, info = sampler_of(target_of(rows)).step(key, state)
            free = jnp.where(is_topic | ~is_held, state.chains.position[0], position)
            state = state._replace(chains=state.chains._replace(position=free[None]))
            return state, jnp.any(info.chains.stats["diverging"])

        return jax.lax.scan(step, state, (keys, rows))

    @jax.jit
    def learn(state: Any, keys: Any, rows: Any, is_held: Any) -> Any:
        return steps(recipe.learning, state, keys, rows, is_held)

    @jax.jit
    def move(learnt: Any, state: Any, keys: Any, rows: Any, is_held: Any) -> Any:
        return steps(lambda target: recipe.frozen(target, learnt), state, keys, rows, is_held)

    total, done, run = num_burn_in + num_draws, 0, _Run(model, measure, watch)
    with feed, Progress(total, is_progress_shown) as progress:
        key, init_key = jax.random.split(key)
        sampler = recipe.learning(target_of(feed.example()))
        state, program, label = sampler.init(init_key, position[None]), learn, "burn-in"
        while done < total:
            if done >= num_burn_in and program is learn:
                program, label = Partial(move, sampler.learnt(state)), "sampling"
                state = FixedState(state.chains)
            rows = feed.next()
            key, chunk_key = jax.random.split(key)
            begun = time.perf_counter()
            is_held = jnp.asarray(done < num_held)
            state, diverging = program(state, jax.random.split(chunk_key, chunk), rows, is_held)
            num_diverging = int(np.sum(diverging))
            run.spent(time.perf_counter() - begun, chunk, label)
            done += chunk
            run.num_divergences += num_diverging
            progress.advance(chunk, label, num_diverging)
            if program is not learn and (done - num_burn_in) % stride < chunk:
                run.keep(done, state.chains.position[0])
    return run.result()


class _Feed:
    """Minibatches of documents, a chunk of iterations ahead."""

    def __init__(
        self, train: Corpus, batch_size: int, num_steps: int, chunk: int, rng: Any, dtype: Any
    ):
        num = batch_size // 2
        # every width is a program of its own: few documents are not worth many
        self.train, self.rng = train, rng
        self.layers = strata(train, num, num_widths=max(1, min(9, num // 5)))
        self.shape = (chunk, num_steps, 2)
        first = self._draw()
        self.weights = [jnp.asarray(each.weights, dtype) for each in first]
        self.first = self._rows(first)

    def __enter__(self) -> "_Feed":
        self.reader = ThreadPoolExecutor(1)
        self.ahead = self.reader.submit(lambda: self.first)
        return self

    def __exit__(self, *details: object) -> None:
        self.reader.shutdown(cancel_futures=True)

    def next(self) -> Any:
        """Words and counts of a chunk: for each width, (iteration, step, half, document, word)."""
        rows = self.ahead.result()
        self.ahead = self.reader.submit(lambda: self._rows(self._draw()))
        return rows

    def example(self) -> Any:
        """Of one iteration."""
        return jax.tree.map(lambda leaf: leaf[0], self.first)

    def weighted(self, rows: Any) -> Any:
        """Rows with the weights of their strata."""
        return tuple((*pair, weight) for pair, weight in zip(rows, self.weights, strict=True))

    def _draw(self) -> Any:
        return draw(self.train, self.layers, self.rng, self.shape)

    @staticmethod
    def _rows(drawn: Any) -> Any:
        return tuple((each.words, each.counts) for each in drawn)


class _Run:
    """What a run has gathered."""

    def __init__(self, model: Model, measure: Perplexity | None, watch: Any):
        self.model, self.measure, self.watch = model, measure, watch
        self.samples: list[tuple] = []
        self.trace: dict[str, list] = {
            name: [] for name in ("iteration", "seconds", "single", "average")
        }
        self.num_divergences, self.seconds = 0, 0.0
        self.paces: dict[str, list[float]] = {}

    def spent(self, seconds: float, num: int, label: str) -> None:
        """Time of some iterations under one program."""
        self.seconds += seconds
        self.paces.setdefault(label, []).append(seconds / num)

    def keep(self, iteration: int, position: Vector) -> None:
        """One sample, and what it predicts."""
        phi, r = topics_of(self.model, position)
        hyper = jnp.exp(self.model.blocks(position).hyper)
        self.samples.append(tuple(np.asarray(each) for each in (phi, r, hyper)))
        single, average = (np.nan, np.nan) if self.measure is None else self.measure.add(phi, r)
        values = (iteration, self.seconds, single, average)
        for name, value in zip(self.trace, values, strict=True):
            self.trace[name].append(value)
        if self.watch is not None:
            self.watch(iteration, single, average)

    def result(self) -> Fit:
        """All of it."""
        topics, weights, hyper = (np.stack(each) for each in zip(*self.samples, strict=True))
        # the first chunk of each program compiles
        timed = [each for paces in self.paces.values() for each in paces[1:]]
        pace = float(np.median(timed)) if timed else np.nan
        trace = {name: np.array(values) for name, values in self.trace.items()}
        return Fit(topics, weights, hyper, trace, self.num_divergences, pace)

"""Sampling the global variables of the topic model, minibatch by minibatch of documents.

Documents are read on the host, a chunk of iterations ahead of the device, from arrays that may be
memory-mapped: neither memory nor time per iteration depends on their number. One compiled program
runs a chunk; between chunks draws are taken, perplexity is measured, progress is told.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from momentem.checks import check_count
from momentem.em import FixedState
from momentem.run.progress import Progress
from momentem.topics.corpus import Corpus
from momentem.topics.evaluation import Perplexity
from momentem.topics.local import LocalStep, gibbs
from momentem.topics.minibatches import Minibatches, draw_minibatches, layout
from momentem.topics.model import Model, minibatch_target, topics_of
from momentem.topics.recipes import Recipe
from momentem.topics.starts import improve, start, unimproved
from momentem.types import Vector
from momentem.xla import keys as straight

__all__ = ["Fit", "fit", "joined"]

CHUNK = 20  # iterations


class Fit(NamedTuple):
    """Samples of the global variables, and how they came about."""

    topics: np.ndarray  # phi, (S, V, K)
    weights: np.ndarray  # r, (S, K)
    hyper: np.ndarray  # alpha, gamma, c, (S, 3)
    trace: dict[str, np.ndarray]  # iteration, seconds, single and average perplexity
    num_divergences: int
    seconds_per_iteration: float  # compilation and evaluation excepted


def fit(
    model: Model,
    train: Corpus,
    recipe: Recipe,
    num_steps: int = 10,
    num_burn_in: int = 1500,
    num_start: int = 300,
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
        num_start: first of those, at most half, in which stochastic EM looks for a start.
        num_draws: iterations after those.
        stride: between the samples that are kept.
        batch_size: documents of a minibatch, an even number.
        seed: of documents, starts and chains.
        local: how documents are explained; None is `gibbs()`.
        measure: held-out perplexity, of every sample that is kept.
        watch: called with iteration, single and average perplexity after every sample.
        is_progress_shown: in a terminal.
    """
    check_count(1, num_steps=num_steps, num_draws=num_draws, stride=stride)
    if batch_size < 2 or batch_size % 2:
        raise ValueError(
            f"batch_size must be even, as it is two halves, got {batch_size}; use {batch_size + 1}"
        )
    local = gibbs() if local is None else local
    host, key = np.random.default_rng(seed), straight.key(seed)
    position, chunk = start(model, train, host), min(CHUNK, stride)
    feed = _Feed(train, batch_size, num_steps, chunk, host, position.dtype)

    def target_of(batches: Any) -> Any:
        share = batch_size / train.num_documents
        return minibatch_target(model, local, batches, feed.weights, position, share)

    def steps(sampler_of: Any, state: Any, keys: Any, batches: Any) -> Any:
        def step(state: Any, inputs: Any) -> Any:
            key, batches = inputs
            state, info = sampler_of(target_of(batches)).step(key, state)
            return state, jnp.any(info.chains.stats["diverging"])

        return jax.lax.scan(step, state, (keys, batches))

    @jax.jit
    def seek(state: Any, keys: Any, batches: Any) -> Any:
        def step(state: Any, inputs: Any) -> Any:
            key, batch = inputs
            return improve(model, local, key, state, batch, feed.weights), None

        keys = jax.vmap(lambda key: jax.random.split(key, num_steps))(keys).reshape(-1)
        batches = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches)
        return jax.lax.scan(step, state, (keys, batches))[0], np.zeros(1)

    @jax.jit
    def learn(state: Any, keys: Any, batches: Any) -> Any:
        return steps(recipe.learning, state, keys, batches)

    @jax.jit
    def move(learnt: Any, state: Any, keys: Any, batches: Any) -> Any:
        return steps(lambda target: recipe.frozen(target, learnt), state, keys, batches)

    total, done, run = num_burn_in + num_draws, 0, _Run(model, measure, watch)
    with feed, Progress(total, is_progress_shown) as progress:
        key, init_key = jax.random.split(key)
        sampler = recipe.learning(target_of(feed.example()))
        state: Any = unimproved(model, position, train.num_tokens)
        program, label = seek, "start"
        while done < total:
            if done >= min(num_start, num_burn_in // 2) and program is seek:
                state = sampler.init(init_key, state.position(model)[None])
                program, label = learn, "burn-in"
            if done >= num_burn_in and program is learn:
                program, label = Partial(move, sampler.learnt(state)), "sampling"
                state = FixedState(state.chains)
            batches = feed.next()
            key, chunk_key = jax.random.split(key)
            begun = time.perf_counter()
            state, diverging = program(state, jax.random.split(chunk_key, chunk), batches)
            num_diverging = int(np.sum(diverging))
            run.spent(time.perf_counter() - begun, chunk, label)
            done += chunk
            run.num_divergences += num_diverging
            progress.advance(chunk, label, num_diverging)
            if label == "sampling" and (done - num_burn_in) % stride < chunk:
                run.keep(done, state.chains.position[0])
    return run.result()


def joined(fits: Sequence[Fit], num_iterations: int) -> Fit:
    """The samples of several chains, one after the other.

    Args:
        fits: of the same corpus, from other seeds, measured by one Perplexity.
        num_iterations: of each.
    """
    topics, weights, hyper = (
        np.concatenate(each) for each in zip(*(one[:3] for one in fits), strict=True)
    )
    trace = {name: np.concatenate([one.trace[name] for one in fits]) for name in fits[0].trace}
    num_samples = [len(one.weights) for one in fits]
    before = np.cumsum([0.0, *(one.trace["seconds"][-1] for one in fits[:-1])])
    trace["iteration"] += np.repeat(num_iterations * np.arange(len(fits)), num_samples)
    trace["seconds"] += np.repeat(before, num_samples)
    num_divergences = sum(one.num_divergences for one in fits)
    pace = float(np.median([one.seconds_per_iteration for one in fits]))
    return Fit(topics, weights, hyper, trace, num_divergences, pace)


class _Feed:
    """Minibatches of documents, a chunk of iterations ahead."""

    def __init__(
        self, train: Corpus, batch_size: int, num_steps: int, chunk: int, rng: Any, dtype: Any
    ):
        self.train, self.rng = train, rng
        self.layout = layout(train, batch_size // 2)
        self.weights = jnp.asarray(self.layout.weights(2), dtype)
        self.shape = (chunk, num_steps)
        self.first = self._draw()

    def __enter__(self) -> "_Feed":
        self.reader = ThreadPoolExecutor(1)
        self.ahead = self.reader.submit(lambda: self.first)
        return self

    def __exit__(self, *details: object) -> None:
        self.reader.shutdown(cancel_futures=True)

    def next(self) -> Minibatches:
        """Of a chunk, by iteration and step."""
        batches = self.ahead.result()
        self.ahead = self.reader.submit(self._draw)
        return batches

    def example(self) -> Minibatches:
        """Of one iteration."""
        return Minibatches(*(each[0] for each in self.first))

    def _draw(self) -> Minibatches:
        return draw_minibatches(self.train, self.layout, self.rng, self.shape, 2)


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

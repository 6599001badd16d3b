"""Sampling the global variables of the topic model, by minibatches of documents.

Stochastic EM looks for a start; from there on it is a run like any other, of one chain: in memory,
or in a run log that can be resumed.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from momentem.checks import check_count
from momentem.run.log.folder import claim
from momentem.run.log.read import open_run
from momentem.run.log.resume import reopen
from momentem.run.loop import begin
from momentem.run.plan import Plan
from momentem.sampling import check_out, is_begun, make_plan, open_sink, run_to_end
from momentem.sampling import load as load_trace
from momentem.targets._minibatch import StochasticTarget
from momentem.topics import runs
from momentem.topics._corpus import Corpus
from momentem.topics.documents import DocumentStream
from momentem.topics.evaluation import Perplexity
from momentem.topics.local import LocalStep, gibbs
from momentem.topics.measured import Measured, Measures
from momentem.topics.minibatches import layout
from momentem.topics.model import Model, minibatch_target
from momentem.topics.runs import TopicRun
from momentem.topics.samplers import make_sampler
from momentem.topics.starts import search, start
from momentem.xla.forks import check_fork

__all__ = ["fit"]

SAMPLING, SEARCHING = 0, 1  # streams of documents, beside the seed


def fit(
    model: Model,
    train: Corpus,
    sampler: str = "sghmc-tuned",
    num_steps: int = 10,
    num_warmup: int = 1500,
    num_start: int = 300,
    num_draws: int = 1500,
    thin: int = 100,
    batch_size: int = 100,
    seed: int = 0,
    local: LocalStep | None = None,
    measure: Perplexity | None = None,
    watch: Callable[[int, float, float], None] | None = None,
    progress: bool = True,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> TopicRun:
    """Sample topics, weights and hyperparameters.

    Args:
        model: what is sampled.
        train: documents; empty ones carry no information and are never drawn.
        sampler: one of `samplers.SAMPLERS`.
        num_steps: minibatches per iteration.
        num_warmup: iterations before the first draw: the search for a start, then those in which
            the sampler may learn.
        num_start: iterations of the search by stochastic EM, at most half of `num_warmup`.
        num_draws: iterations after warm-up.
        thin: keep every `thin`-th of them as a sample.
        batch_size: documents of a minibatch, an even number.
        seed: of documents, starts and chains.
        local: how documents are explained. Default: `gibbs()`.
        measure: held-out perplexity, of every sample.
        watch: called with iteration, single and average perplexity after every sample.
        progress: show a progress bar, in a terminal.
        out: a new folder for the run, which is written as it goes. Default: it is kept in memory.
        resume: go on with the run in `out` if there is one.

    Returns:
        The samples. Ctrl-C returns those so far.
    """
    check_fork()
    check_count(0, num_warmup=num_warmup, num_start=num_start)
    check_count(1, num_steps=num_steps)
    check_count(2, batch_size=batch_size)
    if batch_size % 2:
        raise ValueError(
            f"batch_size must be even, as it is two halves, got {batch_size}; use {batch_size + 1}"
        )
    folder, num_start = check_out(out, resume), min(num_start, num_warmup // 2)
    strata = layout(train, batch_size // 2)
    local = gibbs() if local is None else local
    with closing(DocumentStream(train, strata, num_steps, (seed, SAMPLING))) as stream:
        target = _make_target(model, local, stream, seed)
        moving = make_sampler(sampler, model, train, target, num_steps)
        sizes = {"num_warmup": num_warmup - num_start, "num_chains": 1, "seed": seed, "thin": thin}
        plan = make_plan(target, num_draws, False, None, None, None, **sizes)
        about = _describe(model, train, sampler, plan, num_start, num_steps, batch_size)
        measures = Measures(measure, watch, num_warmup, thin)
        begun, seconds = time.perf_counter(), 0.0
        if folder is not None and resume and is_begun(folder):
            runs.check_about(folder, about)
            seconds = _measure_stored(folder, measures)
            sink, moving, plan = reopen(folder, target, moving, num_draws, None, plan)
        else:
            with _claimed(folder):
                positions = _find_start(model, local, stream, target, seed, num_start, progress)
            described = runs.describe(about)
            sink = open_sink(target, moving, plan, folder, positions, 1.0, None, described)
            seconds = time.perf_counter() - begun
        measured = Measured(sink, measures, seconds)
        trace = run_to_end(target, moving, plan, measured, progress, None, is_judged=False)
    if "posterior" not in trace.children:
        raise KeyboardInterrupt("interrupted before the first sample")
    missed = trace["posterior"].isel(chain=0, draw=slice(len(measures), None))  # by Ctrl-C
    when = np.full(missed.sizes["draw"], measured.seconds)
    measures.add(missed["topics"].values, missed["weights"].values, when)
    run = runs.make_run(trace, about, measures.found, measured.seconds_per_iteration)
    if folder is not None:
        runs.write(folder, run)
    return run


def _make_target(
    model: Model, local: LocalStep, stream: DocumentStream, seed: int
) -> StochasticTarget:
    first = start(model, stream.corpus, np.random.default_rng(seed))
    weights = jnp.asarray(stream.layout.weights(2), first.dtype)
    share = len(weights) / stream.corpus.num_documents
    return minibatch_target(model, local, stream.open(), weights, first, share)


def _find_start(
    model: Model,
    local: LocalStep,
    stream: DocumentStream,
    target: StochasticTarget,
    seed: int,
    num_iterations: int,
    progress: bool,
) -> dict[str, Any]:
    """Return the parameters that the chain starts from, found with documents of another stream."""
    own = DocumentStream(stream.corpus, stream.layout, stream.num_steps, (seed, SEARCHING))
    position, key = target.initial, begin(seed)[0]
    weights = jnp.asarray(stream.layout.weights(2), position.dtype)
    if num_iterations:
        with closing(own):
            position = search(model, local, own, weights, position, key, num_iterations, progress)
    return jax.tree.map(lambda leaf: leaf[None], target.constrain(position))


def _describe(
    model: Model,
    train: Corpus,
    sampler: str,
    plan: Plan,
    num_start: int,
    num_steps: int,
    batch_size: int,
) -> dict[str, Any]:
    """Return what the manifest of the log holds beside the settings of any run."""
    return {
        "sampler": sampler,
        "seed": plan.seed,
        "num_topics": model.num_topics.value,
        "num_words": train.num_words,
        "num_documents": train.num_documents,
        "num_tokens": train.num_tokens,
        "num_start": int(num_start),
        "num_warmup": plan.num_warmup,
        "thin": plan.thin,
        "num_steps": int(num_steps),
        "batch_size": int(batch_size),
        "topic_shape": float(str(model.topic_shape)),  # 0.05, not the float32 next to it
        "vocabulary": None if train.vocabulary is None else list(train.vocabulary),
    }


@contextmanager
def _claimed(folder: Path | None) -> Iterator[None]:
    """Hold a new or empty folder, so that no other run takes it before the log is there."""
    if folder is None:
        yield
        return
    try:
        lock = claim(folder)
    except FileExistsError as error:
        raise FileExistsError(
            f"out must be a new or empty folder, got {folder}; if it holds this run, go on with it "
            "by resume=True, or --resume; otherwise choose another folder"
        ) from error
    try:
        yield
    finally:
        os.close(lock)


def _measure_stored(folder: Path, measures: Measures) -> float:
    """Measure the samples in a log, and return the seconds that its run has taken."""
    segments = open_run(folder).segments
    trace = load_trace(folder)
    if "posterior" in trace.children:
        drawn = [segment.about for segment in segments if segment.about["is_frozen"]]
        when = np.repeat([each["seconds"] for each in drawn], [each["rows"] for each in drawn])
        samples = trace["posterior"].isel(chain=0)
        measures.add(samples["topics"].values, samples["weights"].values, when, is_watched=False)
    return segments[-1].about["seconds"] if segments else 0.0

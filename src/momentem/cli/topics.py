"""`momentem topics fit | show | transform`."""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from momentem.run.figures import new_figure, saved
from momentem.topics import runs
from momentem.topics._corpus import known_words, split_documents, split_words
from momentem.topics.estimator import TopicModel, mean_shares
from momentem.topics.evaluation import Perplexity, active_topics, coherence, top_words
from momentem.topics.readers import encode, read
from momentem.topics.runs import TopicRun
from momentem.topics.samplers import SAMPLERS

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command `topics` with its verbs."""
    topics = commands.add_parser("topics", help="sample the topics of a corpus")
    verbs = topics.add_subparsers(required=True, metavar="verb")

    fit = verbs.add_parser("fit", help="sample the topics of a corpus into a folder")
    fit.add_argument("corpus", help="CSR .npz, LDA-C, Matrix Market, text lines or a folder")
    fit.add_argument("--vocabulary", metavar="FILE", help="one word per line")
    fit.add_argument("--topics", type=int, default=100, help="the most there can be")
    fit.add_argument("--sampler", choices=SAMPLERS, default="sghmc-tuned")
    fit.add_argument("--warmup", type=int, default=1500, help="iterations before the draws")
    fit.add_argument("--draws", type=int, default=1500, help="iterations after warm-up")
    fit.add_argument("--thin", type=int, default=100, help="draws from one sample to the next")
    fit.add_argument("--steps", type=int, default=10, help="minibatches per iteration")
    fit.add_argument("--batch", type=int, help="documents of a minibatch")
    fit.add_argument(
        "--held-out", type=float, default=0.1, help="share of documents, the last, for perplexity"
    )
    fit.add_argument("--seed", type=int, default=0)
    fit.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    fit.add_argument("--resume", action="store_true", help="go on with the run in DIR, if any")
    fit.set_defaults(run=_fit)

    show = verbs.add_parser("show", help="the topics of a run")
    show.add_argument("folder")
    show.add_argument("--words", type=int, default=10)
    show.set_defaults(run=_show)

    transform = verbs.add_parser("transform", help="shares of topics in new documents, as CSV")
    transform.add_argument("folder")
    transform.add_argument("documents")
    transform.add_argument("--out", metavar="FILE", help="instead of the screen")
    transform.set_defaults(run=_transform)


def _fit(given: argparse.Namespace) -> None:
    found = read(given.corpus)
    if given.vocabulary is not None:
        found = found._replace(vocabulary=known_words(given.vocabulary, found.num_words))
    measure, train = None, found
    if given.held_out:
        train, test = split_documents(found, 1 - given.held_out)
        measure = Perplexity(*split_words(test, seed=given.seed))
    model = TopicModel(
        given.topics,
        given.sampler,
        given.warmup,
        given.draws,
        given.thin,
        given.batch,
        given.steps,
        seed=given.seed,
    )

    def watch(iteration: int, single: float, average: float) -> None:
        if measure is not None:
            print(
                f"iteration {iteration}: perplexity {single:.1f}, of the average {average:.1f}",
                file=sys.stderr,
            )

    model.fit(train, None, measure, watch, given.out, given.resume)
    _picture(model.run_, Path(given.out))
    _print(model.run_, 10, train)


def _show(given: argparse.Namespace) -> None:
    _print(runs.load(given.folder), given.words, None)


def _print(run: TopicRun, num: int, corpus: Any) -> None:
    """Print topics by weight, and their words with the spread of their probabilities over
    samples."""
    mean, spread = run.mean_topics, run.topics.std(axis=0)
    order = np.argsort(-run.weights.mean(axis=0))
    chosen = top_words(mean, num)
    scores = None if corpus is None else coherence(mean, corpus, num)
    active = active_topics(run.weights)
    samples = f"{len(run.topics)} samples{'' if run.is_whole else ' so far'}"
    table = Table(
        title=f"{len(order)} topics, {active.min()} to {active.max()} of them active "
        f"({_plain(run.about['sampler'])}, {samples})"
    )
    for column in ("topic", "weight", *([] if scores is None else ["NPMI"]), "words, ± their sd"):
        table.add_column(column)
    for k in order:
        words = [f"{_word(run, v)} {mean[v, k]:.3f}±{spread[v, k]:.3f}" for v in chosen[k]]
        weight = f"{run.weights[:, k].mean():.3g}±{run.weights[:, k].std():.1g}"
        middle = [] if scores is None else [f"{scores[k]:.2f}"]
        table.add_row(str(k), weight, *middle, ", ".join(words))
    Console().print(table)
    measured = np.flatnonzero(np.isfinite(run.trace["average"]))
    if len(measured):
        single, average = (run.trace[name][measured[-1]] for name in ("single", "average"))
        print(f"perplexity {single:.1f}, of the average {average:.1f}")


def _word(run: TopicRun, v: Any) -> str:
    return str(v) if run.vocabulary is None else _plain(run.vocabulary[v])


def _plain(word: str) -> str:
    """Return a word without markup or control characters, which could speak to the terminal."""
    return escape(word if word.isprintable() else repr(word))


def _transform(given: argparse.Namespace) -> None:
    run = runs.load(given.folder)
    path = Path(given.documents)
    if run.vocabulary is not None and (path.is_dir() or path.suffix == ".txt"):
        documents, num_outside = encode(path, run.vocabulary)
        print(f"{num_outside} words are outside the vocabulary", file=sys.stderr)
    else:
        documents = read(given.documents)
    found = mean_shares(run, documents)
    rows = [
        [f"topic{k}" for k in range(found.shape[1])],
        *[[f"{x:.6g}" for x in row] for row in found],
    ]
    if given.out is not None:
        with open(given.out, "w", newline="") as file:
            csv.writer(file).writerows(rows)
    else:
        csv.writer(sys.stdout).writerows(rows)


def _picture(run: TopicRun, folder: Path) -> None:
    """Draw perplexity over iterations and seconds, and the weights of topics."""
    try:
        figure = new_figure(figsize=(13, 3.5))
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return
    axes = figure.subplots(1, 3)
    for axis, name in zip(axes, ("iteration", "seconds"), strict=False):
        axis.plot(run.trace[name], run.trace["single"], "o-", label="one sample")
        axis.plot(run.trace[name], run.trace["average"], "o-", label="average")
        axis.set(xlabel=name, ylabel="perplexity")
    axes[0].legend()
    order = np.argsort(-run.weights.mean(axis=0))
    axes[2].errorbar(
        np.arange(len(order)),
        run.weights.mean(axis=0)[order],
        run.weights.std(axis=0)[order],
        fmt=".",
    )
    axes[2].set(xlabel="topic", ylabel="weight r", yscale="log")
    saved(figure, folder / "perplexity.png")

"""The topic model in scikit-learn's manner: `TopicModel(50).fit(X).transform(X)`."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from momentem.topics import runs
from momentem.topics._corpus import Corpus, corpus, split_words
from momentem.topics._fit import fit
from momentem.topics.evaluation import Perplexity, fold_in, perplexity
from momentem.topics.model import make_model
from momentem.topics.runs import TopicRun

__all__ = ["TopicModel", "mean_shares"]

BATCH = 100  # documents


class TopicModel:
    """Nonparametric topics of a corpus, sampled.

    Args:
        num_topics: the most there can be.
        sampler: one of `samplers.SAMPLERS`.
        num_warmup: iterations before the first draw: the search for a start, at most 300 of them
            and half, then those in which the sampler may learn.
        num_draws: iterations after warm-up.
        thin: keep every `thin`-th of them as a sample.
        batch_size: documents of a minibatch, an even number. Default: 100, or fewer for fewer
            documents.
        num_steps: minibatches per iteration.
        topic_shape: eta; smaller topics have fewer words.
        seed: the same seed gives the same topics.
        progress: show a progress bar, in a terminal.

    Examples:
        >>> import numpy as np
        >>> from momentem.topics import TopicModel
        >>> rng = np.random.default_rng(0)
        >>> X = rng.poisson(np.repeat([[3.0, 3.0, 0.1, 0.1], [0.1, 0.1, 3.0, 3.0]], 20, axis=0))
        >>> model = TopicModel(2, "sghmc", num_warmup=20, num_draws=20, thin=20, num_steps=2)
        >>> model.fit(X).transform(X).shape
        (40, 2)
    """

    def __init__(
        self,
        num_topics: int = 100,
        sampler: str = "sghmc-tuned",
        num_warmup: int = 1500,
        num_draws: int = 1500,
        thin: int = 100,
        batch_size: int | None = None,
        num_steps: int = 10,
        topic_shape: float = 0.05,
        seed: int = 0,
        progress: bool = True,
    ):
        self.num_topics, self.sampler, self.seed = num_topics, sampler, seed
        self.num_warmup, self.num_draws, self.thin = num_warmup, num_draws, thin
        self.batch_size, self.num_steps, self.topic_shape = batch_size, num_steps, topic_shape
        self.progress = progress

    def fit(
        self,
        X: Any,
        y: Any = None,
        measure: Perplexity | None = None,
        watch: Callable[[int, float, float], None] | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> "TopicModel":
        """Sample the topics of a corpus.

        Args:
            X: a Corpus, or counts, documents as rows: a sparse matrix or a dense array.
            y: ignored, as in scikit-learn.
            measure: of the perplexity of every sample.
            watch: called with iteration, single and average perplexity after every sample.
            out: a new folder that the run is written to as it goes. Default: it is kept in memory.
            resume: go on with the run in `out` if there is one, to the same bits, so that the same
                script starts a run and goes on with it after a crash.
        """
        del y
        train = _as_corpus(X)
        num_full = int(np.sum(train.lengths() > 0))
        if num_full < 2:
            raise ValueError(f"X must have at least 2 documents with words, got {num_full}")
        default = min(BATCH, num_full // 2 * 2)
        frequencies = train.frequencies()
        self.run_ = fit(
            make_model(
                train.num_words,
                self.num_topics,
                topic_shape=self.topic_shape,
                frequencies=frequencies,
            ),
            train,
            self.sampler,
            num_steps=self.num_steps,
            num_warmup=self.num_warmup,
            num_draws=self.num_draws,
            thin=self.thin,
            batch_size=default if self.batch_size is None else self.batch_size,
            seed=self.seed,
            measure=measure,
            watch=watch,
            progress=self.progress,
            out=out,
            resume=resume,
        )
        return self

    @property
    def components_(self) -> np.ndarray:
        """Return the posterior mean of the topics, (K, V), rows summing to 1."""
        return self._run().mean_topics.T

    def transform(self, X: Any) -> np.ndarray:
        """Return shares of topics in documents, (N, K), averaged over samples. An empty document
        has the prior's.

        Args:
            X: as in `fit`, over the same words.
        """
        return mean_shares(self._run(), _as_corpus(X))

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Return `fit(X).transform(X)`."""
        return self.fit(X, y).transform(X)

    def perplexity(self, X: Any, share: float = 0.8, seed: int = 0) -> float:
        """Return the perplexity of words held out of documents, given their other words: that of
        the average over samples.

        Args:
            X: as in `fit`, over the same words.
            share: of the words that is given.
            seed: of the split.
        """
        run = self._run()
        observed, held_out = split_words(_as_corpus(X), share, seed)
        return perplexity(run.topics, run.weights, observed, held_out)[1]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the samples to a folder that is new or empty. What `fit(out=…)` made is there."""
        runs.save(self._run(), folder)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> "TopicModel":
        """Return the model in a folder of `save` or of `fit(out=…)`, finished or not."""
        found = runs.load(folder)
        about = dict(found.about)
        names = ("num_topics", "sampler", "seed", "thin", "batch_size", "num_steps", "topic_shape")
        num_warmup = about["num_start"] + about["num_warmup"]
        num_draws = about["thin"] * len(found.weights)
        sizes = {name: about[name] for name in names}
        loaded = TopicModel(**sizes, num_warmup=num_warmup, num_draws=num_draws)
        loaded.run_ = found
        return loaded

    def _run(self) -> TopicRun:
        if not hasattr(self, "run_"):
            raise ValueError("the model must be fitted before it can be used; call fit(X)")
        return self.run_


def mean_shares(run: TopicRun, documents: Corpus) -> np.ndarray:
    """Return shares of topics in documents, (N, K), averaged over samples.

    Args:
        run: a fitted model.
        documents: over the same words.
    """
    total = np.zeros((documents.num_documents, run.weights.shape[1]))
    for phi, r in zip(run.topics, run.weights, strict=True):
        loads = fold_in(phi, r, documents)
        total += loads / loads.sum(axis=1, keepdims=True)
    return total / len(run.weights)


def _as_corpus(X: Any) -> Corpus:
    return X if isinstance(X, Corpus) else corpus(X)

"""The topic model in scikit-learn's manner: `TopicModel(50).fit(X).transform(X)`."""

from pathlib import Path
from typing import Any

import numpy as np

from momentem.topics import runs
from momentem.topics.corpus import Corpus, corpus, split_words
from momentem.topics.evaluation import Perplexity, fold_in, perplexity
from momentem.topics.fit import fit
from momentem.topics.model import model
from momentem.topics.recipes import recipe
from momentem.topics.runs import TopicRun

__all__ = ["TopicModel"]


class TopicModel:
    """Nonparametric topics of a corpus, sampled.

    Args:
        num_topics: the most there can be.
        sampler: one of `recipes.RECIPES`.
        num_burn_in: iterations before the first sample.
        num_draws: iterations after those.
        stride: between samples that are kept.
        batch_size: documents of a minibatch; None is 100, or fewer for fewer documents.
        num_steps: minibatches per iteration.
        topic_shape: eta; smaller topics have fewer words.
        seed: the same seed gives the same topics.
        is_progress_shown: in a terminal.

    Examples:
        >>> import numpy as np
        >>> from momentem.topics import TopicModel
        >>> rng = np.random.default_rng(0)
        >>> X = rng.poisson(np.repeat([[3.0, 3.0, 0.1, 0.1], [0.1, 0.1, 3.0, 3.0]], 20, axis=0))
        >>> model = TopicModel(2, num_burn_in=20, num_draws=20, stride=20, num_steps=2)
        >>> model.fit(X).transform(X).shape
        (40, 2)
    """

    def __init__(
        self,
        num_topics: int = 100,
        sampler: str = "sghmc-tuned",
        num_burn_in: int = 1500,
        num_draws: int = 1500,
        stride: int = 100,
        batch_size: int | None = None,
        num_steps: int = 10,
        topic_shape: float = 0.05,
        seed: int = 0,
        is_progress_shown: bool = True,
    ):
        self.num_topics, self.sampler, self.seed = num_topics, sampler, seed
        self.num_burn_in, self.num_draws, self.stride = num_burn_in, num_draws, stride
        self.batch_size, self.num_steps, self.topic_shape = batch_size, num_steps, topic_shape
        self.is_progress_shown = is_progress_shown

    def fit(self, X: Any, y: Any = None, measure: Perplexity | None = None, watch: Any = None):
        """Samples the topics of a corpus.

        Args:
            X: a Corpus, or counts, documents as rows: a sparse matrix or a dense array.
            y: ignored, as in scikit-learn.
            measure: of the perplexity of every sample.
            watch: called with iteration, single and average perplexity.
        """
        del y
        train = _as_corpus(X)
        num_full = int(np.sum(train.lengths() > 0))
        if num_full < 2:
            raise ValueError(f"X must have at least 2 documents with words, got {num_full}")
        batch_size = self.batch_size or min(100, num_full // 2 * 2)
        shape = model(
            train.num_words,
            self.num_topics,
            topic_shape=self.topic_shape,
            frequencies=train.frequencies(),
        )
        found = fit(
            shape,
            train,
            recipe(self.sampler, shape, train, self.num_steps),
            num_steps=self.num_steps,
            num_burn_in=self.num_burn_in,
            num_draws=self.num_draws,
            stride=self.stride,
            batch_size=batch_size,
            seed=self.seed,
            measure=measure,
            watch=watch,
            is_progress_shown=self.is_progress_shown,
        )
        about = {
            "sampler": self.sampler,
            "seed": self.seed,
            "num_documents": train.num_documents,
            "num_tokens": int(train.num_tokens),
            "num_iterations": self.num_burn_in + self.num_draws,
            "num_divergences": found.num_divergences,
            "seconds_per_iteration": found.seconds_per_iteration,
        }
        self.run_ = TopicRun(
            found.topics, found.weights, found.hyper, found.trace, train.vocabulary, about
        )
        return self

    @property
    def components_(self) -> np.ndarray:
        """Posterior mean of the topics, (K, V), rows summing to 1."""
        return self._run().mean_topics.T

    def transform(self, X: Any) -> np.ndarray:
        """Shares of topics in documents, (N, K), averaged over samples; an empty document has the
        prior's.

        Args:
            X: as in `fit`, over the same words.
        """
        return shares(self._run(), _as_corpus(X))

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """`fit(X).transform(X)`."""
        return self.fit(X, y).transform(X)

    def perplexity(self, X: Any, share: float = 0.8, seed: int = 0) -> float:
        """Of held-out words of documents, the rest of whose words is known: of the average over
        samples.

        Args:
            X: as in `fit`, over the same words.
            share: of the words that is known.
            seed: which words.
        """
        run = self._run()
        observed, held_out = split_words(_as_corpus(X), share, seed)
        return perplexity(run.topics, run.weights, observed, held_out)[1]

    def save(self, folder: str | Path) -> None:
        """Writes the samples to a folder."""
        runs.save(self._run(), folder)

    @staticmethod
    def load(folder: str | Path) -> "TopicModel":
        """A model that was saved."""
        found = runs.load(folder)
        loaded = TopicModel(found.topics.shape[2], seed=found.about.get("seed", 0))
        loaded.run_ = found
        return loaded

    def _run(self) -> TopicRun:
        if not hasattr(self, "run_"):
            raise ValueError("the model must be fitted before it can be used; call fit(X)")
        return self.run_


def shares(run: TopicRun, documents: Corpus) -> np.ndarray:
    """Shares of topics in documents, averaged over samples.

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

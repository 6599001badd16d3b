"""Measures of topics: perplexity of held-out words, coherence, top words, active topics.

Perplexity is the paper's: with the words of every test document split into observed and held out,

    exp(- sum y_nv log m_nv / sum y_nv),      m_nv = sum_s phi_v . g_n / sum_s |g_n|

over held-out words, where s runs over samples of the global variables and g_n, the loads of a
document, comes from its observed words alone, by the posterior-mean fixed point of local.py (the
`fold-in`). A single sample (S = 1) and the average are different numbers: both are reported.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from momentem.topics._corpus import Corpus
from momentem.topics.local import collapsed_field, in_lines
from momentem.topics.minibatches import padded

__all__ = ["Perplexity", "active_topics", "coherence", "fold_in", "perplexity", "top_words"]

BLOCK = 32  # documents at once: few enough for a processor's own memory
FOLD_IN = 20  # iterations


class Padded(NamedTuple):
    """Some documents of about the same length, as rows."""

    documents: np.ndarray
    words: np.ndarray  # (document, word), 0 where there is none
    counts: np.ndarray  # 0 where there is none


def in_blocks(corpus: Corpus, block: int = BLOCK) -> list[Padded]:
    """Return all documents, in blocks by length; there are few widths and heights, so that few
    programs are compiled."""
    lengths = corpus.lengths()
    order = np.argsort(lengths, kind="stable")
    blocks = []
    for first in range(0, len(order), block):
        documents = order[first : first + block]
        width = _rounded(max(1, int(lengths[documents].max(initial=1))))
        words = np.zeros((block, width), np.int32)
        counts = np.zeros((block, width), np.float32)
        words[: len(documents)], counts[: len(documents)] = padded(corpus, documents, width)
        blocks.append(Padded(documents, words, counts))
    return blocks


def _rounded(width: int) -> int:
    """Return the next of 8, 12, 16, 24, 32, 48, …: at most half as much again."""
    power = 8
    while width > power:
        if width <= power * 3 // 2:
            return power * 3 // 2
        power *= 2
    return power


@jax.jit
def _fold_in(phi: Any, weights: Any, words: Any, counts: Any) -> Any:
    return collapsed_field(FOLD_IN, in_lines(phi[words], counts), weights).loads


@jax.jit
def _rates(phi: Any, words: Any, loads: Any) -> Any:
    return jnp.einsum("dwk,dk->dw", phi[words], loads)


def fold_in(phi: Any, weights: Any, corpus: Corpus) -> np.ndarray:
    """Return the loads g of every document, (N, K): E[theta | words] up to a document's scale.

    Args:
        phi: topics, (V, K), columns summing to 1.
        weights: r.
        corpus: documents over the same vocabulary.
    """
    _check_vocabulary(phi, corpus)
    phi, weights = jnp.asarray(phi, np.float32), jnp.asarray(weights, np.float32)
    loads = np.empty((corpus.num_documents, phi.shape[1]), np.float32)
    for block in in_blocks(corpus):
        found = _fold_in(phi, weights, block.words, block.counts)
        loads[block.documents] = np.asarray(found)[: len(block.documents)]
    return loads


class Perplexity:
    """Held-out perplexity of samples as they come: of the last alone, and of their average."""

    def __init__(self, observed: Corpus, held_out: Corpus):
        if observed.num_documents != held_out.num_documents:
            raise ValueError(
                "observed and held_out must be of the same documents, got "
                f"{observed.num_documents} and {held_out.num_documents}; use split_words"
            )
        self.observed, self.held_out = observed, in_blocks(held_out)
        self.sums = [np.zeros(block.words.shape) for block in self.held_out]
        self.totals = np.zeros(observed.num_documents)
        self.num_tokens = held_out.num_tokens
        if self.num_tokens == 0:
            raise ValueError("held_out must have words, got none; split again with a lower share")

    def add(self, phi: Any, weights: Any) -> tuple[float, float]:
        """Take one sample in; return the perplexity of it alone, and of all so far."""
        loads = fold_in(phi, weights, self.observed)
        phi, own = jnp.asarray(phi, np.float32), loads.sum(axis=1)
        totals, sums, single, together = self.totals + own, [], 0.0, 0.0
        for block, before in zip(self.held_out, self.sums, strict=True):
            here = np.ones((len(block.words), loads.shape[1]), np.float32)
            here[: len(block.documents)] = loads[block.documents]
            rates = np.asarray(_rates(phi, block.words, here), np.float64)
            sums.append(before + rates)
            num = len(block.documents)
            counts = block.counts[:num]
            single += np.sum(counts * np.log(rates[:num] / own[block.documents][:, None]))
            scale = totals[block.documents][:, None]
            together += np.sum(counts * np.log(sums[-1][:num] / scale))
        self.totals, self.sums = totals, sums  # last, so that Ctrl-C leaves a sample in or out
        return float(np.exp(-single / self.num_tokens)), float(np.exp(-together / self.num_tokens))


def perplexity(
    topics: Any, weights: Any, observed: Corpus, held_out: Corpus
) -> tuple[float, float]:
    """Return the mean perplexity of single samples, and that of their average.

    Args:
        topics: samples of phi, (S, V, K).
        weights: samples of r, (S, K).
        observed: words that documents are folded in from.
        held_out: words that are predicted.

    Examples:
        >>> import numpy as np
        >>> from momentem.topics import corpus, perplexity
        >>> phi = np.array([[0.75], [0.25]])  # two words, one topic
        >>> words = corpus([[1, 0]])
        >>> single, average = perplexity([phi], [np.ones(1)], words, words)
        >>> round(single, 3), round(average, 3)
        (1.333, 1.333)
    """
    measure = Perplexity(observed, held_out)
    found = [measure.add(phi, r) for phi, r in zip(topics, weights, strict=True)]
    return float(np.mean([single for single, _ in found])), found[-1][1]


def unigram_perplexity(train: Corpus, held_out: Corpus) -> float:
    """Return the perplexity of the training words' frequencies, one added to each: a baseline."""
    frequencies = train.frequencies() + 1
    logs = np.log(frequencies / frequencies.sum())
    return float(np.exp(-np.sum(held_out.counts * logs[held_out.words]) / held_out.num_tokens))


def top_words(topics: np.ndarray, num: int = 10) -> np.ndarray:
    """Return the ids of the likeliest words of each topic, (K, num).

    Args:
        topics: phi, (V, K), or a mean of it.
        num: words per topic.

    Examples:
        >>> import numpy as np
        >>> from momentem.topics import top_words
        >>> top_words(np.array([[0.6, 0.1], [0.3, 0.2], [0.1, 0.7]]), num=2)
        array([[0, 1],
               [2, 1]])
    """
    return np.argsort(-np.asarray(topics), axis=0, kind="stable")[:num].T


def coherence(topics: np.ndarray, corpus: Corpus, num: int = 10) -> np.ndarray:
    """Return the normalised pointwise mutual information of the top words of each topic, averaged
    over pairs.

        NPMI = log(p(a, b) / p(a) p(b)) / -log p(a, b),      p over documents; -1 if never together

    Args:
        topics: phi, (V, K).
        corpus: whose documents are counted.
        num: top words per topic.

    Examples:
        >>> import numpy as np
        >>> from momentem.topics import coherence, corpus
        >>> documents = corpus([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
        >>> coherence(np.array([[0.5, 0.5], [0.4, 0.1], [0.1, 0.4]]), documents, num=2)
        array([ 1., -1.])
    """
    chosen = top_words(topics, num)
    present = corpus.to_csr().astype(bool).astype(np.float64)
    num_documents = corpus.num_documents
    scores = []
    for words in chosen:
        columns = present[:, words]
        together = np.asarray((columns.T @ columns).todense()) / num_documents
        alone = np.diag(together)
        a, b = np.triu_indices(len(words), 1)
        both = together[a, b]
        with np.errstate(divide="ignore", invalid="ignore"):
            npmi = np.log(both / (alone[a] * alone[b])) / -np.log(both)
        scores.append(np.mean(np.where(both > 0, np.where(both < 1, npmi, 1.0), -1.0)))
    return np.array(scores)


def active_topics(weights: np.ndarray, share: float = 0.01) -> np.ndarray:
    """Return the number of topics that have at least this share of the mean weight, per sample.

    Args:
        weights: samples of r, (S, K).
        share: of the mean weight.
    """
    weights = np.asarray(weights)
    return np.sum(weights >= share * weights.mean(axis=1, keepdims=True), axis=1)


def _check_vocabulary(phi: Any, corpus: Corpus) -> None:
    if corpus.num_words != phi.shape[0]:
        raise ValueError(
            f"corpus must have the vocabulary of the topics, {phi.shape[0]} words, got "
            f"{corpus.num_words}; encode it with the same vocabulary"
        )

"""Minibatches of documents, stratified by length and written in lines.

The documents of a corpus are sorted by their number of tokens and cut into strata of equal numbers;
of each stratum s, with N_s documents, one is drawn. For any function f of a document

    sum_s N_s f(document drawn from s)

has the mean sum_n f(document n), over the documents with words, and a smaller variance than the
same number of documents drawn at large if f depends on length.

A document's distinct words are written in lines of WIDTH words, the last of them padded with the
count 0, and the documents of a minibatch one after the other, in as many lines as the longest of
all strata would take: shapes never change, and padding is little.

A token is one occurrence of a word. A word that occurs more than MOST times in a document is that
many tokens, which share its count.
"""

from typing import Any, NamedTuple

import numpy as np

from momentem.checks import check_count, check_instance
from momentem.topics._corpus import REMEDY, Corpus, offsets, ranges

__all__ = ["Layout", "Minibatches", "draw_minibatches", "layout", "num_tokens", "padded"]

MOST = 4  # tokens of one word in one document
WIDTH = 8  # words of a line: as many as a processor multiplies at once


class Layout(NamedTuple):
    """Documents with words, sorted by tokens and cut: stratum s is `order[edges[s]:edges[s + 1]]`;
    and the room that one document of each stratum may take."""

    order: np.ndarray  # indices of documents
    edges: np.ndarray  # (strata + 1,)
    num_lines: int
    num_tokens: int

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of documents of every stratum."""
        return np.diff(self.edges)

    def weights(self, num_parts: int) -> np.ndarray:
        """Return the number of documents that each document of a minibatch stands for."""
        return np.tile(self.sizes, num_parts).astype(np.float64)


class Minibatches(NamedTuple):
    """Minibatches for every entry of a shape."""

    words: np.ndarray  # (*shape, lines, WIDTH) ids; 0 where a line is padded
    counts: np.ndarray  # (*shape, lines, WIDTH); 0 where a line is padded
    documents: np.ndarray  # (*shape, lines) the document of the minibatch, ascending
    tokens: np.ndarray  # (*shape, tokens) where its word is among those of all lines
    token_counts: np.ndarray  # (*shape, tokens) what a token stands for; 0 for none


def num_tokens(corpus: Corpus) -> np.ndarray:
    """Return the number of tokens of each document.

    Args:
        corpus: whose documents; read in blocks.
    """
    tokens = np.zeros(corpus.num_documents, np.int64)
    for first in range(0, corpus.num_documents, 100_000):
        starts = corpus.starts[first : first + 100_001]
        counts = np.minimum(corpus.counts[starts[0] : starts[-1]], MOST)
        tokens[first : first + 100_000] = np.diff(offsets(counts)[starts - starts[0]])
    return tokens


def layout(corpus: Corpus, num: int) -> Layout:
    """Return strata of equal size, to a document.

    Args:
        corpus: whose documents; those without words are in no stratum.
        num: of strata.
    """
    check_instance(Corpus, REMEDY, corpus=corpus)
    check_count(1, num=num)
    tokens, lines = num_tokens(corpus), _num_lines(corpus.lengths())
    order = np.argsort(tokens, kind="stable")
    order = order[np.count_nonzero(tokens == 0) :]
    if num > len(order):
        raise ValueError(
            f"num must be at most the number of documents with words, {len(order)}, got {num}; "
            "lower it"
        )
    edges = np.arange(num + 1) * len(order) // num
    rooms = (np.maximum.reduceat(each[order], edges[:-1]).sum() for each in (lines, tokens))
    return Layout(order, edges, *map(int, rooms))


def draw_minibatches(
    corpus: Corpus,
    layout: Layout,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    num_parts: int,
) -> Minibatches:
    """Draw, for every entry of `shape`, `num_parts` times and independently, one document of each
    stratum, all of a stratum's with the same chance. Of a mapped file no others are read.

    Args:
        corpus: whose documents.
        layout: of the corpus.
        rng: what draws them.
        shape: of the draws.
        num_parts: of a minibatch.
    """
    num, num_strata = int(np.prod(shape)), len(layout.sizes)
    size, num_lines = num_parts * num_strata, num_parts * layout.num_lines
    drawn = rng.integers(0, layout.sizes, size=(num, num_parts, num_strata))
    documents = layout.order[layout.edges[:-1] + drawn].reshape(num, size)
    firsts = corpus.starts[documents]
    lengths = corpus.starts[documents + 1] - firsts
    lines = _num_lines(lengths)
    begins = np.arange(num)[:, None] * num_lines + np.cumsum(lines, axis=1) - lines

    def filled(room: int, fill: int, dtype: Any, places: np.ndarray, values: Any) -> np.ndarray:
        found = np.full((*shape, room), fill, dtype)
        found.reshape(-1)[places] = values
        return found

    def in_lines(dtype: Any, values: np.ndarray) -> np.ndarray:
        return filled(num_lines * WIDTH, 0, dtype, places, values).reshape(*shape, num_lines, WIDTH)

    entries = ranges(firsts.ravel(), lengths.ravel())
    places = ranges(WIDTH * begins.ravel(), lengths.ravel())
    words, counts = corpus.words[entries], corpus.counts[entries]
    by_line = ranges(begins.ravel(), lines.ravel())
    owners = np.repeat(np.tile(np.arange(size), num), lines.ravel())

    times = np.minimum(counts, MOST).astype(np.int64)
    minibatch = np.repeat(np.arange(num), lengths.sum(axis=1))
    own = np.bincount(minibatch, weights=times, minlength=num).astype(np.int64)
    most = num_parts * layout.num_tokens
    by_token = ranges(np.arange(num) * most, own)
    slots = np.repeat(places - num_lines * WIDTH * minibatch, times)
    return Minibatches(
        in_lines(corpus.words.dtype, words),
        in_lines(np.float32, counts),
        filled(num_lines, size - 1, np.int32, by_line, owners),
        filled(most, 0, np.int32, by_token, slots),
        filled(most, 0, np.float32, by_token, np.repeat(counts / times, times)),
    )


def padded(corpus: Corpus, documents: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words and counts of documents, (*documents, width), both 0 where there is no word."""
    firsts = corpus.starts[documents]
    lengths = corpus.starts[documents + 1] - firsts
    entries = ranges(firsts.ravel(), lengths.ravel())
    is_real = np.arange(width) < lengths[..., None]
    words = np.zeros(is_real.shape, corpus.words.dtype)
    counts = np.zeros(is_real.shape, corpus.counts.dtype)
    words[is_real] = corpus.words[entries]
    counts[is_real] = corpus.counts[entries]
    return words, counts


def _num_lines(lengths: np.ndarray) -> np.ndarray:
    return -(-lengths // WIDTH)

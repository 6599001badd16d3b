"""Minibatches of documents, stratified by length.

The documents of a corpus are sorted by their number of distinct words and cut into strata of equal
numbers; of each stratum s, with N_s documents, one is drawn. For any function f of a document

    sum_s N_s f(document drawn from s)

has the mean sum_n f(document n), over the documents with words, and a smaller variance than the
same number of documents drawn at large if f depends on length. Rows of a stratum are padded to one
width with the count 0, so that shapes never change.
"""

from typing import Any, NamedTuple

import numpy as np

from momentem.checks import check_count, check_instance
from momentem.models.topics.corpus import REMEDY, Corpus, offsets, ranges

__all__ = [
    "Layout",
    "Lines",
    "Rows",
    "Strata",
    "draw",
    "draw_lines",
    "layout",
    "num_tokens",
    "padding",
    "strata",
]

MOST = 4  # tokens of one word in one document that are told apart
WIDTH = 8  # words of a line: as many as a processor multiplies at once


class Strata(NamedTuple):
    """Documents with words, sorted by length and cut: stratum s is `order[edges[s]:edges[s + 1]]`.

    A length is a number of distinct words.
    """

    order: np.ndarray  # indices of documents
    edges: np.ndarray  # (num + 1,)
    widths: np.ndarray  # (num,) of the padded rows, ascending

    @property
    def sizes(self) -> np.ndarray:
        """The number of documents of every stratum."""
        return np.diff(self.edges)


class Rows(NamedTuple):
    """Documents of the strata of one width, drawn for every entry of a shape."""

    words: np.ndarray  # (*shape, strata, width) ids; 0 where the row is padded
    counts: np.ndarray  # (*shape, strata, width); 0 where the row is padded
    weights: np.ndarray  # (strata,) the number of documents that the one drawn stands for


def strata(
    corpus: Corpus, num: int, num_widths: int = 9, lengths: np.ndarray | None = None
) -> Strata:
    """Strata of equal size, to a document, with the widths that pad least.

    Args:
        corpus: whose documents; those without words are in no stratum.
        num: of strata, the documents of a minibatch.
        num_widths: different widths, at most: a program is compiled for each.
        lengths: of the documents, 0 for those without words; None is their distinct words.
    """
    check_instance(Corpus, REMEDY, corpus=corpus)
    check_count(1, num=num, num_widths=num_widths)
    lengths = corpus.lengths() if lengths is None else lengths
    order = np.argsort(lengths, kind="stable")
    order = order[np.count_nonzero(lengths == 0) :]
    if num > len(order):
        raise ValueError(
            f"num must be at most the number of documents with words, {len(order)}, got {num}; "
            "lower it"
        )
    edges = np.arange(num + 1) * len(order) // num
    longest = lengths[order[edges[1:] - 1]]
    return Strata(order, edges, _widths(longest, np.diff(edges), num_widths))


def padding(corpus: Corpus, strata: Strata) -> float:
    """Entries of the padded rows of all documents, over their entries without padding: 1 is best.

    Args:
        corpus: whose documents.
        strata: of the corpus.
    """
    return float(strata.widths @ strata.sizes / corpus.lengths().sum())


def draw(
    corpus: Corpus, strata: Strata, rng: np.random.Generator, shape: tuple[int, ...]
) -> tuple[Rows, ...]:
    """For every entry of `shape`, and independently, one document of each stratum, all of a
    stratum's with the same chance; by width, ascending. Of a mapped file no others are read.

    Args:
        corpus: whose documents.
        strata: of the corpus.
        rng: what draws them.
        shape: of the draws, such as minibatches by chains by halves.
    """
    drawn = rng.integers(0, strata.sizes, size=(*shape, len(strata.sizes)))
    documents = strata.order[strata.edges[:-1] + drawn]
    return tuple(
        Rows(
            *padded(corpus, documents[..., is_in], int(width)),
            strata.sizes[is_in].astype(np.float64),
        )
        for width in np.unique(strata.widths)
        for is_in in [strata.widths == width]
    )


class Lines(NamedTuple):
    """Minibatches of documents written in lines of WIDTH words, for every entry of a shape.

    A token is one occurrence of a word; one that occurs more than MOST times in a document is that
    many tokens of a larger count.
    """

    words: np.ndarray  # (*shape, lines, WIDTH) ids; 0 where a line is padded
    counts: np.ndarray  # (*shape, lines, WIDTH); 0 where a line is padded
    documents: np.ndarray  # (*shape, lines) the document of the minibatch, ascending
    tokens: np.ndarray  # (*shape, tokens) where its word is among those of all lines
    token_counts: np.ndarray  # (*shape, tokens) what a token stands for; 0 for none


class Layout(NamedTuple):
    """Strata of a corpus by tokens, and the room that one document of each may take."""

    strata: Strata
    num_lines: int
    num_tokens: int

    def weights(self, num_parts: int) -> np.ndarray:
        """The number of documents that each of a minibatch stands for."""
        return np.tile(self.strata.sizes, num_parts).astype(np.float64)


def num_tokens(corpus: Corpus) -> np.ndarray:
    """The tokens of each document that are told apart.

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
    """How documents of `num` strata are written in lines.

    Args:
        corpus: whose documents.
        num: of strata.
    """
    layers = strata(corpus, num, num_widths=num, lengths=num_tokens(corpus))
    lines = -(-corpus.lengths()[layers.order] // WIDTH)
    num_lines = np.maximum.reduceat(lines, layers.edges[:-1]).sum()
    return Layout(layers, int(num_lines), int(layers.widths.sum()))


def draw_lines(
    corpus: Corpus,
    layout: Layout,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    num_parts: int,
) -> Lines:
    """For every entry of `shape`, `num_parts` times and independently, one document of each
    stratum, as in `draw`.

    Args:
        corpus: whose documents.
        layout: of the corpus.
        rng: what draws them.
        shape: of the draws.
        num_parts: of a minibatch.
    """
    layers, num_lines = layout.strata, num_parts * layout.num_lines
    num, size = int(np.prod(shape)), num_parts * len(layers.sizes)
    drawn = rng.integers(0, layers.sizes, size=(num, num_parts, len(layers.sizes)))
    documents = layers.order[layers.edges[:-1] + drawn].reshape(num, size)
    firsts = corpus.starts[documents]
    lengths = corpus.starts[documents + 1] - firsts
    lines = -(-lengths // WIDTH)
    ends = np.cumsum(lines, axis=1)
    starts = ends - lines  # of a document, in its minibatch
    begins = np.arange(num)[:, None] * num_lines  # of a minibatch

    entries = ranges(firsts.ravel(), lengths.ravel())
    places = ranges((WIDTH * (begins + starts)).ravel(), lengths.ravel())
    counts = corpus.counts[entries]
    times = np.minimum(counts, MOST).astype(np.int64)
    minibatch = np.repeat(np.arange(num), lengths.sum(axis=1))
    own = np.bincount(minibatch, weights=times, minlength=num).astype(np.int64)
    most = num_parts * layout.num_tokens

    def filled(size: int, fill: int, dtype: Any, places: np.ndarray, values: Any) -> np.ndarray:
        found = np.full(num * size, fill, dtype)
        found[places] = values
        return found

    slots = num_lines * WIDTH
    words = filled(slots, 0, corpus.words.dtype, places, corpus.words[entries])
    by_slot = filled(slots, 0, np.float32, places, counts)
    order = np.tile(np.arange(size), num)
    by_line = ranges((begins + starts).ravel(), lines.ravel())
    owners = filled(num_lines, size - 1, np.int32, by_line, np.repeat(order, lines.ravel()))
    by_token = ranges(np.arange(num) * most, own)
    tokens = filled(most, 0, np.int32, by_token, np.repeat(places - slots * minibatch, times))
    token_counts = filled(most, 0, np.float32, by_token, np.repeat(counts / times, times))
    in_lines = (*shape, num_lines, WIDTH)
    return Lines(
        words.reshape(in_lines),
        by_slot.reshape(in_lines),
        owners.reshape(*shape, num_lines),
        tokens.reshape(*shape, most),
        token_counts.reshape(*shape, most),
    )


def padded(corpus: Corpus, documents: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Words and counts of documents, (*documents, width), both 0 where there is no word."""
    firsts = corpus.starts[documents]
    lengths = corpus.starts[documents + 1] - firsts
    entries = ranges(firsts.ravel(), lengths.ravel())
    is_real = np.arange(width) < lengths[..., None]
    words = np.zeros(is_real.shape, corpus.words.dtype)
    counts = np.zeros(is_real.shape, corpus.counts.dtype)
    words[is_real] = corpus.words[entries]
    counts[is_real] = corpus.counts[entries]
    return words, counts


def _widths(longest: np.ndarray, sizes: np.ndarray, num_widths: int) -> np.ndarray:
    """For every stratum the longest length of its group: consecutive strata in `num_widths` groups.

    The groups with the fewest entries, least[t] for the first t lengths, one group more a round:

        least[t] = min_{s < t} least[s] + length[t - 1] (documents of the lengths s .. t - 1)
    """
    lengths, which = np.unique(longest, return_inverse=True)
    before = offsets(np.bincount(which, weights=sizes).astype(np.int64))
    entries = np.concatenate([[0], lengths]) * (before - before[:, None]).astype(np.float64)
    entries[np.tril_indices(len(before))] = np.inf
    least = np.where(np.arange(len(before)) == 0, 0.0, np.inf)
    cuts = []
    for _ in range(min(num_widths, len(lengths))):
        totals = least[:, None] + entries
        cuts.append(totals.argmin(axis=0))
        least = totals.min(axis=0)
    widths = np.empty_like(lengths)
    end = len(lengths)
    for cut in reversed(cuts):
        widths[cut[end] : end] = lengths[end - 1]
        end = cut[end]
    return widths[which]

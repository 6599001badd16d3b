"""Minibatches of documents, stratified by length.

The documents of a corpus are sorted by their number of distinct words and cut into strata of equal
numbers; of each stratum s, with N_s documents, one is drawn. For any function f of a document

    sum_s N_s f(document drawn from s)

has the mean sum_n f(document n), over the documents with words, and a smaller variance than the
same number of documents drawn at large if f depends on length. Rows of a stratum are padded to one
width with the count 0, so that shapes never change.
"""

from typing import NamedTuple

import numpy as np

from momentem.checks import check_count, check_instance
from momentem.models.topics.corpus import REMEDY, Corpus, offsets, ranges

__all__ = ["Rows", "Strata", "Tokens", "draw", "draw_tokens", "num_tokens", "padding", "strata"]

MOST = 4  # tokens of one word in one document that are told apart


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


class Tokens(NamedTuple):
    """Minibatches of documents token by token, one after the other, for every entry of a shape.

    A word that occurs more than MOST times in a document is that many tokens of a larger count.
    """

    words: np.ndarray  # (*shape, room) ids
    counts: np.ndarray  # (*shape, room) what a token stands for; 0 where the row is padded
    documents: np.ndarray  # (*shape, room) the document of the minibatch, ascending
    weights: np.ndarray  # (documents,) the number of documents that each stands for


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


def draw_tokens(
    corpus: Corpus,
    strata: Strata,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    num_parts: int,
) -> Tokens:
    """For every entry of `shape`, `num_parts` times and independently, one document of each
    stratum, as in `draw`.

    Args:
        corpus: whose documents.
        strata: of the corpus by `num_tokens`, each with a width of its own.
        rng: what draws them.
        shape: of the draws.
        num_parts: of a minibatch.
    """
    num, room = len(strata.sizes), int(strata.widths.sum())
    drawn = rng.integers(0, strata.sizes, size=(int(np.prod(shape)), num_parts, num))
    documents = strata.order[strata.edges[:-1] + drawn]
    firsts = corpus.starts[documents].ravel()
    lengths = corpus.starts[documents + 1].ravel() - firsts
    entries = ranges(firsts, lengths)
    counts = corpus.counts[entries]
    times = np.minimum(counts, MOST).astype(np.int64)
    which = np.repeat(np.arange(documents.size), lengths)  # of an entry
    minibatch, document = np.divmod(np.repeat(which, times), num_parts * num)
    ends = np.bincount(minibatch, minlength=len(documents))
    places = minibatch * (num_parts * room) + ranges(np.zeros_like(ends), ends)

    def packed(values: np.ndarray, fill: int, dtype: type | np.dtype) -> np.ndarray:
        found = np.full(len(documents) * num_parts * room, fill, dtype)
        found[places] = values
        return found.reshape(*shape, num_parts * room)

    return Tokens(
        packed(np.repeat(corpus.words[entries], times), 0, corpus.words.dtype),
        packed(np.repeat(counts / times, times), 0, np.float32),
        packed(document, num_parts * num - 1, np.int32),
        np.tile(strata.sizes, num_parts).astype(np.float64),
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

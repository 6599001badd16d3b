"""Documents as counts of words: checked and split.

A corpus is a table of N documents by V words, kept as compressed rows: the table itself, nearly all
zeros, is never made. Its arrays may lie in files that are mapped into memory.

    >>> small = corpus([[2, 0, 1], [0, 0, 0], [0, 3, 0]], vocabulary=["ape", "bee", "cat"])
    >>> small.num_documents, small.num_tokens
    (3, 6)
    >>> [small.vocabulary[word] for word in small.document(0)[0]]
    ['ape', 'cat']

A document without words carries no information on topics. It is kept, so that positions stay what
they were, and minibatches leave it out.
"""

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from momentem.checks import check_instance
from momentem.topics.limits import Limits, decoded, lines_of

__all__ = ["Corpus", "corpus", "split_documents", "split_words"]

LARGEST = np.iinfo(np.uint32).max  # of a count, and of a word's id
REMEDY = "make one with momentem.topics.corpus(counts) or read one from a file"

AnyPath = str | os.PathLike[str]
Vocabulary = Sequence[str] | np.ndarray | os.PathLike[str]  # a str is a Sequence[str], and a path


class Corpus(NamedTuple):
    """Documents as rows: document n has the words `words[starts[n]:starts[n + 1]]`, ascending.

    Examples:
        >>> from momentem.topics import corpus
        >>> small = corpus([[2, 0, 1], [0, 3, 0]])
        >>> small.num_documents, small.num_words, small.num_tokens
        (2, 3, 6)
        >>> small.take([1]).frequencies()
        array([0., 3., 0.])
    """

    starts: np.ndarray  # (N + 1,) int64
    words: np.ndarray  # ids, uint16 or uint32
    counts: np.ndarray  # of the words, all > 0, uint16 or uint32
    vocabulary: tuple[str, ...] | None
    num_words: int  # V, seen or not

    @property
    def num_documents(self) -> int:
        """Return N, documents without words included."""
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        """Return the sum of all counts."""
        return int(self.counts.sum(dtype=np.int64))

    def lengths(self) -> np.ndarray:
        """Return the number of distinct words of every document."""
        return np.diff(self.starts)

    def document(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of document n, and their counts.

        Args:
            n: from 0.
        """
        if not 0 <= n < self.num_documents:
            raise IndexError(f"n must lie in [0, {self.num_documents}), got {n}")
        row = slice(self.starts[n], self.starts[n + 1])
        return self.words[row], self.counts[row]

    def take(self, indices: Any) -> "Corpus":
        """Return the documents at `indices`, in that order. Of a mapped file no others are read.

        Args:
            indices: from 0, repeats allowed; a mask is not, `np.flatnonzero` makes indices of it.
        """
        indices = np.asarray(indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise TypeError(
                "indices must be a list of whole numbers, got an array of type "
                f"{indices.dtype} and shape {indices.shape}; for a mask, np.flatnonzero(mask)"
            )
        outside = indices[(indices < 0) | (indices >= self.num_documents)]
        if outside.size:
            raise IndexError(f"indices must lie in [0, {self.num_documents}), got {outside[0]}")
        indices = indices.astype(np.int64)
        firsts = self.starts[indices]
        lengths = self.starts[indices + 1] - firsts
        entries = ranges(firsts, lengths)
        return self._replace(
            starts=offsets(lengths), words=self.words[entries], counts=self.counts[entries]
        )

    def frequencies(self) -> np.ndarray:
        """Return how often each word occurs, (V,). The arrays, which may be larger than memory, are
        read in blocks."""
        total = np.zeros(self.num_words)
        for first in range(0, len(self.words), 1_000_000):
            block = slice(first, first + 1_000_000)
            total += np.bincount(self.words[block], self.counts[block], self.num_words)
        return total

    def to_csr(self) -> Any:
        """Return a `scipy.sparse.csr_array` of int64, so that its products cannot overflow."""
        return imported("scipy.sparse").csr_array(
            (self.counts.astype(np.int64), self.words.astype(np.int64), np.array(self.starts)),
            shape=(self.num_documents, self.num_words),
        )


def corpus(counts: Any, vocabulary: Vocabulary | None = None) -> Corpus:
    """Return the corpus of a table of counts. Entries of a sparse table that occur twice are added.

    Args:
        counts: documents as rows, words as columns; a SciPy sparse matrix or a dense one.
        vocabulary: a word for each column, or the path of a file with one word per line.

    Examples:
        >>> from momentem.topics import corpus
        >>> small = corpus([[2, 0, 1], [0, 3, 0]], vocabulary=["ape", "bee", "cat"])
        >>> words, counts = small.document(0)
        >>> [small.vocabulary[word] for word in words], counts.tolist()
        (['ape', 'cat'], [2, 1])
    """
    table = counts if hasattr(counts, "tocoo") else np.asarray(counts)
    if len(table.shape) != 2 or min(table.shape) < 1:
        raise ValueError(
            "counts must have at least one row, a document, and at least one column, a word, "
            f"got shape {table.shape}"
        )
    if isinstance(table, np.ndarray):
        documents, words = np.nonzero(table)  # NaN is not zero, and is refused below
        values = table[documents, words]
    else:
        entries: Any = table.tocoo()  # not tocsr: it adds up before we can look, and may overflow
        documents, words, values = entries.row, entries.col, entries.data
    num_documents, num_words = map(int, table.shape)
    return from_entries(documents, words, values, num_documents, num_words, vocabulary, "counts")


def split_documents(corpus: Corpus, share: float = 0.6) -> tuple[Corpus, Corpus]:
    """Return the first documents and the last: a split by time, if that is their order. Nothing is
    copied.

    Args:
        corpus: what to split.
        share: of the documents, in the first part; rounded to whole documents.

    Examples:
        >>> from momentem.topics import corpus, split_documents
        >>> train, test = split_documents(corpus([[1, 2]] * 10), share=0.7)
        >>> train.num_documents, test.num_documents
        (7, 3)
    """
    check_instance(Corpus, REMEDY, corpus=corpus)
    _check_share(share)
    cut, num_documents = round(share * corpus.num_documents), corpus.num_documents
    if not 0 < cut < num_documents:
        raise ValueError(
            f"share must leave a document or more on either side, got {share} of {num_documents} "
            f"documents, that is {cut}"
        )
    entry = corpus.starts[cut]
    first = corpus._replace(
        starts=corpus.starts[: cut + 1], words=corpus.words[:entry], counts=corpus.counts[:entry]
    )
    last = corpus._replace(
        starts=corpus.starts[cut:] - entry, words=corpus.words[entry:], counts=corpus.counts[entry:]
    )
    return first, last


def split_words(corpus: Corpus, share: float = 0.8, seed: int = 0) -> tuple[Corpus, Corpus]:
    """Split every document into words to learn from and words held out: each token is observed with
    the chance `share`, independently. Counts add up to the corpus; either part may be empty.

    Args:
        corpus: what to split.
        share: the chance that a token is observed.
        seed: of the draw.

    Examples:
        >>> from momentem.topics import corpus, split_words
        >>> observed, held_out = split_words(corpus([[30, 20]]), share=0.8)
        >>> observed.num_tokens + held_out.num_tokens
        50
    """
    check_instance(Corpus, REMEDY, corpus=corpus)
    _check_share(share)
    observed = np.random.default_rng(seed).binomial(corpus.counts, share)
    observed = observed.astype(corpus.counts.dtype)
    return _without_zeros(corpus, observed), _without_zeros(corpus, corpus.counts - observed)


def from_entries(
    documents: np.ndarray,
    words: np.ndarray,
    values: np.ndarray,
    num_documents: int,
    num_words: int,
    vocabulary: Vocabulary | None,
    name: str,
) -> Corpus:
    """Return the corpus of entries in any order, within bounds."""
    if not (documents[1:] >= documents[:-1]).all():
        order = np.argsort(documents, kind="stable")
        documents, words, values = documents[order], words[order], values[order]
    starts = offsets(np.bincount(documents, minlength=num_documents))
    return from_rows(starts, words, values, num_words, vocabulary, name)


def from_rows(
    starts: np.ndarray,
    words: np.ndarray,
    values: np.ndarray,
    num_words: int,
    vocabulary: Vocabulary | None,
    name: str,
) -> Corpus:
    """Return the corpus of rows whose starts and words are right: check the counts, sort words, add
    up those that occur twice, and drop zeros."""
    if num_words > LARGEST:
        raise ValueError(f"{name} must have at most {LARGEST} words, got {num_words}")
    known = known_words(vocabulary, num_words)
    _check_values(starts, words, values, name)
    is_larger = np.ones(len(words), bool)  # than the word before it in the row
    is_larger[1:] = words[1:] > words[:-1]
    is_larger[starts[:-1][np.diff(starts) > 0]] = True
    if not is_larger.all():
        starts, words, values = _sorted(starts, words, values)
        _check_values(starts, words, values, name)
    is_small = int(values.max(initial=0)) <= np.iinfo(np.uint16).max
    values = values.astype(np.uint16 if is_small else np.uint32)
    words = words.astype(np.uint16 if num_words <= 1 << 16 else np.uint32)
    return _without_zeros(Corpus(starts, words, values, known, num_words), values)


def _sorted(
    starts: np.ndarray, words: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    documents = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((words, documents))
    documents, words = documents[order], words[order]
    is_first = np.ones(len(words), bool)
    is_first[1:] = (documents[1:] != documents[:-1]) | (words[1:] != words[:-1])
    firsts = np.flatnonzero(is_first)
    totals = np.add.reduceat(values[order].astype(np.int64), firsts)
    return offsets(np.bincount(documents[firsts], minlength=len(starts) - 1)), words[firsts], totals


def _without_zeros(corpus: Corpus, counts: np.ndarray) -> Corpus:
    """Return the corpus with other counts for its entries, and without entries whose count is 0."""
    is_kept = counts > 0
    if is_kept.all():
        return corpus._replace(counts=counts)
    return corpus._replace(
        starts=offsets(is_kept)[corpus.starts],
        words=np.asarray(corpus.words)[is_kept],
        counts=counts[is_kept],
    )


def _check_values(starts: np.ndarray, words: np.ndarray, values: np.ndarray, name: str) -> None:
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got an array of type {values.dtype}")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # in single precision LARGEST is a number too large
        is_right = (values >= 0) & (values <= LARGEST) & (values == np.floor(values))
    else:
        is_right = (values >= 0) & (values <= LARGEST)
    if not is_right.all():
        entry = int(np.argmin(is_right))
        document = int(np.searchsorted(starts, entry, side="right")) - 1
        raise ValueError(
            f"{name} must be whole numbers from 0 to {LARGEST}, got {values[entry]} for word "
            f"{words[entry]} of document {document}; give counts, not frequencies or weights"
        )


def check_starts(starts: np.ndarray, num_documents: int, num_entries: int, name: str) -> None:
    """Refuse starts that do not cut the entries into rows, one after the other."""
    if len(starts) != num_documents + 1:
        raise ValueError(
            f"{name} must have one number more than the {num_documents} documents, got "
            f"{len(starts)}"
        )
    if starts[0] != 0 or starts[-1] != num_entries:
        raise ValueError(
            f"{name} must begin with 0 and end with the number of entries, {num_entries}, got "
            f"{starts[0]} and {starts[-1]}"
        )
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if falls.size:
        raise ValueError(
            f"{name} must not decrease, got {starts[falls[0] + 1]} after {starts[falls[0]]} at "
            f"document {falls[0]}"
        )


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}")


def offsets(lengths: Any) -> np.ndarray:
    """Return where parts of these lengths start, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def ranges(firsts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers first .. first + length - 1, of one range after the other."""
    starts = offsets(lengths)
    return np.repeat(firsts - starts[:-1], lengths) + np.arange(starts[-1])


def known_words(
    vocabulary: Vocabulary | None, num_words: int, limits: Limits | None = None
) -> tuple[str, ...] | None:
    """Return the words, checked to be as many as there are columns."""
    if vocabulary is None:
        return None
    words = words_of(vocabulary, limits)
    if len(words) != num_words:
        raise ValueError(
            f"vocabulary must have a word for each of the {num_words} columns, got {len(words)}"
        )
    return words


def words_of(vocabulary: Vocabulary, limits: Limits | None = None) -> tuple[str, ...]:
    """Return the words, each checked to fit on a line of a file."""
    if isinstance(vocabulary, str | os.PathLike):
        path = Path(vocabulary)
        lines = lines_of(path, Limits() if limits is None else limits)
        words = [decoded(line, f"line {n} of {path}") for n, line in enumerate(lines, 1)]
        name, first = f"every line of {path}", 1
    else:
        words, name, first = list(vocabulary), "every entry of vocabulary", 0
    for n, word in enumerate(words, first):
        if not isinstance(word, str) or not word.strip() or re.search(r"[\r\n]", word):
            raise ValueError(f"{name} must be a word, without line breaks, got {word!r} at {n}")
    return tuple(map(str, words))


def imported(name: str) -> Any:
    """Return a module of the extra `topics`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} is needed for this and cannot be imported; pip install 'momentem[topics]'"
        ) from error

"""What the tests of corpora, of their readers and of their minibatches share."""

import gzip
import os

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from momentem.topics import corpus
from momentem.topics.readers import read_npz

TABLE = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 3, 0, 1], [70_000, 1, 1, 1]])
WORDS = ("ape", "bee", "cat", "dog")

tables = hypothesis_numpy.arrays(
    np.int64,
    hypothesis_numpy.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 70_000)),
)


def dense(each):
    return each.to_csr().toarray()


def assert_same(found, wanted):
    assert found.num_words == wanted.num_words
    assert found.vocabulary == wanted.vocabulary
    for name in ("starts", "words", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert getattr(found, name).dtype == getattr(wanted, name).dtype


def random_corpus(num_documents=200, num_words=60, seed=0):
    """Lengths from 0 to many: rates differ between documents."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 1.0, size=(num_documents, 1))
    return corpus(rng.poisson(rates, size=(num_documents, num_words)))


def write_lines(path, content):
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


class Watched(np.ndarray):
    """Notes which entries are asked for."""

    def __getitem__(self, index):
        self.asked.append(index)
        return np.asarray(self)[index]


def watched(each):
    """A corpus that notes which of its entries are asked for."""
    each = each._replace(words=each.words.view(Watched), counts=each.counts.view(Watched))
    each.words.asked, each.counts.asked = [], []
    return each


def assert_few_were_read(each, most):
    for part in (each.words, each.counts):
        assert all(isinstance(index, np.ndarray) for index in part.asked)
        assert 0 < sum(index.size for index in part.asked) <= most


def present(path):
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path


def newsgroups(data, name):
    """The documents to learn from, and those to test on."""
    path = present(data / f"20news/{name}.npz")
    whole = read_npz(path, path.with_suffix(".vocab.txt"))
    is_test = np.load(path)["is_test"]
    return tuple(whole.take(np.flatnonzero(is_test == part)) for part in (False, True))

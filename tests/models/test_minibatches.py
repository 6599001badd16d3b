"""Strata are equal and padded least; documents drawn from them estimate sums without bias."""

import math
import time

import numpy as np
import pytest

from momentem.models.topics.corpus import corpus, load, save
from momentem.models.topics.minibatches import (
    MOST,
    WIDTH,
    draw,
    draw_lines,
    layout,
    num_tokens,
    padding,
    strata,
)

from corpora import TABLE, assert_few_were_read, newsgroups, random_corpus, watched

# --- strata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num", "num_widths"), [(1, 1), (7, 3), (20, 9), (20, 100)])
def test_strata_are_equal_sorted_and_wide_enough(num, num_widths):
    large = random_corpus()
    lengths = large.lengths()
    assert (lengths == 0).any()
    found = strata(large, num, num_widths)
    np.testing.assert_array_equal(np.sort(found.order), np.flatnonzero(lengths))
    assert (np.diff(lengths[found.order]) >= 0).all()
    assert found.sizes.sum() == len(found.order)
    assert np.ptp(found.sizes) <= 1
    assert len(np.unique(found.widths)) <= num_widths
    longest = lengths[found.order[found.edges[1:] - 1]]
    assert (found.widths >= longest).all()
    assert np.isin(found.widths, longest).all()
    wanted = np.repeat(found.widths, found.sizes).sum() / lengths.sum()
    assert padding(large, found) == pytest.approx(wanted)


@pytest.mark.parametrize("num_widths", [1, 2, 3])
def test_widths_pad_least(num_widths):
    """Against all choices of widths from the longest lengths."""
    large = random_corpus()
    longest = strata(large, 8, 100).widths
    sizes = strata(large, 8).sizes
    assert len(np.unique(longest)) == 8

    def entries(chosen):
        return sum(size * min(w for w in chosen if w >= length) for size, length in rows)

    rows = list(zip(sizes, longest, strict=True))
    subsets = [
        [length for n, length in enumerate(longest) if choice >> n & 1]
        for choice in range(1, 1 << 8)
    ]
    least = min(
        entries(chosen) for chosen in subsets if len(chosen) <= num_widths and longest[-1] in chosen
    )
    found = strata(large, 8, num_widths)
    assert found.widths @ found.sizes == least


@pytest.mark.parametrize(
    ("num", "num_widths", "message"),
    [
        (4, 9, "num must be at most the number of documents with words, 3, got 4; lower it"),
        (0, 9, "num must be a whole number >= 1, got 0"),
        (2, 0, "num_widths must be a whole number >= 1, got 0"),
    ],
)
def test_strata_refuse(num, num_widths, message):
    with pytest.raises(ValueError, match=message):
        strata(corpus(TABLE), num, num_widths)


def test_tables_must_be_made_corpora_first(without_jaxtyping):
    with pytest.raises(TypeError, match=r"(?s)corpus must be a Corpus, got .* make one"):
        strata(TABLE, 2)


# --- draws -------------------------------------------------------------------------------------


class InTurn(np.random.Generator):
    """Draws every number below each bound equally often, in turn."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        return np.broadcast_to(np.arange(size[0])[:, None], size) % high


def statistic(rows):
    """Some function of each document that tells words, counts and lengths apart."""
    words, counts = rows.words.astype(float), rows.counts.astype(float)
    return (counts * np.sin(1 + words)).sum(-1) ** 2 + (counts > 0).sum(-1)


def estimate(drawn):
    return sum(statistic(rows) @ rows.weights for rows in drawn)


def statistic_of_all(large):
    total = 0.0
    for n in range(large.num_documents):
        words, counts = large.document(n)
        total += (counts * np.sin(1.0 + words)).sum() ** 2 + len(words)
    return total


def test_estimates_are_unbiased_exactly():
    """Over draws that take each stratum's documents equally often, the mean is the sum itself."""
    large = random_corpus(num_documents=47)
    found = strata(large, 6, 3)
    assert len(set(found.sizes)) == 2
    num = math.lcm(*found.sizes.tolist())
    drawn = draw(large, found, InTurn(), (num,))
    assert np.mean(estimate(drawn)) == pytest.approx(statistic_of_all(large), rel=1e-12)
    # the control: without the weights it is another number
    unweighted = sum(statistic(rows).sum(-1) for rows in drawn)
    assert np.mean(unweighted) * 47 / 6 != pytest.approx(statistic_of_all(large), rel=1e-3)


def test_estimates_are_unbiased():
    """Within 5 standard errors of 20,000 draws: a false alarm in 10^6."""
    large = random_corpus()
    found = strata(large, 10)
    drawn = estimate(draw(large, found, np.random.default_rng(5), (100, 200)))
    error = drawn.std() / np.sqrt(drawn.size)
    assert drawn.mean() == pytest.approx(statistic_of_all(large), abs=5 * error)


def test_documents_of_a_stratum_have_the_same_chance_and_entries_are_independent():
    """Limits of 5 standard errors."""
    num = 20_000
    large = corpus(np.diag(np.arange(1, 9)))  # all of one length, told apart by their word
    found = strata(large, 2)
    (rows,) = draw(large, found, np.random.default_rng(2), (num, 2))
    assert rows.words.shape == (num, 2, 2, 1)
    words = rows.words[..., 0].astype(int)
    for stratum in range(2):
        pairs = words[:, 0, stratum] * 8 + words[:, 1, stratum]
        frequency = np.bincount(pairs, minlength=64).reshape(8, 8)
        own = slice(4 * stratum, 4 * stratum + 4)
        assert frequency[own, own].sum() == num
        error = 5 * np.sqrt(num * (1 / 16) * (15 / 16))
        assert (abs(frequency[own, own] - num / 16) < error).all()
    strata_together = np.bincount(words[:, 0, 0] * 8 + words[:, 0, 1], minlength=64)
    taken = strata_together.reshape(8, 8)[:4, 4:]
    assert (abs(taken - num / 16) < 5 * np.sqrt(num * (1 / 16) * (15 / 16))).all()


@pytest.mark.parametrize("shape", [(), (3,), (3, 1, 2)])
def test_rows(shape):
    large = random_corpus()
    found = strata(large, 12, 4)
    drawn = draw(large, found, np.random.default_rng(0), shape)
    widths = [rows.words.shape[-1] for rows in drawn]
    assert widths == sorted(set(found.widths.tolist()))
    np.testing.assert_array_equal(np.concatenate([rows.weights for rows in drawn]), found.sizes)
    documents = {(*map(tuple, large.document(n)),) for n in range(large.num_documents)}
    for rows in drawn:
        assert rows.words.shape == rows.counts.shape == (*shape, len(rows.weights), widths.pop(0))
        assert rows.words.dtype == large.words.dtype
        assert rows.counts.dtype == large.counts.dtype
        assert rows.weights.dtype == np.float64
        width = rows.words.shape[-1]
        for words, counts in zip(
            rows.words.reshape(-1, width), rows.counts.reshape(-1, width), strict=True
        ):
            length = np.count_nonzero(counts)
            assert (tuple(words[:length]), tuple(counts[:length])) in documents
            assert not words[length:].any()
            assert not counts[length:].any()


def test_draws_do_not_depend_on_widths_or_on_where_the_corpus_is(tmp_path):
    large = random_corpus()
    save(large, tmp_path)
    draws = [
        estimate(draw(each, strata(each, 10, num), np.random.default_rng(1), (5,)))
        for each in (large, load(tmp_path))
        for num in (1, 4, 9)
    ]
    for each in draws[1:]:
        np.testing.assert_allclose(each, draws[0])


def test_only_documents_that_are_drawn_are_read():
    large = watched(random_corpus())
    found = strata(large, 10)
    draw(large, found, np.random.default_rng(0), (1,))
    assert_few_were_read(large, found.widths.sum())


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["20news_nvdm2000", "20news_stem2000"])
def test_newsgroups(data, name):
    """Padding as in the design, below 1.6; and draws in time."""
    train, _ = newsgroups(data, name)
    found = strata(train, 50)
    assert len(np.unique(found.widths)) <= 9
    assert padding(train, found) < 1.6
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        drawn = draw(train, found, rng, (25, 10, 2))
        seconds.append(time.perf_counter() - begin)
    assert sum(rows.words.shape[-2] for rows in drawn) == 50
    assert min(seconds) < 0.5


def test_lines_add_up_to_documents():
    """Every document drawn is one of its stratum, whole, in its words and in its tokens; a large
    count is MOST tokens."""
    counts = np.random.default_rng(0).poisson(1.0, size=(30, 17))
    counts[3] = 0
    counts[5, 2] = 4 * MOST + 1
    documents = corpus(counts)
    np.testing.assert_array_equal(num_tokens(documents), np.minimum(counts, MOST).sum(axis=1))
    found = layout(documents, 5)
    layers = found.strata
    drawn = draw_lines(documents, found, np.random.default_rng(1), (4, 3), 2)
    assert drawn.words.shape == drawn.counts.shape == (4, 3, 2 * found.num_lines, WIDTH)
    assert drawn.tokens.shape == (4, 3, 2 * layers.widths.sum())
    np.testing.assert_array_equal(found.weights(2), np.tile(layers.sizes, 2))
    assert np.all(np.diff(drawn.documents) >= 0)
    for place in np.ndindex(4, 3):
        words, of_words, owners, tokens, of_tokens = (each[place] for each in drawn)
        owners = np.repeat(owners, WIDTH)
        tables = np.zeros((2, 10, 17))
        np.add.at(tables[0], (owners, words.ravel()), of_words.ravel())
        np.add.at(tables[1], (owners[tokens], words.ravel()[tokens]), of_tokens)
        np.testing.assert_allclose(tables[0], tables[1], atol=1e-5)
        for d, row in enumerate(tables[0]):
            s = d % 5
            of_stratum = counts[layers.order[layers.edges[s] : layers.edges[s + 1]]]
            assert np.any(np.all(of_stratum == row, axis=1))

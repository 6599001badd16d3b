"""Strata are equal; documents drawn from them are whole, and estimate sums without bias."""

import math

import numpy as np
import pytest

from momentem.topics import corpus
from momentem.topics.corpus_files import load, save
from momentem.topics.minibatches import MOST, WIDTH, draw_minibatches, layout, num_tokens

from corpora import TABLE, assert_few_were_read, newsgroups, random_corpus, watched

# --- layout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 7, 20])
def test_strata_are_equal_and_sorted_and_have_room(num):
    large = random_corpus()
    tokens, lines = num_tokens(large), -(-large.lengths() // WIDTH)
    assert (tokens == 0).any()
    found = layout(large, num)
    np.testing.assert_array_equal(np.sort(found.order), np.flatnonzero(tokens))
    assert (np.diff(tokens[found.order]) >= 0).all()
    assert found.sizes.sum() == len(found.order)
    assert np.ptp(found.sizes) <= 1
    strata = np.split(found.order, found.edges[1:-1])
    assert found.num_lines == sum(lines[stratum].max() for stratum in strata)
    assert found.num_tokens == sum(tokens[stratum].max() for stratum in strata)


@pytest.mark.parametrize(
    ("num", "message"),
    [
        (4, "num must be at most the number of documents with words, 3, got 4; lower it"),
        (0, "num must be a whole number >= 1, got 0"),
    ],
)
def test_layout_refuses(num, message):
    with pytest.raises(ValueError, match=message):
        layout(corpus(TABLE), num)


def test_tables_must_be_made_corpora_first(without_jaxtyping):
    with pytest.raises(TypeError, match=r"(?s)corpus must be a Corpus, got .* make one"):
        layout(TABLE, 2)


# --- draws -------------------------------------------------------------------------------------


class InTurn(np.random.Generator):
    """Draws every number below each bound equally often, in turn."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        return np.broadcast_to(np.arange(size[0])[:, None, None], size) % high


def statistic(words, counts):
    """Some function of each document that tells words, counts and lengths apart."""
    return np.array([counts * np.sin(1.0 + words), counts > 0])


def statistics(drawn, num_documents):
    """Of the documents of every minibatch, from what their lines hold."""
    words, counts, owners = (
        each.reshape(-1, *each.shape[drawn.documents.ndim - 1 :]) for each in drawn[:3]
    )
    found = np.zeros((len(words), 2, num_documents))
    for n in range(len(words)):
        sums = statistic(words[n], counts[n]).sum(axis=2)
        np.add.at(found[n], (slice(None), owners[n]), sums)
    return found[:, 0] ** 2 + found[:, 1]


def estimate(drawn, weights):
    return statistics(drawn, len(weights)) @ weights


def statistic_of_all(large):
    sums = [statistic(*large.document(n)).sum(axis=1) for n in range(large.num_documents)]
    return sum(waves**2 + length for waves, length in sums)


def test_estimates_are_unbiased_exactly():
    """Over draws that take each stratum's documents equally often, the mean is the sum itself."""
    large = random_corpus(num_documents=47)
    found = layout(large, 6)
    assert len(set(found.sizes)) == 2
    num = math.lcm(*found.sizes.tolist())
    drawn = draw_minibatches(large, found, InTurn(), (num,), 1)
    whole = statistic_of_all(large)
    assert np.mean(estimate(drawn, found.weights(1))) == pytest.approx(whole, rel=1e-6)
    # the control: without the weights it is another number
    assert np.mean(estimate(drawn, np.full(6, 47 / 6))) != pytest.approx(whole, rel=1e-3)


def test_estimates_are_unbiased():
    """Each half within 5 standard errors of 4,000 draws: a false alarm in 10^6."""
    large = random_corpus()
    found = layout(large, 10)
    drawn = draw_minibatches(large, found, np.random.default_rng(5), (40, 100), 2)
    each = statistics(drawn, 20).reshape(-1, 2, 10) @ found.weights(1)
    error = each.std(axis=0) / np.sqrt(len(each))
    np.testing.assert_array_less(np.abs(each.mean(axis=0) - statistic_of_all(large)), 5 * error)


def test_documents_of_a_stratum_have_the_same_chance_and_draws_are_independent():
    """Limits of 5 standard errors."""
    num = 20_000
    large = corpus(np.diag(np.full(8, MOST)))  # all of one length, told apart by their word
    drawn = draw_minibatches(large, layout(large, 2), np.random.default_rng(2), (num,), 2)
    words = drawn.words[:, :, 0].astype(int).reshape(num, 2, 2)  # (draw, half, stratum)
    error = 5 * np.sqrt(num * (1 / 16) * (15 / 16))
    for stratum in range(2):
        pairs = words[:, 0, stratum] * 8 + words[:, 1, stratum]
        frequency = np.bincount(pairs, minlength=64).reshape(8, 8)
        own = slice(4 * stratum, 4 * stratum + 4)
        assert frequency[own, own].sum() == num
        assert (abs(frequency[own, own] - num / 16) < error).all()
    together = np.bincount(words[:, 0, 0] * 8 + words[:, 0, 1], minlength=64).reshape(8, 8)
    assert (abs(together[:4, 4:] - num / 16) < error).all()


@pytest.mark.parametrize("shape", [(), (3,), (4, 3)])
def test_lines_add_up_to_documents(shape):
    """Every document drawn is one of its stratum, whole, in its words and in its tokens; a large
    count is MOST tokens."""
    counts = np.random.default_rng(0).poisson(1.0, size=(30, 17))
    counts[3] = 0
    counts[5, 2] = 4 * MOST + 1
    documents = corpus(counts)
    np.testing.assert_array_equal(num_tokens(documents), np.minimum(counts, MOST).sum(axis=1))
    found = layout(documents, 5)
    drawn = draw_minibatches(documents, found, np.random.default_rng(1), shape, 2)
    assert drawn.words.shape == drawn.counts.shape == (*shape, 2 * found.num_lines, WIDTH)
    assert drawn.tokens.shape == drawn.token_counts.shape == (*shape, 2 * found.num_tokens)
    assert drawn.words.dtype == documents.words.dtype
    np.testing.assert_array_equal(found.weights(2), np.tile(found.sizes, 2))
    assert np.all(np.diff(drawn.documents) >= 0)
    for place in np.ndindex(shape):
        words, of_words, owners, tokens, of_tokens = (each[place] for each in drawn)
        owners = np.repeat(owners, WIDTH)
        tables = np.zeros((2, 10, 17))
        np.add.at(tables[0], (owners, words.ravel()), of_words.ravel())
        np.add.at(tables[1], (owners[tokens], words.ravel()[tokens]), of_tokens)
        np.testing.assert_allclose(tables[0], tables[1], atol=1e-5)
        for d, row in enumerate(tables[0]):
            s = d % 5
            of_stratum = counts[found.order[found.edges[s] : found.edges[s + 1]]]
            assert np.any(np.all(of_stratum == row, axis=1))


def test_draws_do_not_depend_on_where_the_corpus_is(tmp_path):
    large = random_corpus()
    save(large, tmp_path)
    here, there = (
        draw_minibatches(each, layout(each, 10), np.random.default_rng(1), (5,), 2)
        for each in (large, load(tmp_path))
    )
    for mine, others in zip(here, there, strict=True):
        np.testing.assert_array_equal(mine, others)


def test_only_documents_that_are_drawn_are_read():
    found = layout(random_corpus(), 10)
    large = watched(random_corpus())
    draw_minibatches(large, found, np.random.default_rng(0), (1,), 1)
    assert_few_were_read(large, found.num_lines * WIDTH)


# --- data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["20news_nvdm2000", "20news_stem2000"])
def test_newsgroups(data, name):
    """Padding as in the design, below 1.6."""
    train, _ = newsgroups(data, name)
    found = layout(train, 50)
    assert found.num_lines * WIDTH < 1.6 * 50 * train.lengths().mean()
    assert found.num_tokens < 1.6 * 50 * num_tokens(train).mean()

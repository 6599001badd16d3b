"""The topic model: local steps in law, densities by their scores, minibatches without bias."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy import stats

from momentem.pytrees import Static
from momentem.targets.streams import Window
from momentem.topics import TopicModel, corpus, evaluation, local, split_words, starts
from momentem.topics._fit import fit
from momentem.topics.minibatches import Minibatches, draw_minibatches, layout
from momentem.topics.model import (
    Blocks,
    Model,
    document_sums,
    log_prior,
    make_model,
    minibatch_target,
    topics_of,
)
from momentem.topics.runs import TopicRun, join
from momentem.topics.samplers import make_sampler

PHI = np.array([[0.6, 0.1], [0.3, 0.3], [0.1, 0.6]])
R = np.array([0.4, 0.9])
Y = np.array([2, 1, 1])  # of one document


def exact(phi, r, y):
    """All ways to give the words of a document to topics, and their chances."""
    words = np.repeat(np.arange(len(y)), y)
    ways, logs = [], []
    for topics in product(range(len(r)), repeat=len(words)):
        z = np.zeros((len(y), len(r)))
        np.add.at(z, (words, topics), 1)
        n = z.sum(axis=0)
        logs.append(np.sum(z * np.log(phi)) + float(np.sum(gammaln(r + n) - gammaln(r))))
        ways.append(z)
    chances = np.exp(np.array(logs) - max(logs))
    return np.array(ways), chances / chances.sum()


def lines_of(phi, y, num):
    """The same document so many times, in a line each."""
    tokens = np.arange(num)[:, None] * len(y) + np.repeat(np.arange(len(y)), y)
    counts = jnp.tile(jnp.asarray(y, phi.dtype)[None], (num, 1))
    lines = local.in_lines(jnp.tile(phi[None], (num, 1, 1)), counts)
    ones = jnp.ones(tokens.size, phi.dtype)
    return lines._replace(tokens=jnp.asarray(tokens.reshape(-1)), token_counts=ones)


def broken_gibbs(monkeypatch, what):
    """theta | z without its prior, or z | theta that favours the first topic."""
    log_gamma, picked = local.log_gamma, local.picked
    if what == "theta":
        lower = jnp.asarray(R)[None]
        monkeypatch.setattr(
            local,
            "log_gamma",
            lambda shape, *rest: log_gamma(jnp.maximum(shape - lower, 1e-3), *rest),
        )
    else:
        monkeypatch.setattr(local, "picked", lambda *given: picked(*given[:-1], 0.9 * given[-1]))


@pytest.mark.parametrize("broken", [None, "theta", "z"])
@pytest.mark.validate
def test_gibbs_is_right_in_law(monkeypatch, broken):
    """E[z] and P(n > 0) against all ways; 5 MCSE, of 9 numbers: one false alarm in 2e5 seeds."""
    if broken:
        broken_gibbs(monkeypatch, broken)
    num = 5_000
    found = local.gibbs(15).solve(jax.random.key(0), lines_of(PHI, Y, num), jnp.asarray(R))
    ways, chances = exact(PHI, R, Y)
    expected = np.tensordot(chances, ways, 1)
    error = np.sqrt(np.tensordot(chances, ways**2, 1) - expected**2) / num**0.5
    is_right = bool(np.all(np.abs(np.mean(found.expected, 0) - expected) <= 5 * error + 1e-12))
    chance = chances @ (ways.sum(axis=1) > 0)
    spread = np.sqrt(chance * (1 - chance) / num)
    is_right &= bool(np.all(np.abs(np.mean(found.present, axis=0) - chance) <= 5 * spread + 1e-12))
    assert is_right == (broken is None)
    np.testing.assert_allclose(np.sum(found.numbers, axis=1), np.sum(Y), rtol=1e-9)


def test_log_gamma_in_law():
    """Kolmogorov's distance of 40,000 draws, at shapes from 0.01 on: refused one time in 10^6."""
    normal_key, uniform_key = jax.random.split(jax.random.key(1))
    shapes = np.array([0.01, 0.3, 1.0, 20.0])
    normals = jax.random.normal(normal_key, (local.NUM_TRIES, 40_000, 4))
    uniforms = jax.random.uniform(uniform_key, (local.NUM_TRIES + 1, 40_000, 4))
    logs = np.asarray(local.log_gamma(jnp.asarray(shapes)[None], normals, uniforms))

    def distance(logs, shape):
        return stats.kstest(np.exp(logs), stats.gamma(shape).cdf).statistic

    bound = 2.7 / 40_000**0.5
    assert all(distance(logs[:, i], shape) < bound for i, shape in enumerate(shapes))
    assert all(distance(logs[:, i], 1.1 * shape) > bound for i, shape in enumerate(shapes[1:], 1))


@pytest.mark.parametrize("num_topics", [1, 2, 7, 12, 100])
@pytest.mark.one_now
def test_picked_inverts_the_cumulative_sums(num_topics):
    """Of phi theta at each token's word and document, topics in the order of the combs."""
    rng = np.random.default_rng(0)
    phi, loads = rng.gamma(0.3, size=(60, 4, num_topics)), rng.gamma(0.3, size=(9, num_topics))
    documents = np.sort(rng.integers(9, size=60))
    tokens, chances = rng.integers(240, size=500), rng.uniform(size=500)
    owners = documents[tokens // 4]
    spacing = round(num_topics**0.5)
    order = np.argsort(np.arange(num_topics) % spacing, kind="stable")
    cumulative = np.cumsum((phi.reshape(240, -1)[tokens] * loads[owners])[:, order], axis=1)
    expected = order[np.sum(cumulative <= (chances * cumulative[:, -1])[:, None], axis=1)]
    numbers = jnp.ones((60, 4)), jnp.asarray(documents), jnp.asarray(tokens), jnp.ones(500)
    lines = local.Lines(jnp.asarray(phi), *numbers, Static(9))
    found = local.picked(lines, jnp.asarray(owners), jnp.asarray(loads), jnp.asarray(chances))
    np.testing.assert_array_equal(found, expected)


def test_fixed_point_is_stationary_and_near_the_mean():
    lines, weights = lines_of(PHI, Y, 1), jnp.asarray(R)
    found = local.fixed_point(500).solve(jax.random.key(0), lines, weights)
    more = local.collapsed_field(501, lines, weights).loads
    np.testing.assert_allclose(more, found.loads, rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(found.expected[0], axis=1), Y, rtol=1e-9)
    ways, chances = exact(PHI, R, Y)
    np.testing.assert_allclose(found.expected[0], np.tensordot(chances, ways, 1), atol=0.25)
    assert np.all((found.present > 0) & (found.present <= 1))


pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = make_model(3, 2, num_rounds=2, topic_shape=0.8, odds_shapes=(2.0, 3.0), dtype=jnp.float64)


def simulate(rng, num):
    """Positions from the prior and one document for each, with its topics known."""
    gamma = rng.gamma(0.8, size=(num, 3, 2))
    alpha, rate_c = rng.exponential(size=num), rng.exponential(size=num)
    T = rng.gamma(np.array([1.0, 2.0]), size=(num, 2)) / alpha[:, None]
    E = rng.exponential(size=(num, 2)) / rate_c[:, None]
    log_r = np.log(E) - T
    r = np.exp(log_r)
    p = rng.beta(2.0, 3.0, size=num)
    theta = rng.gamma(r) * (p / (1 - p))[:, None]
    phi = gamma / gamma.sum(axis=1, keepdims=True)
    z = rng.poisson(phi * theta[:, None])
    h = np.log(np.stack([alpha, np.ones(num), rate_c], axis=1))
    parts = (np.log(gamma).reshape(num, -1), log_r, np.log(T), h)
    return np.concatenate(parts, axis=1), z


def in_lines(counts):
    """Every document in a line of its own, all words in it, with no tokens."""
    words = jnp.tile(jnp.arange(counts.shape[1])[None], (len(counts), 1))
    none = jnp.zeros(0, int), jnp.zeros(0)
    return Minibatches(words, counts, jnp.arange(len(counts)), *none)


@pytest.mark.parametrize("sabotage", [None, "prior", "topics", "weights"])
def test_scores_have_mean_zero_under_the_joint_density(sabotage):
    """E[f(z) grad log p(position, z)] = 0 for f = 1 and for bounded functions of the counts, which
    tie likelihood and prior together; in every coordinate but gamma's, whose atoms are fixed.

    5 standard errors over 24 numbers: one false alarm in 7e4 seeds.
    """
    rng = np.random.default_rng(3)
    positions, z = simulate(rng, 40_000)

    def score(position, z):
        phi, r = topics_of(SMALL, position)
        n = jnp.sum(z, axis=0)
        given = local.LocalStep(
            lambda *_: local.Local(z[None], n[None], (n > 0).astype(float)[None], jnp.ones((1, 2)))
        )
        batch = in_lines(jnp.sum(z, axis=1)[None])
        (sums,) = document_sums(SMALL, given, jax.random.key(0), phi, r, batch, jnp.ones(1))
        S = sums.counts
        d_x = S - phi * jnp.sum(S, axis=0, keepdims=True)
        d_rho = r * sums.weights
        d_x = 2 * d_x if sabotage == "topics" else d_x
        d_rho = -d_rho if sabotage == "weights" else d_rho
        data = Model.flat(Blocks(d_x, d_rho, jnp.zeros(2), jnp.zeros(3)))
        prior = Model.flat(jax.grad(log_prior, argnums=1)(SMALL, SMALL.blocks(position)))
        whole = data + (prior[::-1] if sabotage == "prior" else prior)
        counts = Model.flat(Blocks(z, n, n, jnp.full(3, jnp.sum(n))))
        return jnp.concatenate([jnp.delete(each, -2) for each in (whole, jnp.tanh(counts) * whole)])

    found = np.asarray(jax.jit(jax.vmap(score))(positions, z.astype(float)))
    error = found.std(axis=0) / len(found) ** 0.5
    is_right = bool(np.all(np.abs(found.mean(axis=0)) < 5 * error))
    assert is_right == (sabotage is None), found.mean(axis=0) / error


def some_documents(num=40, num_words=12, num_topics=3, length=30, seed=0):
    """Documents of a few planted topics on disjoint words."""
    rng = np.random.default_rng(seed)
    topics = np.full((num_words, num_topics), 0.01)
    for k in range(num_topics):
        topics[k * num_words // num_topics : (k + 1) * num_words // num_topics, k] = 1.0
    topics /= topics.sum(axis=0)
    shares = rng.dirichlet(np.full(num_topics, 0.1), size=num)
    return corpus(rng.poisson(length * shares @ topics.T)), topics


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.validate
def test_minibatch_gradient_has_no_bias(is_broken):
    """Averaged over many minibatches, it is the gradient of all documents."""
    train, _ = some_documents(num=6, length=8)
    shape = make_model(12, 2, dtype=jnp.float64)
    position = jnp.asarray(np.random.default_rng(0).normal(size=shape.dim) - 2)
    step = local.fixed_point(5)
    lines = layout(train, 3)
    drawn = draw_minibatches(train, lines, np.random.default_rng(0), (400,), 2)
    weights = jnp.asarray(lines.weights(2)) * (1.3 if is_broken else 1)
    window = Window(jax.tree.map(lambda leaf: leaf[None], drawn), None, 1)
    target = minibatch_target(shape, step, window, weights, position, 1.0)
    classes, _ = target.batches(jax.random.key(0), Static(400))
    keys = jax.random.split(jax.random.key(0), 400)
    noisy = jax.vmap(target.noisy_gradient, in_axes=((0, 0), None))((classes, keys), position)
    phi, r = topics_of(shape, position)
    batch = in_lines(jnp.asarray(train.to_csr().toarray(), float))
    (sums,) = document_sums(shape, step, jax.random.key(0), phi, r, batch, jnp.ones(6))
    d_x = sums.counts - phi * jnp.sum(sums.counts, axis=0, keepdims=True)
    data = Model.flat(Blocks(d_x, r * sums.weights, jnp.zeros(2), jnp.zeros(3)))
    of_prior = Model.flat(jax.grad(log_prior, argnums=1)(shape, shape.blocks(position)))
    whole = np.asarray(data + of_prior)
    found = np.asarray(noisy.gradient)
    error = found.std(axis=0) / len(found) ** 0.5
    is_right = bool(np.all(np.abs(found.mean(axis=0) - whole) <= 5 * error + 1e-6))
    assert is_right != is_broken
    # the half-differences have the variance of the gradient, within 5 standard errors of a variance
    ratio = np.mean(np.asarray(noisy.noise) ** 2, axis=0)[:20] / found.var(axis=0)[:20]
    assert np.all(np.abs(ratio - 1) < 0.5)


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.validate
def test_stochastic_em_improves_the_start(monkeypatch, is_broken):
    """Planted topics predict held-out words better after 100 minibatches, unless none is used."""
    if is_broken:
        monkeypatch.setattr(starts, "FIRST", 0.0)
    train, _ = some_documents(num=100)
    observed, held_out = split_words(some_documents(num=50, seed=1)[0])
    shape = make_model(12, 3)
    lines = layout(train, 10)
    batches = draw_minibatches(train, lines, np.random.default_rng(0), (100,), 2)
    weights = jnp.asarray(lines.weights(2), jnp.float32)
    first = starts.start(shape, train, np.random.default_rng(0))

    def step(state, inputs):
        key, batch = inputs
        return starts.improve(shape, local.gibbs(2), key, state, batch, weights), None

    state = starts.unimproved(shape, first, train.num_tokens)
    keys = jax.random.split(jax.random.key(0), 100)
    state, _ = jax.lax.scan(step, state, (keys, batches))

    def perplexity(position):
        return evaluation.Perplexity(observed, held_out).add(*topics_of(shape, position))[0]

    is_better = perplexity(state.position(shape)) < 0.9 * perplexity(first)
    assert is_better != is_broken


SHORT = {"num_steps": 2, "num_warmup": 200, "num_draws": 40, "thin": 20, "batch_size": 10}


@pytest.mark.parametrize(
    "name",
    [
        "sghmc-em",
        pytest.param("sg-nphmc-em", marks=pytest.mark.validate),
        pytest.param("sgr-nphmc", marks=pytest.mark.validate),
    ],
)
@pytest.mark.validate
def test_every_kind_of_sampler_runs(name):
    train, _ = some_documents()
    shape = make_model(12, 3)
    found = fit(shape, train, name, **SHORT)
    assert found.topics.shape == (2, 12, 3)
    np.testing.assert_allclose(found.topics.sum(axis=1), 1, rtol=1e-4)
    assert np.isfinite(found.weights).all()
    assert found.num_divergences == 0


def test_held_out_words_are_never_touched():
    """Measuring changes nothing, and what is held out changes no load."""
    train, _ = some_documents()
    test, _ = some_documents(seed=1)
    observed, held_out = split_words(test)
    shape = make_model(12, 3)
    measure = evaluation.Perplexity(observed, held_out)
    measured = fit(shape, train, **SHORT, measure=measure)
    alone = fit(shape, train, **SHORT)
    np.testing.assert_array_equal(measured.topics, alone.topics)
    assert np.isfinite(measured.trace["average"]).all()
    more = evaluation.Perplexity(observed, test)
    phi, r = measured.topics[0], measured.weights[0]
    first = evaluation.Perplexity(observed, held_out)
    first.add(phi, r)
    more.add(phi, r)
    np.testing.assert_array_equal(first.totals, more.totals)


@pytest.mark.validate
def test_planted_topics_are_found():
    train, topics = some_documents(num=200, length=40)
    fitted = TopicModel(3, num_warmup=300, num_draws=100, thin=20, num_steps=5, batch_size=40).fit(
        train
    )
    overlap = fitted.components_ @ (topics > 0.05)
    assert np.all(overlap.max(axis=0) > 0.9)
    assert fitted.transform(train).shape == (200, 3)
    test, _ = some_documents(num=50, length=40, seed=2)
    unigram = evaluation.unigram_perplexity(train, split_words(test)[1])
    assert fitted.perplexity(test) < 0.7 * unigram


def test_perplexity_by_hand():
    """One topic: its own frequencies, whatever the documents' loads."""
    observed, held_out = corpus(np.array([[1, 1]])), corpus(np.array([[2, 1]]))
    phi, r = jnp.array([[0.75], [0.25]]), jnp.array([0.5])
    single, average = evaluation.perplexity(phi[None], r[None], observed, held_out)
    expected = np.exp(-(2 * np.log(0.75) + np.log(0.25)) / 3)
    np.testing.assert_allclose([single, average], expected, rtol=1e-5)


def test_average_of_samples_beats_its_parts():
    observed, held_out = corpus(np.array([[1, 1]])), corpus(np.array([[1, 1]]))
    topics = np.array([[[0.9], [0.1]], [[0.1], [0.9]]], np.float32)
    single, average = evaluation.perplexity(topics, np.ones((2, 1)), observed, held_out)
    np.testing.assert_allclose(average, 2, rtol=1e-5)
    assert single > 3


def test_coherence_by_hand():
    counts = corpus(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 1]]))
    topics = np.array([[0.5, 0.1], [0.4, 0.3], [0.1, 0.6]])
    a, b = evaluation.coherence(topics, counts, num=2)
    np.testing.assert_allclose(a, np.log(0.5 / (0.75 * 0.5)) / -np.log(0.5))
    assert b == -1  # words 1 and 2 are never together


def test_active_topics():
    weights = np.array([[1.0, 1.0, 0.001], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(evaluation.active_topics(weights), [2, 3])


@pytest.mark.validate
def test_one_topic_and_empty_documents():
    """K = 1 is the unigram; an empty document has the prior's shares."""
    counts = np.array([[5, 1], [4, 2], [0, 0], [3, 3], [6, 1]])
    fitted = TopicModel(1, num_warmup=40, num_draws=20, thin=20, num_steps=2, batch_size=4)
    fitted.fit(counts)
    shares = fitted.transform(counts)
    np.testing.assert_allclose(shares, 1)


def sampler_with(**options):
    """A sampler whose target is not looked at before its options are."""
    train, _ = some_documents(num=4)
    return make_sampler("sghmc", make_model(12, 2), train, None, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TopicModel(2).transform(np.ones((2, 2), int)), "must be fitted"),
        (lambda: TopicModel(2).fit(np.array([[1, 0], [0, 0]])), "at least 2 documents"),
        (lambda: TopicModel(2, sampler="hmc").fit(np.ones((4, 2), int)), "sampler must be one of"),
        (lambda: TopicModel(2, batch_size=3).fit(np.ones((4, 2), int)), "batch_size must be even"),
        (lambda: TopicModel(2, batch_size=0).fit(np.ones((4, 2), int)), "number >= 2, got 0"),
        (lambda: TopicModel(2, thin=0).fit(np.ones((4, 2), int)), "number >= 1, got 0"),
        (lambda: TopicModel(2, num_steps=0).fit(np.ones((4, 2), int)), "number >= 1, got 0"),
        (lambda: sampler_with(step_size=0), "step_size must be finite and > 0, got 0"),
        (lambda: sampler_with(friction=0.0), r"friction must be finite and > 0, got 0\.0"),
        (lambda: make_model(10, 3, num_rounds=4), "num_rounds must be at most"),
        (
            lambda: evaluation.fold_in(np.ones((3, 1)), np.ones(1), corpus(np.ones((2, 2), int))),
            "vocabulary of the topics",
        ),
        (
            lambda: evaluation.Perplexity(
                corpus(np.ones((2, 2), int)), corpus(np.ones((3, 2), int))
            ),
            "same documents",
        ),
    ],
)
@pytest.mark.usefixtures("without_jaxtyping")
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_chains_are_joined_one_after_the_other():
    def chain(seed):
        rng = np.random.default_rng(seed)
        trace = {"iteration": np.array([20, 30]), "seconds": np.array([2.0, 3.0])}
        perplexities = {name: rng.random(2) for name in ("single", "average")}
        samples = rng.random((2, 5, 3)), rng.random((2, 3)), rng.random((2, 3))
        return TopicRun(*samples, trace | perplexities, 1 + seed, 0.1)

    first, second = chain(0), chain(1)
    both = join([first, second], num_iterations=30)
    np.testing.assert_array_equal(both.trace["iteration"], [20, 30, 50, 60])
    np.testing.assert_array_equal(both.trace["seconds"], [2, 3, 5, 6])
    np.testing.assert_array_equal(both.topics[2:], second.topics)
    np.testing.assert_array_equal(both.trace["average"][2:], second.trace["average"])
    np.testing.assert_array_equal(first.trace["iteration"], [20, 30])
    assert both.num_divergences == 3

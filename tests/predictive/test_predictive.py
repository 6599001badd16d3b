"""Predictions, log likelihoods and scores, against NumPyro's, ArviZ's and scikit-learn's."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from numpyro.infer import log_likelihood as their_log_likelihood

import momentem as mt
from momentem.targets.origin import small_data

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
LABELS = (RNG.uniform(size=600) < 1 / (1 + np.exp(-X @ [1.0, 2.0, -1.0]))).astype(float)


def schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("twice", 2 * theta)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def log_prior(p):
    return -0.5 * jnp.sum(p["w"] ** 2)


def log_likelihood(p, datum):
    logit = datum[0] @ p["w"]
    return datum[1] * logit - jnp.logaddexp(0.0, logit)


def law(p, datum):
    return dist.Bernoulli(logits=datum[0] @ p["w"])


@pytest.fixture(scope="module")
def eight():
    target = mt.from_numpyro(schools, SIGMA, y=Y)
    return target, mt.sample(target, num_draws=500, seed=3)


def fast(target):
    """A sampler whose program is small."""
    return mt.hmc(target, 0.8, 3, mass=mt.diagonal_mass(0.015 * jnp.ones(3)))


@pytest.fixture(scope="module")
def logistic():
    target = mt.dataset(log_prior, log_likelihood, (X, LABELS), {"w": jnp.zeros(3)})
    return target, mt.sample(target, fast(target), num_draws=250, num_warmup=100, seed=3)


def pooled(trace, *names):
    posterior = trace["posterior"]
    return {n: jnp.asarray(posterior[n].values.reshape(-1, *posterior[n].shape[2:])) for n in names}


def test_log_likelihood_is_numpyro_s(eight):
    target, trace = eight
    ours = mt.log_likelihood(trace, target)["log_likelihood"]["y"]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = their_log_likelihood(schools, pooled(trace, "mu", "tau", "theta"), SIGMA, y=Y)
    assert ours.dims == ("chain", "draw", "school")
    np.testing.assert_allclose(ours.values.reshape(-1, 8), theirs["y"], rtol=1e-12)


def test_predictions_are_numpyro_s(eight):
    """2,000 draws on each side; means of y are apart by 5 standard errors with a chance of 6e-7
    each, 8 of them, and standard deviations likewise. With one noise for all draws, as from a fixed
    key, the deviations are a third of what they should be."""
    target, trace = eight
    prediction = mt.predict(trace, target, num_draws=None)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        latent = pooled(trace, "mu", "tau", "theta")
        theirs = np.asarray(Predictive(schools, latent)(jax.random.key(5), SIGMA)["y"])
    ours = prediction.draws["y"].values.reshape(-1, 8)
    assert ours.shape == theirs.shape
    error = np.sqrt(2) * theirs.std(axis=0) / len(theirs) ** 0.5
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 5 * error).all()
    assert (np.abs(ours.std(axis=0) - theirs.std(axis=0)) < 5 * error).all()
    np.testing.assert_allclose(prediction.mean["y"], latent["theta"].mean(axis=0))


def test_predictions_for_other_arguments(eight):
    target, trace = eight
    assert (mt.predict(trace, target, {"sigma": SIGMA / 1e6}).sd["y"] < 12).all()
    spread = mt.predict(trace, target, (1e6 * np.ones(8),)).sd["y"]
    assert (np.abs(spread - 1e6) < 2e5).all()


def test_prior_predictive_is_the_prior(eight):
    """mu ~ N(0, 5^2): its mean and sd from 4,000 draws, 5 standard errors."""
    prior = mt.prior_predictive(eight[0], num_draws=4000)
    mu = prior["prior"]["mu"].values
    assert abs(mu.mean()) < 5 * 5 / 4000**0.5
    assert abs(mu.std() - 5) < 5 * 5 / 8000**0.5
    assert prior["prior_predictive"]["y"].dims == ("chain", "draw", "school")


def test_draws_and_means_do_not_depend_on_the_batch(logistic):
    _, trace = logistic
    first, second = (mt.predict(trace, law, (X, LABELS), batch=n) for n in (600, 77))
    np.testing.assert_array_equal(first.draws["y"], second.draws["y"])
    np.testing.assert_allclose(first.mean["y"], second.mean["y"])
    logits = X @ pooled(trace, "w")["w"].T
    np.testing.assert_allclose(first.mean["y"], (1 / (1 + np.exp(-logits))).mean(axis=1))


def test_rows_of_a_source_are_put_in_order(logistic):
    _, trace = logistic
    source = mt.sources.from_arrays((X, LABELS), page_rows=50)
    first = mt.predict(trace, law, (X, LABELS), num_draws=50)
    second = mt.predict(trace, law, source, num_draws=50, batch=20)
    np.testing.assert_allclose(first.mean["y"], second.mean["y"])
    np.testing.assert_array_equal(first.draws["y"], second.draws["y"])
    stream = mt.stream(source, window_rows=200)
    streamed = mt.dataset(log_prior, log_likelihood, stream, {"w": jnp.zeros(3)}, batch_size=20)
    np.testing.assert_allclose(
        mt.log_likelihood(trace, streamed)["log_likelihood"]["datum"],
        mt.log_likelihood(trace, logistic[0])["log_likelihood"]["datum"],
    )


def test_draws_of_a_run_log_are_read_where_they_are_used(logistic, tmp_path):
    target, _ = logistic
    trace = mt.sample(target, fast(target), num_draws=200, num_warmup=100, out=tmp_path / "run")
    stored = mt.load(tmp_path / "run")
    few = mt.predict(stored, law, (X, LABELS), num_draws=40)
    assert few.num_draws == 40
    assert few.draws["y"].coords["draw"].values.tolist() == list(range(19, 200, 20))
    np.testing.assert_allclose(few.mean["y"], mt.predict(trace, law, (X, LABELS), 40).mean["y"])


def test_scores_are_scikit_learn_s(logistic):
    metrics = pytest.importorskip("sklearn.metrics")
    prediction = mt.predict(logistic[1], law, (X, LABELS))
    found = mt.scores(prediction, LABELS)["value"]
    p = prediction.mean["y"].values
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(LABELS, p), abs=1e-10)
    # the mean of a Bernoulli's density over draws is the density of its mean
    assert found["log_density"] == pytest.approx(-metrics.log_loss(LABELS, p), abs=1e-6)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(LABELS, p > 0.5))
    bins = np.digitize(p, np.linspace(0, 1, 11)[1:-1])
    ece = sum(abs((p - LABELS)[bins == b].sum()) for b in range(10)) / len(p)
    assert found["ece"] == pytest.approx(ece, abs=1e-12)


def test_scores_of_numbers():
    """From the definitions, over all pairs of draws."""
    target = mt.density(lambda p: -0.5 * p["mu"] ** 2, {"mu": 0.0})
    trace = mt.sample(target, mt.hmc(target, step_size=0.8, num_steps=2), num_draws=100)
    x, y = jnp.arange(5.0), np.array([0.1, 2.0, -3.0, 3.5, 9.0])
    prediction = mt.predict(trace, lambda p, x: dist.Normal(p["mu"] * x, 1.0), x)
    found = mt.scores(prediction, y)
    draws = prediction.draws["y"].values.reshape(-1, 5)
    apart = np.abs(draws[:, None] - draws[None]).mean(axis=(0, 1))
    crps = np.abs(draws - y).mean(axis=0) - apart / 2
    assert found["value"]["crps"] == pytest.approx(crps.mean(), abs=1e-10)
    assert found["se"]["crps"] == pytest.approx(crps.std(ddof=1) / 5**0.5)
    rmse = np.sqrt(np.mean((prediction.mean["y"].values - y) ** 2))
    assert found["value"]["rmse"] == pytest.approx(rmse)
    low, high = prediction.interval(0.9)["y"].values.T
    assert found["value"]["coverage_90"] == np.mean((low <= y) & (y <= high))


def test_classes():
    target = mt.density(lambda p: -0.5 * jnp.sum(p["w"] ** 2), {"w": jnp.zeros(3)})
    trace = mt.sample(target, mt.hmc(target, step_size=0.8, num_steps=2), num_draws=100)
    y = np.array([0, 2, 1, 1])
    prediction = mt.predict(trace, lambda p, x: dist.Categorical(logits=p["w"] * x), jnp.ones(4))
    p = prediction.mean["y"].values
    assert p.shape == (4, 3)
    found = mt.scores(prediction, y)["value"]
    assert found["brier"] == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(axis=1).mean())
    assert found["log_density"] == pytest.approx(np.log(p[np.arange(4), y]).mean())


def test_a_number_without_noise():
    target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(2))
    trace = mt.sample(target, mt.hmc(target, step_size=0.8, num_steps=2), num_draws=100)
    prediction = mt.predict(trace, lambda x, row: x @ row, jnp.eye(2))
    mean = trace["posterior"]["position"].mean(("chain", "draw"))
    np.testing.assert_allclose(prediction.mean["y"], mean)
    assert list(mt.scores(prediction, np.zeros(2)).index) == ["rmse"]


def test_loo_of_a_subsample(logistic):
    """The estimate is within 5 of its subsampling errors of the elpd of all data."""
    target, trace = logistic
    full = arviz_stats.loo(mt.log_likelihood(trace, target))
    whole = mt.loo(trace, target, num_data=600)
    assert whole.elpd == pytest.approx(full.elpd)
    assert whole.subsampling_se == 0
    assert whole.se == pytest.approx(full.se, rel=0.01)
    part = mt.loo(trace, target, num_data=60)
    assert 0 < part.subsampling_se < full.se
    assert abs(part.elpd - full.elpd) < 5 * part.subsampling_se


def test_data_are_in_the_trace_while_they_are_few(eight, logistic, monkeypatch):
    np.testing.assert_array_equal(eight[1]["observed_data"]["y"], Y)
    assert eight[1]["posterior"]["twice"].dims == ("chain", "draw", "school")
    given = eight[1]["constant_data"]["sigma"]
    np.testing.assert_array_equal(given, SIGMA)
    assert given.dims == ("school",)
    assert list(eight[1]["constant_data"].data_vars) == ["sigma"]  # y is observed
    data = logistic[1]["constant_data"]
    np.testing.assert_array_equal(data["data_0"], X)
    np.testing.assert_array_equal(data["data_1"], LABELS)
    monkeypatch.setattr("momentem.targets.origin.SMALL", 100)
    target = mt.dataset(log_prior, log_likelihood, (X, LABELS), {"w": jnp.zeros(3)})
    few = mt.sample(target, fast(target), num_draws=10, num_warmup=0)
    assert "constant_data" not in few.children


def test_subsampled_plates(logistic):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", len(x), subsample_size=60) as i:
            labels = None if y is None else y[i]
            numpyro.sample("y", dist.Bernoulli(logits=x[i] @ w), obs=labels)

    target = mt.from_numpyro(model, X, LABELS)
    ours = mt.log_likelihood(logistic[1], target)["log_likelihood"]["y"]
    full = mt.log_likelihood(logistic[1], logistic[0])["log_likelihood"]["datum"]
    np.testing.assert_allclose(ours.values, full.values)
    prediction = mt.predict(logistic[1], target, (X[:90],))
    np.testing.assert_allclose(
        prediction.mean["y"], mt.predict(logistic[1], law, (X[:90], LABELS[:90])).mean["y"]
    )


def test_a_single_number_is_data_too():
    """One observed number, and a vector that is longer than the subsampled plate."""

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("one", dist.Normal(w, 1.0), obs=jnp.array(0.5))
        with numpyro.plate("data", len(x), subsample_size=2) as i:
            numpyro.sample("y", dist.Normal(w * x[i], 1.0), obs=y[i])
        numpyro.sample("long", dist.Normal(w, 1.0).expand([9]).to_event(1), obs=jnp.ones(9))

    target = mt.from_numpyro(model, jnp.ones(4), jnp.ones(4))
    whole = mt.density(lambda p: -0.5 * p["w"] ** 2, {"w": 0.0})
    trace = mt.sample(whole, mt.hmc(whole, 0.8, 2), num_draws=20, num_warmup=0)
    prediction = mt.predict(trace, target)
    assert prediction.draws["one"].shape == (4, 20)
    assert prediction.mean["one"].shape == ()
    found = mt.scores(prediction, {"one": 0.5, "y": np.ones(4), "long": np.ones(9)})
    assert "one: rmse" in found.index
    shapes = {name: x.shape for name, x in small_data(target.origin)["observed_data"].items()}
    assert shapes == {"one": (), "y": (4,), "long": (9,)}


CASES = {
    "a density": (
        lambda t, trace: mt.log_likelihood(trace, mt.density(lambda p: -(p["w"] ** 2), {"w": 0.0})),
        ValueError,
        "likelihood of its data, got a density alone; build it with momentem.dataset",
    ),
    "no data": (lambda t, trace: mt.predict(trace, law), ValueError, "new_data must be given"),
    "no function": (lambda t, trace: mt.predict(trace, 3.0, X), TypeError, "a target or a func"),
    "a target that cannot": (lambda t, trace: mt.predict(trace, t, X), ValueError, "give a func"),
    "no prior": (lambda t, trace: mt.prior_predictive(t), ValueError, "momentem.from_numpyro"),
    "lengths": (
        lambda t, trace: mt.scores(mt.predict(trace, law, (X, LABELS)), LABELS[:5]),
        ValueError,
        "row for each of the 600 data",
    ),
    "not finite": (
        lambda t, trace: mt.scores(mt.predict(trace, law, (X, LABELS)), LABELS * np.nan),
        ValueError,
        "y must be finite",
    ),
    "a group": (
        lambda t, trace: mt.plot(trace["posterior"]),
        ValueError,
        "got its group posterior",
    ),
    "a model": (
        lambda t, trace: mt.predict(trace, schools, (X, LABELS)),
        TypeError,
        "give the target that momentem.from_numpyro made",
    ),
    "too many": (
        lambda t, trace: mt.log_likelihood(trace, t),
        ValueError,
        "use momentem.loo",
    ),
}


@pytest.mark.usefixtures("without_jaxtyping")
@pytest.mark.parametrize("case", CASES)
def test_errors_say_what_to_write(case, logistic, monkeypatch):
    make, kind, message = CASES[case]
    if case == "too many":
        monkeypatch.setattr("momentem.predictive.log_likelihoods.MOST_NUMBERS", 1000)
    with pytest.raises(kind, match=message):
        make(*logistic)


def test_notes_say_what_new_data_are(eight, logistic):
    with pytest.raises(ValueError, match="matmul") as caught:
        mt.predict(logistic[1], law, (X[0], LABELS[0:3]))
    assert any("row[None]" in note for note in caught.value.__notes__)
    with pytest.raises((TypeError, ValueError)) as caught:
        mt.predict(eight[1], eight[0], {"sigma": np.ones((3, 5))})
    assert any("a row per datum" in note for note in caught.value.__notes__)


def test_scores_of_a_model_name_the_shape(eight):
    with pytest.raises(ValueError, match=r"'y' of \(8,\), got \(3,\)"):
        mt.scores(mt.predict(eight[1], eight[0]), Y[:3])


def test_arguments_and_data_of_a_model():
    with pytest.raises(TypeError, match=r"from_numpyro\(schools, sigma, y\)"):
        mt.from_numpyro(schools)
    target = mt.from_numpyro(schools, SIGMA, y=np.where(Y > 20, np.nan, Y))
    with pytest.raises(ValueError, match=r"data 'y', which are nan at \[0\]"):
        mt.sample(target, mt.hmc(target, 0.1, 1), num_draws=4)


def test_targets_and_samplers_print_in_a_line(eight, logistic):
    assert repr(logistic[0]) == "Target(w[3]; 3 numbers, float64; 600 data)"
    assert repr(eight[0]).startswith("Target(mu, tau, theta[8], twice[8]; 10 numbers")
    assert repr(mt.hmc(logistic[0], 0.1, 3)) == "Sampler(em._fixed of Kernel(kernels._hmc))"
    few = mt.dataset(log_prior, log_likelihood, (X, LABELS), {"w": jnp.zeros(3)}, batch_size=20)
    assert "in minibatches of 20" in repr(few)

"""from_numpyro: NumPyro's density and gradient, its sites, its subsampling, and clear errors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import constrain_fn, potential_energy

import momentem as mt
from momentem.bridges.foreign import usual_promotion
from momentem.pytrees import Static

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCHOOLS = {
    "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    "sigma": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
}


def schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    affine = dist.transforms.AffineTransform(mu, tau)
    with (
        numpyro.plate("J", J),
        handlers.reparam(config={"theta": TransformReparam()}),
    ):
        theta = numpyro.sample("theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def odd_supports(x):
    """Supports of every kind, one that depends on another site, a reparameterised site, scalars and
    matrices."""
    upper = numpyro.sample("upper", dist.Gamma(2.0, 1.0))
    numpyro.sample("below", dist.Uniform(-1.0, upper))
    numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("correlation", dist.LKJCholesky(3, 1.0))
    with handlers.reparam(config={"effect": LocScaleReparam(0.0)}):
        effect = numpyro.sample("effect", dist.Normal(upper, 2.0).expand([2]))
    numpyro.deterministic("total", jnp.sum(effect))
    numpyro.deterministic("count", jnp.arange(2))
    numpyro.factor("pull", -0.1 * jnp.sum(effect**2))
    numpyro.sample("x", dist.Poisson(upper), obs=x)


def looks_at_data(y):
    """A model that needs the values of its data to know its own shape."""
    num_groups = len(np.unique(y))
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([num_groups]).to_event(1))
    numpyro.sample("y", dist.Categorical(logits=effect), obs=y)


def with_parameter(y):
    scale = numpyro.param("scale", 2.0)
    mean = numpyro.sample("mean", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


MODELS = {
    "eight schools": (schools, (8, SCHOOLS["sigma"]), {"y": SCHOOLS["y"]}),
    "odd supports": (odd_supports, (np.array([1, 3, 2]),), {}),
    "looks at data": (looks_at_data, (np.array([0, 1, 2, 1]),), {}),
    "handlers around": (
        handlers.condition(schools, {"mu": 1.0}),
        (8, SCHOOLS["sigma"]),
        SCHOOLS | {},
    ),
}
MODELS["handlers around"][2].pop("sigma")


@pytest.mark.parametrize("name", MODELS)
def test_density_and_gradient_are_numpyro_s(key, name):
    model, args, kwargs = MODELS[name]
    target = mt.from_numpyro(model, *args, **kwargs)
    position = target.initial + jax.random.normal(key, target.initial.shape)

    def numpyro_s(position):
        with usual_promotion():
            return -potential_energy(model, args, kwargs, target.unravel(position))

    ours = jax.jit(lambda t, x: jax.value_and_grad(t.logdensity)(x))(target, position)
    theirs = jax.jit(jax.value_and_grad(numpyro_s))(position)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_draws_hold_constrained_and_deterministic_sites(key, name):
    model, args, kwargs = MODELS[name]
    target = mt.from_numpyro(model, *args, **kwargs)
    position = target.initial + jax.random.normal(key, target.initial.shape)
    ours = jax.jit(target.constrain)(position)
    with usual_promotion():
        free = target.unravel(position)
        theirs = jax.jit(lambda free: constrain_fn(model, args, kwargs, free, True))(free)
    assert ours.keys() == theirs.keys()
    for site in ours:
        np.testing.assert_allclose(ours[site], theirs[site], rtol=1e-12)
    back = jax.jit(target.unconstrain)(ours)
    np.testing.assert_allclose(back, position, rtol=1e-6, atol=1e-8)


def test_param_sites_are_held_where_they_start():
    target = mt.from_numpyro(with_parameter, jnp.array([1.0]))
    # N(0, 2^2) prior, N(mean, 1) likelihood: precision 1/4 + 1
    curvature = -jax.jit(jax.hessian(target.logdensity))(target.initial)[0, 0]
    np.testing.assert_allclose(curvature, 1.25)


def test_new_data_of_the_same_shape_do_not_trace_again():
    num_traces = 0

    @jax.jit
    def evaluate(target):
        nonlocal num_traces
        num_traces += 1
        return target.logdensity(target.initial)

    first = evaluate(mt.from_numpyro(schools, 8, SCHOOLS["sigma"], y=SCHOOLS["y"]))
    second = evaluate(mt.from_numpyro(schools, 8, SCHOOLS["sigma"], y=SCHOOLS["y"] + 1))
    assert num_traces == 1
    assert first != second


def test_starts_may_be_given_without_what_is_computed_from_them():
    target = mt.from_numpyro(schools, 8, SCHOOLS["sigma"], y=SCHOOLS["y"])
    sampler = mt.hmc(target, step_size=0.1, num_steps=2)
    starts = {"mu": jnp.zeros(2), "tau": jnp.ones(2), "theta_base": jnp.zeros((2, 8))}
    options = {"num_draws": 4, "num_warmup": 0, "num_chains": 2}
    trace = mt.sample(target, sampler, positions=starts, **options)
    assert set(trace["posterior"].data_vars) == {"mu", "tau", "theta", "theta_base"}
    with pytest.raises(ValueError, match="positions must be like initial"):
        mt.sample(target, sampler, positions=starts | {"tua": jnp.ones(2)}, **options)


N, HALF = 30, 5
X = np.random.default_rng(0).normal(size=(N, 2))
Y = (X[:, 0] + np.random.default_rng(1).normal(size=N) > 0).astype(int)


def prior():
    bias = numpyro.sample("bias", dist.StudentT(3.0, 0.0, 1.0))
    return bias, numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([2]).to_event(1))


def indexed(x, y, n=2 * HALF):
    bias, weights = prior()
    with numpyro.plate("data", len(x), subsample_size=n) as indices:
        logits = numpyro.deterministic("logits", x[indices] @ weights + bias)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y[indices])


def subsampled(x, y, n=2 * HALF):
    bias, weights = prior()
    with numpyro.plate("data", len(x), subsample_size=n):
        batch, labels = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=batch @ weights + bias), obs=labels)


@jax.jit
def gradients(target, position):
    """Estimates from every pair of halves that starts at the same row or 7 rows apart."""
    first = jnp.arange(N)
    pairs = jnp.stack([first, (first + 7) % N], axis=1)
    return jax.vmap(target.noisy_gradient, in_axes=(0, None))(pairs, position)


def bias_of_minibatches(target, position):
    """How far the mean over all minibatches is from the whole: 0 but for rounding."""
    found = gradients(target, position)
    value, gradient = jax.jit(jax.value_and_grad(target.logdensity))(position)
    return max(
        float(jnp.max(jnp.abs(jnp.mean(found.gradient, axis=0) - gradient))),
        float(jnp.abs(jnp.mean(found.logdensity) - value)),
    )


@pytest.mark.parametrize("model", [indexed, subsampled])
def test_minibatches_are_unbiased(key, model):
    target = mt.from_numpyro(model, X, Y)
    assert isinstance(target, mt.StochasticTarget)
    position = jax.random.normal(key, (3,))
    assert bias_of_minibatches(target, position) < 1e-10


def test_minibatches_without_their_scale_are_caught(key, monkeypatch):
    def unscaled(plate, msg):
        process(plate, msg)
        if msg["type"] == "sample":
            msg["scale"] = None

    def sabotaged(x, y):  # a model of its own: the compiled program of another would be right
        indexed(x, y)

    process = numpyro.plate.process_message
    target = mt.from_numpyro(sabotaged, X, Y)
    monkeypatch.setattr(numpyro.plate, "process_message", unscaled)
    assert bias_of_minibatches(target, jax.random.normal(key, (3,))) > 1


def test_all_data_are_those_of_the_model_without_subsampling(key):
    position = jax.random.normal(key, (3,))
    part, whole = mt.from_numpyro(indexed, X, Y), mt.from_numpyro(indexed, X, Y, n=None)
    assert isinstance(whole, mt.Target)
    found, expected = jax.jit(part.logdensity)(position), jax.jit(whole.logdensity)(position)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert jax.eval_shape(part.constrain, position).keys() == {"bias", "weights"}
    assert jax.eval_shape(whole.constrain, position).keys() == {"bias", "weights", "logits"}


def test_minibatches_agree_with_a_dataset_of_the_same_model(key):
    def log_prior(p):
        student = dist.StudentT(3.0, 0.0, 1.0).log_prob(p["bias"])
        return student + jnp.sum(dist.Normal(0.0, 2.0).log_prob(p["weights"]))

    def log_likelihood(p, datum):
        return dist.Bernoulli(logits=datum[0] @ p["weights"] + p["bias"]).log_prob(datum[1])

    initial = {"bias": 0.0, "weights": jnp.zeros(2)}
    with usual_promotion():
        ours = mt.dataset(log_prior, log_likelihood, (X, Y), initial, batch_size=2 * HALF)
        bridged = mt.from_numpyro(indexed, X, Y)
        position = jax.random.normal(key, (3,))
        expected, found = gradients(ours, position), gradients(bridged, position)
        curvatures = [jax.jit(t.prior_curvature)(position) for t in (ours, bridged)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found, expected)
    np.testing.assert_allclose(curvatures[1], curvatures[0], atol=1e-12)
    assert bridged.information_scale == ours.information_scale
    batches = bridged.batches(key, Static(4))
    np.testing.assert_array_equal(batches, ours.batches(key, Static(4)))


def observed_only(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def discrete(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def certain(y):
    mean = numpyro.sample("mean", dist.Delta(0.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def scoped(y):
    with handlers.scope(prefix="a"):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def local(y):
    with numpyro.plate("data", len(y), subsample_size=2) as indices:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[indices])


def two_plates(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    for name in ("a", "b"):
        with numpyro.plate(name, len(y), subsample_size=2) as indices:
            numpyro.sample(f"y{name}", dist.Normal(mean, 1.0), obs=y[indices])


def unindexed(y, n=4):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=n):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def outside(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=4) as indices:
        batch = y[indices]
    numpyro.sample("y", dist.Normal(mean, 1.0).expand(batch.shape), obs=batch)


CASES = {
    "no function": (3.0, (), TypeError, "model must be a function, got 3.0"),
    "nothing latent": (
        observed_only,
        (),
        ValueError,
        r"must have a latent site.*got sites \['y'\]",
    ),
    "discrete": (
        discrete,
        (),
        ValueError,
        "must be continuous, got 'z' of Bernoulli.*; sum it out",
    ),
    "certain": (certain, (), ValueError, "must be random, got 'mean' of Delta; use numpyro.det"),
    "slash": (scoped, (), ValueError, "parameter named 'a/mean': names must be"),
    "local": (local, (), ValueError, "got 'mean' inside 'data'; drop subsample_size"),
    "two plates": (two_plates, (), ValueError, r"one plate at most, got \['a', 'b'\]; drop"),
    "odd": (unindexed, (3,), ValueError, "subsample_size of plate 'data' must be even.*got 3"),
    "not indexed": (unindexed, (), ValueError, "data in plate 'data' must be indexed"),
    "one row not indexed": (unindexed, (2,), ValueError, "with 1 indices, 'y' has 6 rows"),
    "outside": (outside, (), ValueError, "'y' must be inside plate 'data'"),
}


@pytest.mark.usefixtures("without_jaxtyping")
@pytest.mark.parametrize("case", CASES)
def test_errors_name_what_is_wrong(case):
    model, options, kind, message = CASES[case]
    with pytest.raises(kind, match=message):
        mt.from_numpyro(model, np.arange(6.0), *options)

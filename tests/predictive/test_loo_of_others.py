"""Leave-one-out, comparisons and predictions of our runs against NumPyro's and PyMC's own.

Each library samples by itself, so that both runs have Monte Carlo errors. That of an elpd is taken
from the elpd of every chain alone; 5 errors of the difference of two runs of eight chains have a
false-alarm rate below 2e-3 (Student's t with 7 degrees of freedom on either side), and seeds are
fixed. It is a small part of ArviZ's `se`, which is over data: both are looked at.
"""

import arviz_base
import arviz_stats
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS, Predictive

import momentem as mt
from momentem.bridges.foreign import usual_promotion

pytestmark = [
    pytest.mark.validate,
    pytest.mark.usefixtures("quick_compilation"),
    # a chain alone has few draws for a school; ArviZ's use of pandas
    pytest.mark.filterwarnings("ignore:Estimated shape parameter", "ignore:The inplace keyword"),
]

CHAINS, DRAWS = 8, 1000
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
RNG = np.random.default_rng(7)
COUNTY = np.sort(RNG.integers(30, size=300))
FLOOR = RNG.integers(2, size=300).astype(float)
RADON = 1.3 + 0.4 * RNG.normal(size=30)[COUNTY] - 0.7 * FLOOR + 0.7 * RNG.normal(size=300)


def schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sigma)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def one_school(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("school", len(sigma)):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def radon(county, floor, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("counties", 30):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("house", len(floor)):
        numpyro.sample("y", dist.Normal(level + spread * z[county] + slope * floor, noise), obs=y)


def no_counties(county, floor, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("house", len(floor)):
        numpyro.sample("y", dist.Normal(level + slope * floor, noise), obs=y)


CASES = {
    "eight schools": (schools, one_school, (SIGMA,), Y),
    "radon": (radon, no_counties, (COUNTY, FLOOR), RADON),
}


def ours(model, args, y):
    target = mt.from_numpyro(model, *args, y=y)
    return target, mt.log_likelihood(
        mt.sample(target, num_draws=DRAWS, num_chains=CHAINS, seed=2), target
    )


def theirs(model, args, y):
    with usual_promotion():
        mcmc = MCMC(
            NUTS(model, target_accept_prob=0.95),
            num_warmup=500,
            num_samples=DRAWS,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(1), *args, y=y)
        return mcmc, arviz_base.from_numpyro(mcmc, log_likelihood=True)


def elpd(trace):
    """The elpd, and its Monte Carlo error."""
    parts = [arviz_stats.loo(trace.isel(chain=[i])).elpd for i in range(CHAINS)]
    return arviz_stats.loo(trace), np.std(parts, ddof=1) / CHAINS**0.5


def agree(one, other):
    (a, a_error), (b, b_error) = elpd(one), elpd(other)
    error = np.hypot(a_error, b_error)
    print(f"elpd {a.elpd:.3f} {b.elpd:.3f}, Monte Carlo error {error:.3f}, se {a.se:.3f}")
    assert abs(a.elpd - b.elpd) < 5 * error < a.se
    assert a.se == pytest.approx(b.se, rel=0.05)
    assert a.p == pytest.approx(b.p, abs=5 * error)
    return error


def tables_agree(pairs, errors):
    """The same order, and differences alike, by `compare` of our traces and of theirs."""
    mine, others = (arviz_stats.compare({k: p[i] for k, p in pairs.items()}) for i in (0, 1))
    assert list(mine.index) == list(others.index)
    apart = (mine["elpd"] - mine["elpd"].max()) - (others["elpd"] - others["elpd"].max())
    assert (abs(apart) < 5 * np.hypot(*errors)).all()
    np.testing.assert_allclose(mine["dse"], others["dse"], rtol=0.1, atol=5 * max(errors))


@pytest.mark.parametrize("name", CASES)
def test_loo_and_compare_are_numpyro_s(name):
    first, second, args, y = CASES[name]
    pairs = {
        model.__name__: (ours(model, args, y)[1], theirs(model, args, y)[1])
        for model in (first, second)
    }
    tables_agree(pairs, [agree(*pair) for pair in pairs.values()])


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_numpyro_s(name):
    """Means and quantiles of 8,000 draws of each datum; the error of a mean is that of independent
    draws, because noise is most of it, with a tenth for autocorrelation; of a quantile, that times
    2.1 (a density at the 5 % quantile of .103 / sd). 5 errors, 300 data: a false alarm in 4e-4."""
    model, _, args, y = CASES[name]
    target, trace = ours(model, args, y)
    mcmc, _ = theirs(model, args, y)
    with usual_promotion():
        drawn = np.asarray(Predictive(model, mcmc.get_samples())(jax.random.key(5), *args)["y"])
    told = mt.predict(trace, target, num_draws=None)
    error = 1.1 * np.sqrt(2 / len(drawn)) * drawn.std(axis=0)
    assert (
        abs(told.draws["y"].mean(("chain", "draw")).values - drawn.mean(axis=0)) < 5 * error
    ).all()
    interval = told.interval(0.9)["y"].values
    quantiles = np.quantile(drawn, [0.05, 0.95], axis=0)
    assert (abs(interval.T - quantiles) < 5 * 2.1 * error).all()


def test_loo_and_compare_are_pymc_s():
    pm = pytest.importorskip("pymc")
    pairs = {}
    for name in ("line", "flat"):
        with pm.Model() as model:
            level = pm.Normal("level", 0.0, 5.0)
            slope = pm.Normal("slope", 0.0, 5.0) if name == "line" else 0.0
            noise = pm.HalfNormal("noise", 2.0)
            pm.Normal("y", level + slope * FLOOR, noise, observed=RADON)
            settings = {"progressbar": False, "random_seed": 3, "cores": 1}
            drawn = pm.sample(DRAWS, tune=500, chains=CHAINS, **settings)
            pm.compute_log_likelihood(drawn, progressbar=False)
        target = mt.from_pymc(model)
        trace = mt.sample(target, num_draws=DRAWS, num_chains=CHAINS, seed=2)
        as_tree = arviz_base.from_dict(
            {g: {n: x.values for n, x in drawn[g].items()} for g in ("posterior", "log_likelihood")}
        )
        pairs[name] = mt.log_likelihood(trace, target), as_tree
    tables_agree(pairs, [agree(*pair) for pair in pairs.values()])

"""ArviZ's own plots on our trace: with the pins of the extra `arviz`, all of them draw."""

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from packaging.version import Version

import momentem as mt

matplotlib = pytest.importorskip("matplotlib")
if Version(matplotlib.__version__) >= Version("3.11"):
    pytest.skip("arviz-plots 0.8 needs Matplotlib < 3.11", allow_module_level=True)
matplotlib.use("agg")
plots = pytest.importorskip("arviz_plots")

# arviz-plots 0.8 makes these of several others, by Dataset(Dataset), which xarray 2026.4 refuses
COMBINED = {"plot_dgof_dist", "plot_rank_dist", "plot_trace_dist"}
OPTIONS = {
    "plot_bf": {"var_names": "level"},
    "plot_lm": {"x": "x", "y": "y"},
    "plot_pair_focus": {"focus_var": "level"},
    "plot_ppc_pava_residuals": {"x_var": "x"},
}
BINARY = {"plot_ppc_pava", "plot_ppc_pava_residuals"}
RUNS = {"plot_ecdf_pit"}  # of simulation-based calibration, which is many runs
NAMES = sorted(n for n in dir(plots) if n.startswith("plot_") and callable(getattr(plots, n)))


def model(x, law, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    with numpyro.plate("place", 3):
        effects = numpyro.sample("effects", dist.Normal(0.0, 2.0))
    with numpyro.plate("datum", len(x)):
        numpyro.sample("y", law(level + effects.sum() * x), obs=y)


def counts(line):
    return dist.Poisson(jnp.exp(line / 4))


def hits(line):
    return dist.Bernoulli(logits=line)


def everything(law):
    """A trace with all groups of ArviZ."""
    x, rng = np.linspace(-2.0, 2.0, 40), np.random.default_rng(0)
    y = rng.poisson(2.0, 40) if law is counts else rng.integers(2, size=40)
    target = mt.from_numpyro(model, x, law, y=y)
    sampler = mt.hmc(target, 0.3, 5, mass=mt.diagonal_mass(np.ones(4)))
    trace = mt.log_likelihood(mt.sample(target, sampler, 200, num_warmup=50), target)
    for name, group in mt.prior_predictive(target, num_draws=200).children.items():
        trace[name] = group
    told = mt.predict(trace, target, num_draws=None).draws
    trace["posterior_predictive"] = xarray.DataTree(told)
    posterior = trace["posterior"].to_dataset()
    trace["log_prior"] = xarray.DataTree(-0.5 * (posterior / 2) ** 2)
    return trace


@pytest.fixture(scope="module")
def traces(quick_compilation):
    return {"counts": everything(counts), "hits": everything(hits)}


@pytest.mark.filterwarnings("ignore")  # theirs of each other's pandas
@pytest.mark.parametrize("name", [name for name in NAMES if name not in RUNS])
def test_a_plot_of_arviz(name, traces):
    from matplotlib import pyplot

    if name in COMBINED and Version(xarray.__version__) >= Version("2026.4"):
        pytest.skip("arviz-plots 0.8 needs xarray < 2026.4 for this plot: momentem[arviz]")
    given = trace = traces["hits" if name in BINARY else "counts"]
    if name == "plot_compare":
        given = arviz_stats.compare({"one": trace, "two": trace})
    if name == "plot_khat":
        given = arviz_stats.loo(trace, pointwise=True)
    getattr(plots, name)(given, **OPTIONS.get(name, {}))
    assert pyplot.get_fignums()
    pyplot.close("all")


def test_the_plots_are_all_there():
    assert len(NAMES) > 30

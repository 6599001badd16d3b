"""Leave-one-out cross-validation, of all data or estimated from a subsample of them.

    elpd = sum_i a_i + (N/m) sum_{i in sample} (e_i - a_i)

e_i is the PSIS-LOO of datum i, and a_i its log predictive density from a few draws, which costs one
pass over the data (the difference estimator of Magnusson et al. 2020). The estimate is unbiased in
the choice of the sample, whatever a_i is.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.checks import check_count
from momentem.predictive.draws import check_posterior
from momentem.predictive.log_likelihoods import term_arrays
from momentem.targets._minibatch import AnyTarget

if TYPE_CHECKING:
    import xarray

__all__ = ["loo"]

ROUGH_DRAWS = 32


def loo(trace: "xarray.DataTree", target: AnyTarget, num_data: int = 1000, seed: int = 0) -> Any:
    """Return the PSIS-LOO of a model, estimated from a random subsample of its data.

    Args:
        trace: what `sample` returned.
        target: the target that was sampled, with a likelihood.
        num_data: data in the subsample. With as many as there are, nothing is estimated.
        seed: of the subsample.

    Returns:
        ArviZ's `ELPDData`. `elpd` is of all data, `se` its standard error over data, and
        `subsampling_se` that of the estimate from a subsample.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.linspace(-2.0, 2.0, 500), 0.0)
        >>> found = mt.loo(mt.sample(target), target, num_data=50)
        >>> found.n_data_points, found.subsample_size
        (500, 50)
    """
    import arviz_stats
    from arviz_base import dict_to_dataset
    from arviz_stats.utils import ELPDData
    from scipy.special import logsumexp
    from xarray import DataTree

    check_posterior(trace)
    check_count(2, num_data=num_data)
    num_chains, num_draws = (trace["posterior"].sizes[axis] for axis in ("chain", "draw"))
    every = max(1, num_chains * num_draws // ROUGH_DRAWS)
    few = term_arrays(
        trace, target, slice(every - 1, None, every) if every < num_draws else slice(-1, None)
    )
    flat = np.concatenate([values.reshape(len(values), -1) for values in few.values()], axis=1)
    rough = logsumexp(flat, axis=0) - np.log(len(flat))
    total = len(rough)
    size = min(num_data, total)
    places = np.sort(np.random.default_rng(seed).choice(total, size, replace=False))
    (terms,) = term_arrays(trace, target, slice(None), places).values()
    terms = terms.reshape(num_chains, num_draws, size)
    sample = DataTree()
    sample["posterior"] = trace["posterior"].copy()
    sample["log_likelihood"] = DataTree(dict_to_dataset({"datum": terms}))
    found: Any = arviz_stats.loo(sample, pointwise=True)
    exact, rough_here = found.elpd_i.values, rough[places]
    difference = exact - rough_here
    elpd = rough.sum() + total * difference.mean()
    squares = (rough**2).sum() + total * (exact**2 - rough_here**2).mean()
    variance = max(0.0, squares / total - (elpd / total) ** 2)
    spread = difference.std(ddof=1) * np.sqrt(max(0.0, 1 - size / total) / size)
    lpd = logsumexp(terms, axis=(0, 1)) - np.log(num_chains * num_draws)
    return ELPDData(
        kind="loo",
        elpd=float(elpd),
        se=float(np.sqrt(total * variance)),
        p=float(total * (lpd - exact).mean()),
        n_samples=num_chains * num_draws,
        n_data_points=total,
        scale="log",
        warning=found.warning,
        good_k=found.good_k,
        elpd_i=found.elpd_i,
        pareto_k=found.pareto_k,
        subsampling_se=float(total * spread),
        subsample_size=size,
        loo_subsample_observations=places,
    )

"""What to make of a trace: a summary table, and warnings of trouble with their remedies."""

import warnings
from collections.abc import Iterator
from typing import Any

import arviz_stats
import numpy as np
from arviz_base import dict_to_dataset
from xarray import Dataset, DataTree

__all__ = ["SamplingWarning", "summary", "warn_of_trouble"]

MAX_RHAT = 1.01  # Vehtari et al. (2021), section 4
MIN_ESS_PER_CHAIN = 100  # likewise
MAX_HEAT = 0.02  # of the kinetic temperature, beyond its Monte Carlo error
MAX_BIAS = 0.1  # eps lambda_max(M^-1 Bhat)
MAX_CHECKED = 1000  # scalars; of more, every so manieth, because each takes about a millisecond


class SamplingWarning(UserWarning):
    """The draws may not represent the posterior."""


def summary(trace: DataTree, **options: Any) -> Any:
    """Mean, sd, interval, ESS, R-hat and MCSE of every parameter, as a pandas DataFrame (ArviZ's
    summary).

    Args:
        trace: what `sample` returned.
        **options: as for `arviz_stats.summary`.

    Examples:
        >>> import momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x**2, initial=0.0)
        >>> trace = mt.sample(target, mt.hmc(target, step_size=1.0, num_steps=2))
        >>> "r_hat" in mt.summary(trace)
        True
    """
    if "posterior" not in trace.children:
        raise ValueError(
            "trace has no posterior draws to summarise: the run was cut in its warm-up"
        )
    return arviz_stats.summary(trace, **options)


def warn_of_trouble(trace: DataTree) -> None:
    """Warns of divergences, of high R-hat and low ESS, of refused M-steps and of an interrupted
    run."""
    for message in _troubles(trace):
        warnings.warn(message, SamplingWarning, stacklevel=3)


def _troubles(trace: DataTree) -> list[str]:
    found = []
    if trace.attrs["is_interrupted"]:
        draws, warmup = (
            trace[group].sizes["draw"] if group in trace.children else 0
            for group in ("posterior", "warmup_posterior")
        )
        found.append(f"interrupted: {draws} draws per chain were kept, and {warmup} of warm-up")
    if "em" in trace.children and not trace["em"].sizes["m_step"]:
        found.append("warm-up ended before the first M-step: nothing was learnt; warm up longer")
    if "em" in trace.children and (refused := int(trace["em"].to_dataset()["is_refused"].sum())):
        found.append(
            f"{refused} of {trace['em'].sizes['m_step']} M-steps were refused, their estimate was "
            "not positive "
            "definite: raise the size of the E-step, or start from a heavier mass if few moves are "
            "accepted"
        )
    if "posterior" not in trace.children:
        return found
    is_diverging = trace["sample_stats"].to_dataset()["diverging"].values
    if count := int(is_diverging.sum()):
        found.append(
            f"{count} of {is_diverging.size} draws diverged, so parts of the posterior may be "
            "missing: lower the "
            "step size or reparametrise"
        )
    found += _stochastic_troubles(trace)
    # chains that never moved have 0 / 0 for an R-hat: reported as nan
    with np.errstate(all="ignore"):
        return found + _convergence_troubles(trace)


def _stochastic_troubles(trace: DataTree) -> list[str]:
    """Of samplers without a Metropolis step: the draws' temperature, and the noise's share."""
    stats = trace["sample_stats"].to_dataset()
    if "kinetic_temperature" not in stats:
        return []
    found = []
    chains = stats["kinetic_temperature"].mean("draw")
    temperature, error = float(chains.mean()), float(chains.std()) / max(1, len(chains)) ** 0.5
    if not abs(temperature - 1) <= MAX_HEAT + 5 * error:
        found.append(
            f"kinetic temperature is {temperature:.3f}, should be 1: the gradient noise is not "
            "accounted for; learn it (m_steps.noise), use a thermostat, or lower the step size"
        )
    bias = float(stats["bias_scale"].max())
    if bias > MAX_BIAS:
        found.append(
            f"bias scale is {bias:.2g}, above {MAX_BIAS}: covariances may be off by as much; lower "
            "the step size, raise the batch size, or use control variates"
        )
    return found


def _convergence_troubles(trace: DataTree) -> list[str]:
    posterior = trace["posterior"].to_dataset()
    num_chains, num_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    if num_chains < 2 or num_draws < 4:
        return [f"{num_chains} chains of {num_draws} draws are too few to judge: run more"]
    # a scalar that never moves in any chain is fixed by its constraint, unless all are: then
    # nothing moved
    scalars = list(_scalars(posterior))
    scalars = [item for item in scalars if np.ptp(item[1]) > 0] or scalars
    stride = -(-len(scalars) // MAX_CHECKED)
    checked = dict_to_dataset(dict(scalars[::stride]))
    scope = f" (checked {len(checked)} of {len(scalars)} scalars)" if stride > 1 else ""

    found = []
    name, rhat = _worst(arviz_stats.rhat(checked), largest=True)
    if not rhat <= MAX_RHAT:
        found.append(
            f"R-hat is {rhat:.4g} for {name}, above {MAX_RHAT}{scope}: the chains have not mixed; "
            "draw more, or warm up longer"
        )
    for method in ("bulk", "tail"):
        name, ess = _worst(arviz_stats.ess(checked, method=method), largest=False)
        if not ess >= MIN_ESS_PER_CHAIN * num_chains:
            found.append(
                f"{method} ESS is {ess:.0f} for {name}, below {MIN_ESS_PER_CHAIN} per chain{scope}:"
                " draw more"
            )
    return found


def _scalars(posterior: Dataset) -> Iterator[tuple[str, np.ndarray]]:
    """Every scalar of the posterior by name, as (chain, draw)."""
    for name, array in posterior.data_vars.items():
        for where in np.ndindex(array.shape[2:]):
            label = f"{name}[{', '.join(map(str, where))}]" if where else str(name)
            yield label, array.values[(slice(None), slice(None), *where)]


def _worst(diagnostic: Dataset, largest: bool) -> tuple[str, float]:
    """The name and value of the scalar that looks worst; NaN is worst of all."""
    values = {str(name): float(value) for name, value in diagnostic.items()}
    sign = 1 if largest else -1
    name = max(values, key=lambda name: np.nan_to_num(sign * values[name], nan=np.inf))
    return name, values[name]

"""What to make of a trace: a summary table, and warnings of trouble with their remedies."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from momentem.run.health import Troubles, warn

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Convergence",
    "convergence",
    "is_short",
    "summary",
    "warn_of_trouble",
]

MAX_RHAT = 1.01  # Vehtari et al. (2021), section 4
MIN_ESS_PER_CHAIN = 100  # likewise
APART = 1.1  # R-hat above which chains are somewhere else, not short
MAX_HEAT = 0.02  # of the kinetic temperature, beyond its Monte Carlo error
MAX_BIAS = 0.1  # eps lambda_max(M^-1 Bhat)
MAX_CHECKED = 1000  # scalars; of more, every so manieth, because each takes about a millisecond
MAX_NUMBERS = 10**7  # of draws of those scalars, and of more, every so manieth draw,
MIN_DRAWS = 1000  # as long as so many are left in a chain
BLOCK_BYTES = 2**25  # that are read from a run log at a time


class Convergence(NamedTuple):
    """Names and values of the scalars that look worst, and which were looked at."""

    rhat: tuple[str, float]
    sizes: dict[str, tuple[str, float]]  # ESS by method
    scope: str
    wanted: int  # ESS
    streamed: list[str]  # troubles of parameters that are not kept


def summary(trace: "xarray.DataTree", **options: Any) -> Any:
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
    import arviz_stats

    return arviz_stats.summary(trace, **options)


def warn_of_trouble(
    trace: "xarray.DataTree",
    found: Convergence | None,
    warmup: Troubles,
    draws: Troubles,
    is_judged: bool = True,
) -> None:
    """Warns of divergences, of numbers that are not finite, of high R-hat and low ESS, of refused
    M-steps and of an interrupted run.

    Args:
        trace: of the run.
        found: its `convergence`.
        warmup: troubles of its warm-up, counted at every iteration.
        draws: likewise, of its draws.
        is_judged: whether R-hat and ESS are warned of, and that they cannot be known.
    """
    for message in _messages(trace, warmup, draws):
        warn(message)
    if not is_judged or "posterior" not in trace.children:
        return
    if found is None:
        chains, draws_kept = (trace["posterior"].sizes[axis] for axis in ("chain", "draw"))
        warn(f"{chains} chains of {draws_kept} draws are too few to judge: run more")
        return
    for message in _convergence_troubles(found):
        warn(message)


def _messages(trace: "xarray.DataTree", warmup: Troubles, draws: Troubles) -> list[str]:
    found = []
    if trace.attrs["is_interrupted"]:
        kept = [
            trace[group].sizes["draw"] if group in trace.children else 0
            for group in ("posterior", "warmup_posterior")
        ]
        found.append(f"interrupted: {kept[0]} draws per chain were kept, and {kept[1]} of warm-up")
    if "em" in trace.children and not trace["em"].sizes["m_step"]:
        found.append("warm-up ended before the first M-step: nothing was learnt; warm up longer")
    if "em" in trace.children and (refused := int(trace["em"].to_dataset()["is_refused"].sum())):
        found.append(
            f"{refused} of {trace['em'].sizes['m_step']} M-steps were refused, their estimate was "
            "not positive "
            "definite: raise the size of the E-step, or start from a heavier mass if few moves are "
            "accepted"
        )
    both = warmup + draws
    if both.draws.times:
        found.append(
            f"{both.draws.times} numbers among the draws are not finite, {both.draws.where()}: the "
            "parameter overflows; give it another constraint or a tighter prior"
        )
    if both.densities.times:
        found.append(
            "the log density was not finite where it was looked at, "
            f"{both.densities.times} times, {both.densities.where()}, and this sampler goes by "
            "gradients alone: give the parameter that left its support a constraint"
        )
    if draws.diverging.times:
        found.append(
            f"{draws.diverging.times} of {trace.attrs['num_transitions']} draws diverged, "
            f"{draws.diverging.where()}, so parts of the posterior may be missing: lower the step "
            "size or reparametrise"
        )
    if "posterior" not in trace.children:
        return found
    return found + _stochastic_troubles(trace)


def _stochastic_troubles(trace: "xarray.DataTree") -> list[str]:
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


def convergence(trace: "xarray.DataTree") -> Convergence | None:
    """R-hat and ESS of a trace where they are worst; None if it is too short to tell."""
    import arviz_stats  # a second to import: not before it is needed

    sizes = trace["posterior"].sizes if "posterior" in trace.children else {}
    if sizes.get("chain", 0) < 2 or sizes.get("draw", 0) < 4:
        return None
    wanted = MIN_ESS_PER_CHAIN * sizes["chain"]
    # chains that never moved have 0 / 0 for an R-hat: reported as nan
    with np.errstate(all="ignore"):
        checked, scope = _checked(trace["posterior"].to_dataset())
        return Convergence(
            _worst(arviz_stats.rhat(checked), largest=True),
            {
                method: _worst(arviz_stats.ess(checked, method=method), largest=False)
                for method in ("bulk", "tail")
            },
            scope,
            wanted,
            _streamed_troubles(trace, wanted),
        )


def is_short(found: Convergence | None) -> bool:
    """Whether R-hat or ESS would be warned of, and more draws of the same would help."""
    if found is None or not found.rhat[1] <= APART:
        return False
    return bool(_convergence_troubles(found))


def _convergence_troubles(of: Convergence) -> list[str]:
    found, (name, rhat) = [], of.rhat
    if not rhat <= MAX_RHAT:
        found.append(
            f"R-hat is {rhat:.4g} for {name}, above {MAX_RHAT}{of.scope}: the chains have not "
            "mixed; draw more, or warm up longer"
        )
    for method, (name, ess) in of.sizes.items():
        if not ess >= of.wanted:
            found.append(
                f"{method} ESS is {ess:.0f} for {name}, below {MIN_ESS_PER_CHAIN} per chain"
                f"{of.scope}: draw more"
            )
    return found + of.streamed


def _streamed_troubles(trace: "xarray.DataTree", wanted: int) -> list[str]:
    """Of parameters that were not kept. What never moved has no size, and is no trouble here."""
    if "posterior_ess" not in trace.children:
        return []
    name, ess = _worst(trace["posterior_ess"].to_dataset().fillna(np.inf).min(), largest=False)
    if not ess < wanted:
        return []
    least = f"{MIN_ESS_PER_CHAIN} per chain"
    return [f"ESS is {ess:.0f} for {name}, which is not kept, below {least}: draw more"]


def _checked(posterior: "xarray.Dataset") -> tuple["xarray.Dataset", str]:
    """Scalars of the posterior by name, (chain, draw), and a word on which, if they are not all."""
    from arviz_base import dict_to_dataset

    num_chains, num_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    sizes = {name: array.size // (num_chains * num_draws) for name, array in posterior.items()}
    total = sum(sizes.values())
    stride = -(-total // MAX_CHECKED)
    numbers = -(-total // stride) * num_chains * num_draws
    skip = max(1, min(numbers // MAX_NUMBERS, num_draws // MIN_DRAWS))
    scalars, first = [], 0
    for name, array in posterior.items():
        chosen = range(-first % stride, sizes[name], stride)
        scalars += _scalars(str(name), array, chosen, skip)
        first += sizes[name]
    # a scalar that never moves in any chain is fixed by its constraint, unless all are: then
    # nothing moved
    scalars = [item for item in scalars if np.ptp(item[1]) > 0] or scalars
    parts = [f"{len(scalars)} of {total} scalars"] if stride > 1 else []
    parts += [f"every {skip}th draw"] if skip > 1 else []
    return dict_to_dataset(dict(scalars)), f" (checked {', '.join(parts)})" if parts else ""


def _scalars(
    name: str, array: "xarray.DataArray", chosen: range, skip: int
) -> Iterator[tuple[str, np.ndarray]]:
    """The chosen scalars of a parameter, of every so manieth draw, read in blocks of draws."""
    if not chosen:
        return
    num_chains, num_draws, *shape = array.shape
    row_bytes = max(1, array.nbytes // num_draws)
    block = max(1, BLOCK_BYTES // row_bytes // skip) * skip
    pieces = []
    for first in range(0, num_draws, block):
        rows = array.isel(draw=slice(first, first + block, skip)).values
        pieces.append(rows.reshape(num_chains, rows.shape[1], -1)[:, :, list(chosen)])
    values = np.concatenate(pieces, axis=1)
    for i, place in enumerate(chosen):
        where = np.unravel_index(place, shape) if shape else ()
        label = f"{name}[{', '.join(map(str, map(int, where)))}]" if where else name
        yield label, values[:, :, i]


def _worst(diagnostic: "xarray.Dataset", largest: bool) -> tuple[str, float]:
    """The name and value of the scalar that looks worst; NaN is worst of all."""
    values = {str(name): float(value) for name, value in diagnostic.items()}
    sign = 1 if largest else -1
    name = max(values, key=lambda name: np.nan_to_num(sign * values[name], nan=np.inf))
    return name, values[name]

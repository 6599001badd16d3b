"""Diagnostics of a trace: a summary table, and warnings with their remedies."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from momentem.run import causes
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
PLENTY = 2  # times as much is drawn for where the run decides: see docs/decisions/0014-draws.md
TAILS = 0.05, 0.95  # quantiles whose ESS is that of the tails
APART = 1.1  # above this R-hat, chains are in different places and more draws do not help
MAX_HEAT = 0.02  # error of the kinetic temperature, beyond its Monte Carlo error
MAX_BIAS = 0.1  # eps lambda_max(M^-1 Bhat)
MAX_CHECKED = 1000  # scalars; more are thinned, because each takes about a millisecond
MAX_NUMBERS = 10**7  # numbers in the draws of those scalars; more draws are thinned,
MIN_DRAWS = 1000  # but to no fewer than this per chain
BLOCK_BYTES = 2**25  # read from a run log at a time


class Convergence(NamedTuple):
    """Names and values of the scalars with the worst R-hat and ESS."""

    rhat: tuple[str, float]
    sizes: dict[str, tuple[str, float]]  # ESS by method
    scope: str  # which scalars and draws were checked, if not all
    wanted: int  # ESS
    cause: str  # of a bad R-hat, if it shows
    others: list[str]  # warnings about the draws, whatever R-hat and ESS are
    streamed: list[str]  # warnings about parameters that are not kept


def summary(trace: "xarray.DataTree", **options: Any) -> Any:
    """Return mean, sd, interval, ESS, R-hat and MCSE of every parameter, as a pandas DataFrame.

    It is ArviZ's summary, with four digits of every number, however small.

    Args:
        trace: what `sample` returned.
        **options: as for `arviz_stats.summary`; with `round_to`, it rounds.

    Examples:
        >>> import momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x**2, initial=0.0)
        >>> trace = mt.sample(target, mt.hmc(target, step_size=1.0, num_steps=2))
        >>> "r_hat" in mt.summary(trace)
        True
    """
    if "posterior" not in trace.children:
        raise ValueError(
            "trace must have posterior draws, got none: the run ended during its warm-up; resume "
            "it, or run it again"
        )
    import arviz_stats

    if "round_to" in options:
        return arviz_stats.summary(trace, **options)
    found: Any = arviz_stats.summary(trace, **{"round_to": "none", **options})
    return found.map(lambda value: float(f"{value:.4g}"), na_action="ignore")


def warn_of_trouble(
    trace: "xarray.DataTree",
    found: Convergence | None,
    warmup: Troubles,
    draws: Troubles,
    is_judged: bool = True,
) -> None:
    """Warn of divergences, non-finite numbers, high R-hat, low ESS, refused M-steps and an
    interrupted run.

    Args:
        trace: of the run.
        found: its `convergence`.
        warmup: troubles of its warm-up, counted at every iteration.
        draws: troubles of its draws, counted at every iteration.
        is_judged: whether to warn of R-hat and ESS, or that they cannot be known.
    """
    for message in _messages(trace, warmup, draws):
        warn(message)
    if not is_judged or "posterior" not in trace.children:
        return
    if found is None:
        chains, draws_kept = (trace["posterior"].sizes[axis] for axis in ("chain", "draw"))
        warn(f"{chains} chains of {draws_kept} draws are too few to judge: run more")
        return
    for message in found.others + _convergence_troubles(found):
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
    is_tuned = "em" in trace.children and "way_in_gradients" in trace["em"].to_dataset()
    if "em" in trace.children and (
        refused := _refused(trace["em"].to_dataset()["is_refused"].values)
    ):
        remedy = (
            "check that the posterior is proper, or use float64"
            if is_tuned
            else "raise the size of the E-step, or start from a heavier mass if few moves are "
            "accepted"
        )
        found.append(
            f"{refused} of {trace['em'].sizes['m_step']} M-steps were refused, because their "
            f"estimate was not positive definite: {remedy}"
        )
    both = warmup + draws
    if both.draws.times:
        found.append(
            f"{both.draws.times} numbers in the draws are not finite, {both.draws.where()}: the "
            "parameter overflows; give it another constraint or a tighter prior"
        )
    if both.densities.times:
        found.append(
            "the log density was not finite where it was checked, "
            f"{both.densities.times} times, {both.densities.where()}, and this sampler uses "
            "gradients alone: give the parameter that left its support a constraint"
        )
    if draws.diverging.times:
        remedy = (
            "it is very narrow there; reparametrise (the scale of a hierarchy: the non-centred "
            "form), or bound it"
            if is_tuned
            else "lower the step size or reparametrise"
        )
        found.append(
            f"{draws.diverging.times} of {trace.attrs['num_transitions']} draws diverged, "
            f"{draws.diverging.where()}, so parts of the posterior may be missing: {remedy}"
        )
    if "posterior" not in trace.children:
        return found
    return found + _stochastic_troubles(trace)


def _refused(is_refused: np.ndarray) -> int:
    """Return the number of refused M-steps, or 0 if they were few and a later one was taken."""
    is_mended = len(is_refused) and not is_refused[-1] and 2 * is_refused.sum() < len(is_refused)
    return 0 if is_mended else int(is_refused.sum())


def _stochastic_troubles(trace: "xarray.DataTree") -> list[str]:
    """Return warnings for samplers without a Metropolis step: about the kinetic temperature, and
    about the bias scale."""
    stats = trace["sample_stats"].to_dataset()
    if "kinetic_temperature" not in stats:
        return []
    found = []
    chains = stats["kinetic_temperature"].values.mean(axis=1)
    temperature, error = float(chains.mean()), float(chains.std()) / max(1, len(chains)) ** 0.5
    if not abs(temperature - 1) <= MAX_HEAT + 5 * error:
        found.append(
            f"kinetic temperature is {temperature:.3f}, and should be 1: the gradient noise is not "
            f"accounted for, or steps are too long; {_cooler(trace)}"
        )
    bias = float(stats["bias_scale"].mean())
    if bias > MAX_BIAS:
        found.append(
            f"bias scale is {bias:.2g}, above {MAX_BIAS}: covariances may be wrong by as much; "
            "raise the batch size"
        )
    return found


def _cooler(trace: "xarray.DataTree") -> str:
    """Return what can be done about a wrong temperature by whoever made this run."""
    learning: Any = trace["em"].to_dataset() if "em" in trace.children else {}
    if "has_arrived" in learning and learning.sizes["m_step"]:
        if not bool(learning["has_arrived"][-1]):
            return (
                "the chains had not arrived at the posterior when learning began: start them "
                "nearer (positions=…), or raise num_warmup"
            )
        return "raise num_warmup, or the batch size"
    if "final_noise" in learning:
        return "raise num_warmup, or the batch size, or lower max_step_size of m_steps.noise"
    return "use a sampler that learns it (momentem.tuned_sghmc_em), or lower the step size"


def convergence(trace: "xarray.DataTree") -> Convergence | None:
    """Return the worst R-hat and ESS of a trace, or None if it is too short to compute them."""
    import arviz_stats  # it takes a second to import, so only when it is needed

    sizes = trace["posterior"].sizes if "posterior" in trace.children else {}
    if sizes.get("chain", 0) < 2 or sizes.get("draw", 0) < 4:
        return None
    wanted = MIN_ESS_PER_CHAIN * sizes["chain"]
    # R-hat is 0 / 0 for chains that never moved, and is reported as nan
    with np.errstate(all="ignore"):
        checked, scope = _choose_scalars(trace["posterior"].to_dataset())
        rhat = _find_worst(arviz_stats.rhat(checked), largest=True)
        methods: dict[str, dict] = {"bulk": {}, "tail": {"prob": TAILS}}
        return Convergence(
            rhat,
            {
                method: _find_worst(arviz_stats.ess(checked, method=method, **more), largest=False)
                for method, more in methods.items()
            },
            scope,
            wanted,
            *_find_causes(trace, rhat[0], checked),
            _streamed_troubles(trace, wanted),
        )


def _find_causes(
    trace: "xarray.DataTree", worst: str, checked: "xarray.Dataset"
) -> tuple[str, list[str]]:
    """Return why R-hat is bad for the worst scalar, if it shows, and what else is wrong."""
    draws, stats = checked[worst].values, trace["sample_stats"].to_dataset()
    heights = stats["lp"].values if "lp" in stats else None
    em = trace["em"].to_dataset() if "em" in trace.children else {}
    is_flat = "way_in_is_flat" in em and bool(em["way_in_is_flat"].all())
    cause = (
        (causes.flat(worst, draws) if is_flat else "")
        or causes.drift(worst, draws)
        or causes.places(worst, draws, heights)
        or causes.moved(worst, draws, heights)
    )
    first = next(iter(checked.values())).values
    rows = {str(name): values.values for name, values in checked.items()}
    tail = ""
    if "tail_index" in stats and first.shape == stats["reach"].shape:  # if draws are not thinned
        tail = causes.heavy(rows, stats["reach"].values, stats["tail_index"].values)
    energies = stats["energy"].values if "energy" in stats else None
    others = [
        causes.stuck(np.diff(first, axis=1) != 0),
        tail or causes.no_variance(rows),
        "" if cause or energies is None else causes.slow_energy(energies),
    ]
    if heights is not None:
        others.append(causes.coarse(heights))
    return cause, [message for message in others if message]


def is_short(found: Convergence | None) -> bool:
    """Return whether R-hat is bad enough for a warning or ESS nearly so, and more draws help."""
    if found is None or not found.rhat[1] <= APART:
        return False
    return bool(_convergence_troubles(found._replace(wanted=PLENTY * found.wanted)))


def _convergence_troubles(of: Convergence) -> list[str]:
    found, (name, rhat) = [], of.rhat
    if not rhat <= MAX_RHAT:
        found.append(
            f"R-hat is {rhat:.4g} for {name}, above {MAX_RHAT}{of.scope}: "
            f"{of.cause or 'the chains have not mixed; draw more, or warm up longer'}"
        )
    if found and of.cause:
        return found + of.streamed  # more draws would not help
    for method, (name, ess) in of.sizes.items():
        if not ess >= of.wanted:
            found.append(
                f"{method} ESS is {ess:.0f} for {name}, below {MIN_ESS_PER_CHAIN} per chain"
                f"{of.scope}: draw more"
            )
    return found + of.streamed


def _streamed_troubles(trace: "xarray.DataTree", wanted: int) -> list[str]:
    """Return warnings about parameters that are not kept. A scalar that never moved has no ESS, and
    gives no warning here."""
    if "posterior_ess" not in trace.children:
        return []
    name, ess = _find_worst(trace["posterior_ess"].to_dataset().fillna(np.inf).min(), largest=False)
    if not ess < wanted:
        return []
    least = f"{MIN_ESS_PER_CHAIN} per chain"
    return [f"ESS is {ess:.0f} for {name}, which is not kept; it is below {least}: draw more"]


def _choose_scalars(posterior: "xarray.Dataset") -> tuple["xarray.Dataset", str]:
    """Return scalars of the posterior by name, (chain, draw), and a note if they are not all."""
    from arviz_base import dict_to_dataset

    num_chains, num_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    sizes = {name: array.size // (num_chains * num_draws) for name, array in posterior.items()}
    total = sum(sizes.values())
    every = -(-total // MAX_CHECKED)
    numbers = -(-total // every) * num_chains * num_draws
    thin = max(1, min(numbers // MAX_NUMBERS, num_draws // MIN_DRAWS))
    scalars, first = [], 0
    for name, array in posterior.items():
        chosen = range(-first % every, sizes[name], every)
        scalars += _scalars(str(name), array, chosen, thin)
        first += sizes[name]
    # a scalar that never moves in any chain is fixed by its constraint, unless no scalar moves
    scalars = [item for item in scalars if np.ptp(item[1]) > 0] or scalars
    parts = [f"{len(scalars)} of {total} scalars"] if every > 1 else []
    parts += [f"every {thin}th draw"] if thin > 1 else []
    return dict_to_dataset(dict(scalars)), f" (checked {', '.join(parts)})" if parts else ""


def _scalars(
    name: str, array: "xarray.DataArray", chosen: range, thin: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the chosen scalars of a parameter by name, with every `thin`-th draw. Draws are read in
    blocks."""
    if not chosen:
        return
    num_chains, num_draws, *shape = array.shape
    row_bytes = max(1, array.nbytes // num_draws)
    block = max(1, BLOCK_BYTES // row_bytes // thin) * thin
    pieces = []
    for first in range(0, num_draws, block):
        rows = array.isel(draw=slice(first, first + block, thin)).values
        pieces.append(rows.reshape(num_chains, rows.shape[1], -1)[:, :, list(chosen)])
    values = np.concatenate(pieces, axis=1)
    for i, place in enumerate(chosen):
        where = np.unravel_index(place, shape) if shape else ()
        label = f"{name}[{', '.join(map(str, map(int, where)))}]" if where else name
        yield label, values[:, :, i]


def _find_worst(diagnostic: "xarray.Dataset", largest: bool) -> tuple[str, float]:
    """Return the name and value of the worst scalar. NaN is the worst value."""
    values = {str(name): float(value) for name, value in diagnostic.items()}
    sign = 1 if largest else -1
    name = max(values, key=lambda name: np.nan_to_num(sign * values[name], nan=np.inf))
    return name, values[name]

"""The panels of which pictures of a trace are made. Each draws on one Matplotlib axis.

Those of parameters are made of scalars that were read before.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.predictive._predict import Prediction
from momentem.predictive.laws import NUMBERS
from momentem.predictive.scalars import Scalars, choose_scalars, thin
from momentem.run.diagnostics import MAX_RHAT, MIN_ESS_PER_CHAIN

if TYPE_CHECKING:
    import xarray

__all__ = ["choose_scalars", "marginal", "panels", "predicted", "ranks"]

BINS = 20  # of ranks
MOST_DATA = 200  # in a picture of predictions
COLOURS = [f"C{i}" for i in range(10)]


def marginal(axis: Any, label: str, draws: np.ndarray) -> None:
    """Draw the marginal distribution in every chain."""
    edges = np.histogram_bin_edges(draws[np.isfinite(draws)], 30)
    for chain, values in enumerate(draws):
        axis.hist(values, edges, histtype="step", density=True, color=COLOURS[chain % 10])
    axis.set(title=label, yticks=[])


def ranks(axis: Any, label: str, draws: np.ndarray) -> None:
    """Draw, for every chain, how often its draws have a rank among all. Flat is good."""
    order = draws.ravel().argsort().argsort().reshape(draws.shape)
    edges = np.linspace(0, draws.size, BINS + 1)
    for chain, values in enumerate(order):
        heights = np.histogram(values, edges)[0] / (draws.shape[1] / BINS)
        axis.stairs(heights, edges, color=COLOURS[chain % 10])
    axis.axhline(1, color="0.6", lw=0.8)
    top = max(2, axis.get_ylim()[1])
    axis.set(title=f"ranks of {label}", xlabel="flat is good", ylim=(0, top), xticks=[])


def _energy(axis: Any, trace: "xarray.DataTree") -> None:
    energy = thin(trace["sample_stats"].to_dataset()[["energy"]])["energy"].values
    both = (energy - energy.mean()).ravel(), np.diff(energy, axis=1).ravel()
    edges = np.histogram_bin_edges(np.concatenate(both), 40)
    for values, label in zip(both, ("marginal", "change per draw"), strict=True):
        axis.hist(values, edges, histtype="step", density=True, label=label)
    axis.set(title="energy: alike is good", yticks=[])
    axis.legend(fontsize=7)


def _convergence(axis: Any, scalars: Scalars) -> None:
    import arviz_stats
    from arviz_base import dict_to_dataset

    chosen = choose_scalars(scalars, 30)
    found = dict_to_dataset(chosen)
    with np.errstate(all="ignore"):
        sizes, rhats = (
            {str(k): float(v) for k, v in of(found).data_vars.items()}
            for of in (arviz_stats.ess, arviz_stats.rhat)
        )
    places = np.arange(len(sizes))
    wanted = MIN_ESS_PER_CHAIN * len(next(iter(chosen.values())))
    bad = [rhats[name] > MAX_RHAT or sizes[name] < wanted for name in sizes]
    axis.barh(places, list(sizes.values()), color=["C3" if b else "C0" for b in bad])
    axis.axvline(wanted, color="k", ls=":", lw=1)
    axis.set_yticks(places, list(sizes), fontsize=9 if len(sizes) <= 10 else 6)
    axis.invert_yaxis()
    worst = max(rhats.values())
    axis.set_title(f"ESS (red: too low), R-hat ≤ {worst:.3f}")


def _learning(axis: Any, trace: "xarray.DataTree") -> None:
    em = trace["em"].to_dataset()
    variances = em["inverse_mass_diagonal"].values[:, :20]
    label = "square root of M⁻¹'s diagonal"
    lines = axis.plot(em["iteration"], variances**0.5, ".-", color="C0", lw=0.6)
    lines[0].set_label(label)
    axis.plot(em["iteration"], em["step_size"], "s--", color="C1", label="step size")
    axis.set(title="learnt by M-steps", yscale="log", xlabel="iteration")
    axis.legend(fontsize=7)


def _is_divergent(trace: "xarray.DataTree", scalars: Scalars) -> np.ndarray:
    """Return which of the draws that are shown diverged."""
    shown = slice(None, None, scalars.every_shown)
    return trace["sample_stats"].to_dataset()["diverging"].isel(draw=shown).values


def _divergences(axis: Any, trace: "xarray.DataTree", scalars: Scalars) -> None:
    """Draw the pair of scalars in which divergent draws differ most from the others."""
    is_divergent = _is_divergent(trace, scalars)
    found = choose_scalars(scalars, 30)

    def apart(draws: np.ndarray) -> float:
        here, there = draws[is_divergent], draws[~is_divergent]
        return abs(here.mean() - there.mean()) / draws.std() + abs(
            np.log(here.std() / there.std() + 1e-9)
        )

    with np.errstate(all="ignore"):
        order = sorted(found, key=lambda name: -np.nan_to_num(apart(found[name])))
    if len(order) == 1:
        order = order * 2
    x, y = (found[name] for name in order[:2])
    axis.plot(x.ravel(), y.ravel(), ".", ms=1.5, alpha=0.4)
    axis.plot(x[is_divergent], y[is_divergent], "x", color="C3", ms=4)
    axis.set(title="divergences (red)", xlabel=order[0], ylabel=order[1])


def panels(trace: "xarray.DataTree", scalars: Scalars) -> dict[str, Callable[[Any], None]]:
    """Return the panels that say how a run went, by name. Those without numbers are left out."""
    found: dict[str, Callable[[Any], None]] = {}
    stats = trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else {}
    sizes = trace["posterior"].sizes
    if sizes["chain"] > 1 and sizes["draw"] >= 4:
        found["convergence"] = partial(_convergence, scalars=scalars)
    if "energy" in stats and sizes["draw"] > 1 and np.isfinite(stats["energy"]).all():
        found["energy"] = partial(_energy, trace=trace)
    if "em" in trace.children and trace["em"].sizes["m_step"]:
        found["learning"] = partial(_learning, trace=trace)
    if "diverging" in stats and _is_divergent(trace, scalars).any():
        found["divergences"] = partial(_divergences, trace=trace, scalars=scalars)
    return found


def _intervals(axis: Any, name: str, prediction: Prediction, y: Any) -> None:
    """Draw means and intervals of data in their order, and what was seen."""
    mean = prediction.mean[name].values.ravel()
    low, high = prediction.interval(0.9)[name].values.reshape(-1, 2).T
    places = np.arange(0, len(mean), max(1, -(-len(mean) // MOST_DATA)))
    axis.vlines(places, low[places], high[places], color="C0", alpha=0.4, label="90 %")
    axis.plot(places, mean[places], ".", color="C0", label="mean")
    if y is not None:
        seen = np.asarray(y[name] if isinstance(y, dict) else y).ravel()
        axis.plot(places, seen[places], "x", color="C1", ms=4, label="seen")
    axis.set(title=f"predictions of {name}", xlabel="datum")
    axis.legend(fontsize=7)


def predicted(prediction: Prediction, y: Any) -> dict[str, Callable[[Any], None]]:
    """Return the panels of predictions, by variable. Only numbers have intervals to draw."""
    names = [name for name, kind in prediction.kinds.items() if kind == NUMBERS]
    return {n: partial(_intervals, name=n, prediction=prediction, y=y) for n in names}

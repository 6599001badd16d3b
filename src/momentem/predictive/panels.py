"""The panels of which pictures of a trace are made. Each draws on one Matplotlib axis.

A trace may be larger than memory: each panel reads a few scalars, and at most MOST_DRAWS evenly
spaced draws of each chain.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.run.diagnostics import MAX_RHAT, MIN_ESS_PER_CHAIN

if TYPE_CHECKING:
    import xarray

__all__ = ["choose_scalars", "first_scalars", "marginal", "panels", "ranks", "thin"]

MOST_DRAWS = 2000
BINS = 20  # of ranks
COLOURS = [f"C{i}" for i in range(10)]


def thin(dataset: "xarray.Dataset", most: int = MOST_DRAWS) -> "xarray.Dataset":
    """Return evenly spaced draws, at most so many of each chain."""
    return dataset.isel(draw=slice(None, None, max(1, -(-dataset.sizes["draw"] // most))))


def first_scalars(posterior: "xarray.Dataset", most: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield labels and draws (chain, draw) of the first scalars. Each variable is read once, and no
    more of it than is needed, because a stored one is in many files."""
    left = most
    for name, array in posterior.data_vars.items():
        if left <= 0:
            return
        if inner := array.dims[2:]:
            others = array.size // (array.shape[0] * array.shape[1] * array.shape[2])
            array = array.isel({inner[0]: slice(-(-left // max(1, others)))})
        values = array.transpose("chain", "draw", ...).values
        for place in islice(np.ndindex(*values.shape[2:]), left):
            label = f"{name}[{', '.join(map(str, place))}]" if place else str(name)
            yield label, values[(slice(None), slice(None), *place)]
            left -= 1


def choose_scalars(posterior: "xarray.Dataset", most: int) -> dict[str, np.ndarray]:
    """Return thinned draws of the first scalars, without those that never move if others do."""
    scalars = dict(first_scalars(thin(posterior), 2 * most))
    moving = {label: draws for label, draws in scalars.items() if np.ptp(draws) > 0}
    return dict(islice((moving or scalars).items(), most))


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
    axis.set(title=f"ranks of {label}", ylim=(0, max(2, axis.get_ylim()[1])), xticks=[])


def _energy(axis: Any, trace: "xarray.DataTree") -> None:
    energy = thin(trace["sample_stats"].to_dataset()[["energy"]])["energy"].values
    both = (energy - energy.mean()).ravel(), np.diff(energy, axis=1).ravel()
    edges = np.histogram_bin_edges(np.concatenate(both), 40)
    for values, label in zip(both, ("marginal", "change per draw"), strict=True):
        axis.hist(values, edges, histtype="step", density=True, label=label)
    axis.set(title="energy: alike is good", yticks=[])
    axis.legend(fontsize=7)


def _convergence(axis: Any, trace: "xarray.DataTree") -> None:
    import arviz_stats
    from arviz_base import dict_to_dataset

    found = dict_to_dataset(choose_scalars(trace["posterior"].to_dataset(), 30))
    with np.errstate(all="ignore"):
        sizes, rhats = (
            {str(k): float(v) for k, v in of(found).data_vars.items()}
            for of in (arviz_stats.ess, arviz_stats.rhat)
        )
    places = np.arange(len(sizes))
    wanted = MIN_ESS_PER_CHAIN * trace["posterior"].sizes["chain"]
    bad = [rhats[name] > MAX_RHAT or sizes[name] < wanted for name in sizes]
    axis.barh(places, list(sizes.values()), color=["C3" if b else "C0" for b in bad])
    axis.axvline(wanted, color="k", ls=":", lw=1)
    axis.set_yticks(places, list(sizes), fontsize=6)
    axis.invert_yaxis()
    worst = max(rhats.values())
    axis.set_title(f"ESS (red: too low), R-hat ≤ {worst:.3f}")


def _learning(axis: Any, trace: "xarray.DataTree") -> None:
    em = trace["em"].to_dataset()
    variances = em["inverse_mass_diagonal"].values[:, :20]
    axis.plot(em["iteration"], variances**0.5, ".-", color="C0", lw=0.6)
    axis.plot(em["iteration"], em["step_size"], "s--", color="C1", label="step size")
    axis.set(title="learnt by M-steps", yscale="log", xlabel="iteration")
    axis.legend(fontsize=7)


def _divergences(axis: Any, trace: "xarray.DataTree") -> None:
    """Draw the pair of scalars in which divergent draws differ most from the others."""
    is_divergent = thin(trace["sample_stats"].to_dataset()[["diverging"]])["diverging"].values
    found = choose_scalars(trace["posterior"].to_dataset(), 30)

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


def panels(trace: "xarray.DataTree") -> dict[str, Callable[[Any], None]]:
    """Return the panels that say how a run went, by name. Those without numbers are left out."""
    found: dict[str, Callable[[Any], None]] = {}
    stats = trace["sample_stats"].to_dataset() if "sample_stats" in trace.children else {}
    sizes = trace["posterior"].sizes
    if sizes["chain"] > 1 and sizes["draw"] >= 4:
        found["convergence"] = lambda axis: _convergence(axis, trace)
    if "energy" in stats and sizes["draw"] > 1 and np.isfinite(stats["energy"]).all():
        found["energy"] = lambda axis: _energy(axis, trace)
    if "em" in trace.children and trace["em"].sizes["m_step"]:
        found["learning"] = lambda axis: _learning(axis, trace)
    if "diverging" in stats and bool(thin(stats[["diverging"]])["diverging"].any()):
        found["divergences"] = lambda axis: _divergences(axis, trace)
    return found

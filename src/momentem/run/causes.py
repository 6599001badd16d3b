"""What a run that cannot be trusted suffers from, each by its own sign, and what can be done.

    places     chains whose draws of one number do not overlap: several modes, or chains that stay
    moved      a chain whose parts do not overlap: it found another mode while it was drawn from
    drift      the spread of the draws grows from each quarter of the run to the next: no finite
               posterior holds them
    flat       no curvature on the way in, however long the steps
    heavy      scores far out that pull no harder than those of a tail |x|^-(1 + nu), nu near 1
    variance   a tail of one number that falls as slowly as one with infinite variance
    energy     energies that change little when the momentum is drawn anew
    coarse     the log density is so large that its rounding is felt: float32 holds 7 digits
    stuck      a chain that stayed where it was for a long time

Each function returns a sentence, or "" where there is no such sign. They know arrays alone.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float

__all__ = [
    "coarse",
    "drift",
    "flat",
    "heavy",
    "moved",
    "no_variance",
    "places",
    "slow_energy",
    "stuck",
]

GAP = 2.0  # between chains, in standard deviations within them, that says they are apart
PARTS, WIDE_GAP = 10, 4.0  # of a chain, and between them: those of slow chains are apart by 2 or 3
MODES = "look for several modes; exclude the spurious ones by a prior or by positions=…"
GROWTH = 2.0  # of the spread from one half of the run to the next
ROUNDING = 0.2  # of the log density: an acceptance rate is then off by as much
FAR, FAR_OUT = 0.02, 4.0  # share of draws that are far out, and how far, in standard deviations
LEAST_HEAVY, HEAVY = 0.3, 2.0  # nu between which a tail is not explored
HEAVY_SHAPE = 0.6  # that a tail with infinite variance has, estimated so
LEAST_SHARE = 0.3  # E-BFMI, as in Stan
LEAST_DRAWS = 400  # for what is estimated from tails
LONG_STAY = 0.05  # of a chain's draws
Draws = Float[np.ndarray, "chains draws"]
Heights = Float[np.ndarray, "chains rows"]  # more than draws, where those are thinned


def places(name: str, draws: Draws, heights: Draws | None) -> str:
    """Say which chains are apart in one number, and how high their log densities are."""
    groups = _groups(draws, GAP)
    if len(groups) < 2:
        return ""
    told = []
    for group in groups:
        told.append(f"chains {_listed(group)} near {_where(draws, heights, group)}")
    return (
        f"chains are in {len(told)} separate places of {name} ({'; '.join(told)}), and the weights "
        f"of these places are unknown: {MODES}"
    )


def moved(name: str, draws: Draws, heights: Draws | None) -> str:
    """Say which chains were in one place for a while and then in another."""
    length = draws.shape[1] // PARTS
    if length < 2:
        return ""
    parts = draws[:, : PARTS * length].reshape(-1, length)
    high = None if heights is None else heights[:, : PARTS * length].reshape(-1, length)
    groups = _groups(parts, WIDE_GAP)
    if len(groups) < 2:
        return ""
    homes = [set(group // PARTS) for group in groups]
    both = [chain for chain in range(len(draws)) if sum(chain in home for home in homes) > 1]
    if not both:
        return ""
    told = [f"near {_where(parts, high, group)}" for group in groups]
    return (
        f"chains {_listed(np.array(both))} went from one place of {name} to another "
        f"({'; '.join(told)}) and hardly back, so that the weights of these places are unknown: "
        f"{MODES}"
    )


def _groups(draws: Draws, gap: float) -> list[np.ndarray]:
    """Return the rows that are together in one number, in groups that are apart."""
    means, within = draws.mean(axis=1), np.sqrt(np.median(draws.var(axis=1)))
    order = np.argsort(means)
    return np.split(order, np.flatnonzero(np.diff(means[order]) > gap * within) + 1)


def _where(draws: Draws, heights: Draws | None, rows: np.ndarray) -> str:
    height = "" if heights is None else f", mean log density {heights[rows].mean():.4g}"
    return f"{draws[rows].mean():.4g}{height}"


def drift(name: str, draws: Draws) -> str:
    """Say that the spread of a number grows throughout the run."""
    quarters = np.array_split(draws - np.median(draws[:, : draws.shape[1] // 4]), 4, axis=1)
    sizes = [np.median(np.abs(quarter)) for quarter in quarters]
    is_growing = all(b > a for a, b in pairwise(sizes))
    if not (is_growing and sizes[3] > GROWTH**2 * sizes[0] > 0):
        return ""
    return (
        f"draws of {name} spread farther and farther, to {np.abs(draws).max():.3g}: the posterior "
        "may be improper, because nothing holds this parameter; give it a proper prior"
    )


def flat(name: str, draws: Draws) -> str:
    """Say that no curvature was found, however far chains looked."""
    return (
        f"the log density is level as far as the chains looked ({name} went to "
        f"{np.abs(draws).max():.3g}): the posterior may be improper; give it a proper prior"
    )


def heavy(draws: Mapping[str, Draws], reach: Draws, tail_index: Draws) -> str:
    """Say that a tail is so heavy that draws see too little of it, and of which number."""
    is_far = reach >= np.quantile(reach, 1 - FAR)
    index = tail_index[is_far]
    error = index.std() / max(1, len(index)) ** 0.5
    is_heavy = LEAST_HEAVY < index.mean() < HEAVY - 2 * error  # below: no tail, but a curved place
    if not (reach[is_far].mean() > FAR_OUT and is_heavy):
        return ""
    distances = {
        name: np.abs(rows[is_far] - np.median(rows)).mean() / (_quartile_range(rows) or 1)
        for name, rows in draws.items()
    }
    name = max(distances, key=lambda name: distances[name])
    return (
        f"the tail of {name} falls like |x|^-{1 + index.mean():.2g}, too slowly for chains to see "
        "enough of it: quantiles far out are not reliable, and its mean may not exist; give it a "
        "prior with lighter tails, or sample a transform of it, such as its logarithm or arcsinh"
    )


def no_variance(draws: Mapping[str, Draws]) -> str:
    """Say which number has a tail so heavy that its variance is infinite, or nearly so.

    The shape 1 / nu of a tail |x|^-(1 + nu) is estimated as Hill (1975) does, from the tenth that
    is farthest from the median. It is .3 for a Gaussian, and .5 where the variance is infinite.
    """
    if next(iter(draws.values())).size < LEAST_DRAWS:
        return ""
    shapes = {name: max(_tail_shape(rows), _tail_shape(-rows)) for name, rows in draws.items()}
    name = max(shapes, key=lambda name: shapes[name])
    if not shapes[name] > HEAVY_SHAPE:
        return ""
    return (
        f"{name} has a tail that falls like |x|^-{1 + 1 / shapes[name]:.2g}: its variance is "
        "infinite or nearly so, and Monte Carlo errors of its mean and standard deviation are not "
        "reliable; report quantiles"
    )


def _tail_shape(rows: Draws) -> float:
    above = rows.ravel() - np.median(rows)
    edge = float(np.quantile(above, 0.9))
    return float(np.log(above[above >= edge] / edge).mean()) if edge > 0 else 0.0


def slow_energy(energies: Draws) -> str:
    """Say that a fresh momentum changes the energy too little (Betancourt 2016)."""
    with np.errstate(all="ignore"):
        shares = (np.diff(energies, axis=1) ** 2).mean(axis=1) / energies.var(axis=1)
    chain = int(np.argmin(shares))
    if not shares[chain] < LEAST_SHARE or energies.size < LEAST_DRAWS:
        return ""
    return (
        f"energies of chain {chain} change by {shares[chain]:.2g} of their variance from draw to "
        f"draw (E-BFMI), below {LEAST_SHARE}: tails are too heavy, or the posterior is a funnel; "
        "use priors with lighter tails, or reparametrise"
    )


def _quartile_range(rows: Draws) -> float:
    low, high = np.quantile(rows, [0.25, 0.75])
    return float(high - low)


def coarse(heights: Draws) -> str:
    """Say that the log density is too coarse in its precision."""
    rounding = float(np.abs(heights).max()) * np.finfo(heights.dtype).eps
    if heights.dtype != np.float32 or not rounding > ROUNDING:
        return ""
    return (
        f"the log density is about {heights.mean():.4g}, which float32 rounds to within "
        f"{rounding:.2g}: acceptance rates are wrong by as much; use "
        "jax.config.update('jax_enable_x64', True), or leave constants out of the log density"
    )


def stuck(is_moved: Bool[np.ndarray, "chains draws"]) -> str:
    """Say which chain stayed where it was for a long time."""
    stays = [_longest_stay(row) for row in is_moved]
    chain, most = int(np.argmax(stays)), LONG_STAY * is_moved.shape[1]
    if not stays[chain] > max(20, most):
        return ""
    return (
        f"chain {chain} stayed at one point for {stays[chain]} of {is_moved.shape[1]} draws: it "
        "sits where every step is refused, and its draws there count too much; use "
        "sample(…, acceptance=0.95), or reparametrise"
    )


def _longest_stay(is_moved: Bool[np.ndarray, " draws"]) -> int:
    ends = np.flatnonzero(np.concatenate([[True], is_moved, [True]]))
    return int(np.diff(ends).max()) - 1


def _listed(chains: np.ndarray) -> str:
    return ", ".join(map(str, sorted(chains)))

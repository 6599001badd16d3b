"""What went wrong in a run: counted at every iteration, with the first place of each kind.

Thinning drops draws, not troubles, and the run log keeps them with its segments.
"""

import sys
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["SamplingWarning", "Trouble", "Troubles", "warn"]


class SamplingWarning(UserWarning):
    """The draws may not represent the posterior."""


def warn(message: str) -> None:
    """Warn in the name of the first caller outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("momentem."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SamplingWarning, stacklevel=level)


class Trouble(NamedTuple):
    """How often, and where first."""

    times: int = 0
    chain: int = -1
    iteration: int = -1
    what: str = ""  # the parameter, and its value

    def where(self) -> str:
        """The first place, in words."""
        near = f", near {self.what}" if self.what else ""
        return f"the first in chain {self.chain} at iteration {self.iteration}{near}"

    def __add__(self, later: "Trouble") -> "Trouble":  # pyright: ignore[reportIncompatibleMethodOverride]
        first = self if self.times else later
        return first._replace(times=self.times + later.times)


class Troubles(NamedTuple):
    """Of all kinds."""

    diverging: Trouble = Trouble()
    draws: Trouble = Trouble()  # that are not finite
    densities: Trouble = Trouble()  # that were not finite where somebody looked

    @classmethod
    def of(
        cls,
        iterations: range,
        seen: range,
        parameters: dict[str, np.ndarray],
        stats: dict[str, np.ndarray],
        looks: Any,
        looked: Sequence[int],
    ) -> "Troubles":
        """Return those of a chunk.

        Args:
            iterations: of the chunk.
            seen: those whose parameters are known.
            parameters: (iteration seen, chain, …).
            stats: (iteration, chain).
            looks: whether the density was finite, (look, chain); None if nobody looked.
            looked: the iterations of the looks.
        """
        densities = Trouble()
        if "lp" in stats:
            densities = _found(~np.isfinite(stats["lp"]), iterations, seen, parameters)
        elif looks is not None:
            densities = _found(~np.asarray(looks), looked, seen, parameters)
        diverging = _found(stats["diverging"], iterations, seen, parameters)
        return cls(diverging, _not_finite(seen, parameters), densities)

    def __add__(self, later: "Troubles") -> "Troubles":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Troubles(*(a + b for a, b in zip(self, later, strict=True)))


def _found(
    is_bad: np.ndarray, iterations: Sequence[int], seen: range, parameters: dict[str, np.ndarray]
) -> Trouble:
    """Return the trouble of some iterations and chains, with a parameter near the first of them:
    at that iteration, or else at the next whose parameters are known, or the last."""
    if not is_bad.any():
        return Trouble()
    row, chain = map(int, np.argwhere(is_bad)[0])
    iteration, what = iterations[row], ""
    if seen:
        nearest = min(bisect_left(seen, iteration), len(seen) - 1)
        what = _farthest_out(nearest, chain, parameters)
    return Trouble(int(is_bad.sum()), chain, iteration, what)


def _farthest_out(row: int, chain: int, parameters: dict[str, np.ndarray]) -> str:
    """The scalar that stands farthest from its mean, in standard deviations of the chunk."""
    found = (-1.0, "")
    for name, rows in parameters.items():
        with np.errstate(all="ignore"):
            spread = rows.std((0, 1))
            distance = np.abs(rows[row, chain] - rows.mean((0, 1))) / np.where(spread, spread, 1)
        distance = np.nan_to_num(distance, nan=np.inf)
        if not distance.size:
            continue
        where = np.unravel_index(np.argmax(distance), distance.shape)
        if distance[where] > found[0]:
            found = float(distance[where]), f"{_label(name, where)} = {rows[row, chain][where]:.4g}"
    return found[1]


def _not_finite(seen: range, parameters: dict[str, np.ndarray]) -> Trouble:
    """Of draws: a position can be finite whose parameter is not, such as exp(1000)."""
    found = Trouble()
    for name, rows in parameters.items():
        # one pass, and no array of flags, while all is well: the sum of squares of finite numbers
        # may overflow, so it only says where to look
        flat = rows.reshape(-1)
        with np.errstate(all="ignore"):
            if np.isfinite(np.dot(flat, flat)) or np.isfinite(rows).all():
                continue
        is_bad = ~np.isfinite(rows)
        row, chain, *where = map(int, np.argwhere(is_bad)[0])
        value = rows[(row, chain, *where)]
        here = Trouble(int(is_bad.sum()), chain, seen[row], f"{_label(name, where)} = {value}")
        found = found + here if found.iteration <= here.iteration else here + found
    return found


def _label(name: str, where: Any) -> str:
    return f"{name}[{', '.join(map(str, where))}]" if len(where) else name

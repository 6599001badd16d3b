"""Troubles of a run: divergences and non-finite numbers, counted at every iteration.

The first place of each kind is kept. Thinning drops draws but not troubles. The run log stores them
with its segments.
"""

import sys
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["SamplingWarning", "Trouble", "Troubles", "warn"]


class SamplingWarning(UserWarning):
    """Warning that the draws may not represent the posterior."""


def warn(message: str) -> None:
    """Warn at the line of the first caller outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("momentem."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SamplingWarning, stacklevel=level)


class Trouble(NamedTuple):
    """The number of times that one kind of trouble occurred, and the first place."""

    times: int = 0
    chain: int = -1
    iteration: int = -1
    what: str = ""  # the parameter and its value

    def where(self) -> str:
        """Return a description of the first place."""
        near = f", near {self.what}" if self.what else ""
        return f"the first in chain {self.chain} at iteration {self.iteration}{near}"

    def __add__(self, later: "Trouble") -> "Trouble":  # pyright: ignore[reportIncompatibleMethodOverride]
        first = self if self.times else later
        return first._replace(times=self.times + later.times)


class Troubles(NamedTuple):
    """Troubles of all kinds."""

    diverging: Trouble = Trouble()
    draws: Trouble = Trouble()  # draws that are not finite
    densities: Trouble = Trouble()  # log densities that are not finite where they were checked

    @classmethod
    def find(
        cls,
        iterations: range,
        located: Sequence[int],
        parameters: dict[str, np.ndarray],
        stats: dict[str, np.ndarray],
        looks: Any,
        looked: Sequence[int],
    ) -> "Troubles":
        """Return those of a chunk.

        Args:
            iterations: of the chunk.
            located: those whose parameters are known, in order.
            parameters: (located iteration, chain, …).
            stats: (iteration, chain).
            looks: whether the density was finite, (look, chain); None if nobody looked.
            looked: the iterations of the looks.
        """
        densities = Trouble()
        if "lp" in stats:
            densities = _find_trouble(~np.isfinite(stats["lp"]), iterations, located, parameters)
        elif looks is not None:
            densities = _find_trouble(~np.asarray(looks), looked, located, parameters)
        diverging = _find_trouble(stats["diverging"], iterations, located, parameters)
        return cls(diverging, _find_non_finite(located, parameters), densities)

    def __add__(self, later: "Troubles") -> "Troubles":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Troubles(*(a + b for a, b in zip(self, later, strict=True)))


def _find_trouble(
    is_bad: np.ndarray,
    iterations: Sequence[int],
    located: Sequence[int],
    parameters: dict[str, np.ndarray],
) -> Trouble:
    """Count the bad entries (iteration, chain), and locate the first, with a parameter at the next
    iteration whose parameters are known."""
    if not is_bad.any():
        return Trouble()
    row, chain = map(int, np.argwhere(is_bad)[0])
    iteration = iterations[row]
    nearest = min(bisect_left(located, iteration), len(located) - 1)
    return Trouble(int(is_bad.sum()), chain, iteration, _farthest_out(nearest, chain, parameters))


def _farthest_out(row: int, chain: int, parameters: dict[str, np.ndarray]) -> str:
    """Describe the scalar that is farthest from its mean, in standard deviations of the chunk."""
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


def _find_non_finite(located: Sequence[int], parameters: dict[str, np.ndarray]) -> Trouble:
    """Find draws that are not finite. The parameter of a finite position need not be finite, such
    as exp(1000)."""
    found = Trouble()
    for name, rows in parameters.items():
        # usually one pass without an array of flags is enough; the sum of squares of finite numbers
        # may overflow, so a sum that is not finite is followed by a full check
        flat = rows.reshape(-1)
        with np.errstate(all="ignore"):
            if np.isfinite(np.dot(flat, flat)) or np.isfinite(rows).all():
                continue
        is_bad = ~np.isfinite(rows)
        row, chain, *where = map(int, np.argwhere(is_bad)[0])
        value = rows[(row, chain, *where)]
        here = Trouble(int(is_bad.sum()), chain, located[row], f"{_label(name, where)} = {value}")
        found = found + here if found.iteration <= here.iteration else here + found
    return found


def _label(name: str, where: Any) -> str:
    return f"{name}[{', '.join(map(str, where))}]" if len(where) else name

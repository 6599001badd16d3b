"""R-hat and ESS of the draws so far, for the line of progress: of a few scalars, in little memory.

A scalar's draws become means of batches of one length, which doubles when there are too many. With
n draws per chain, W the mean of the chains' variances, and batches of b draws

    R-hat = sqrt(1 + var(means of half chains) / W)
    ESS   = chains n (W + var(means of chains)) / (b var(means of batches))

They are rougher than those that the run is judged by in the end.
"""

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["SoFar"]

MOST_SCALARS = 16
MOST_BATCHES = 64  # of each chain; at least half of them are full
FEWEST = 8  # batches, below which nothing is said


class SoFar:
    """Sums and batch means of a few scalars: the first ones of each parameter."""

    def __init__(self) -> None:
        self._count, self._length = 0, 1
        self._first = self._sum = self._squares = np.zeros(())
        self._batches: list[np.ndarray] = []  # (chain, scalar)
        self._rest = np.zeros((0, 1, 1))  # draws of the batch that is being filled

    def extend(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Take further draws (draw, chain, …) of every parameter."""
        with np.errstate(all="ignore"):  # draws need not be finite; others say so
            self._extend(_choose(parameters))

    def _extend(self, rows: np.ndarray) -> None:
        if not rows.size:
            return
        if not self._count:
            self._first = rows[0].mean(0)  # the same for all chains
            self._rest = rows[:0]
        away = rows - self._first
        self._count += len(rows)
        self._sum = self._sum + away.sum(0)
        self._squares = self._squares + (away**2).sum(0)
        rest = np.concatenate([self._rest, away])
        number = len(rest) // self._length
        full = rest[: number * self._length].reshape(number, self._length, *rest.shape[1:])
        self._batches += list(full.mean(1))
        self._rest = rest[number * self._length :]
        while len(self._batches) >= MOST_BATCHES:
            self._merge()

    def _merge(self) -> None:
        """Merge batches in pairs. An odd last one goes back to the draws of which nothing is full;
        they have its mean, and their number is right."""
        pairs = len(self._batches) // 2
        if len(self._batches) % 2:
            odd = np.broadcast_to(self._batches[-1], (self._length, *self._batches[-1].shape))
            self._rest = np.concatenate([odd, self._rest])
        both = zip(self._batches[: 2 * pairs : 2], self._batches[1 : 2 * pairs : 2], strict=True)
        self._batches = [(a + b) / 2 for a, b in both]
        self._length *= 2

    def estimates(self) -> tuple[float, float] | None:
        """Return the largest R-hat and the smallest ESS, or None if it is too early."""
        with np.errstate(all="ignore"):
            return self._estimates()

    def _estimates(self) -> tuple[float, float] | None:
        batches, length = np.array(self._batches), self._length
        while len(batches) > max(FEWEST, length):  # no more batches than each has draws
            batches = (batches[: len(batches) // 2 * 2 : 2] + batches[1::2]) / 2
            length *= 2
        if len(batches) < FEWEST or batches.shape[1] < 2:
            return None
        count, means = self._count, self._sum / self._count
        within = ((self._squares / count - means**2) * count / (count - 1)).mean(0)
        halves = np.stack([half.mean(0) for half in np.array_split(batches, 2)])
        apart = halves.reshape(-1, halves.shape[-1]).var(0, ddof=1)
        of_batches = batches.reshape(-1, batches.shape[-1]).var(0, ddof=1)
        rhats = np.sqrt(1 + apart / within)
        sizes = len(means) * count * (within + means.var(0)) / (length * of_batches)
        moves = within > 0
        if not moves.any() or not np.isfinite(rhats[moves]).all():
            return None
        return float(rhats[moves].max()), float(sizes[moves].min())


def _choose(parameters: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return draws (draw, chain, scalar) of the first scalars of every parameter."""
    names = list(parameters)[:MOST_SCALARS]
    each = max(1, MOST_SCALARS // max(1, len(names)))
    arrays = [np.asarray(parameters[name]) for name in names]
    flat = [x.reshape(*x.shape[:2], math.prod(x.shape[2:]))[:, :, :each] for x in arrays]
    return np.concatenate(flat, axis=2).astype(float) if flat else np.zeros((0, 1, 1))

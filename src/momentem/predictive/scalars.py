"""Scalars of a posterior that may be larger than memory: the first ones, at evenly spaced draws.

They are read once, and pictures and tables are made of them.
"""

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import xarray

__all__ = ["Scalars", "choose_scalars", "read_scalars", "thin"]

MOST_ROWS = 1000  # scalars
MOST_NUMBERS = 4 * 10**6  # in their draws; more are thinned
MOST_DRAWS = 2000  # of each chain, in a picture


class Scalars(NamedTuple):
    """Draws of scalars, (chain, draw), by label."""

    draws: dict[str, np.ndarray]
    every: int  # draws from one to the next
    total: int  # scalars of the posterior

    @property
    def every_shown(self) -> int:
        """Draws from one to the next in a picture."""
        return self.every * _spacing(next(iter(self.draws.values())).shape[1], MOST_DRAWS)


def thin(dataset: "xarray.Dataset", most: int = MOST_DRAWS) -> "xarray.Dataset":
    """Return evenly spaced draws, at most so many of each chain."""
    return dataset.isel(draw=slice(None, None, _spacing(dataset.sizes["draw"], most)))


def _spacing(number: int, most: int) -> int:
    return max(1, -(-number // most))


def read_scalars(trace: "xarray.DataTree", most: int = MOST_ROWS) -> Scalars:
    """Return draws of the first scalars. Each variable is read once, and no more of it than is
    needed, because a stored one is in many files."""
    posterior = trace["posterior"].to_dataset()
    total = sum(int(np.prod(array.shape[2:])) for array in posterior.data_vars.values())
    left, found = min(total, most), {}
    wanted = max(100, MOST_NUMBERS // max(1, left * posterior.sizes["chain"]))
    every = _spacing(posterior.sizes["draw"], wanted)
    for name, array in posterior.isel(draw=slice(None, None, every)).data_vars.items():
        if left <= 0:
            break
        if inner := array.dims[2:]:
            others = array.size // max(1, array.shape[0] * array.shape[1] * array.shape[2])
            array = array.isel({inner[0]: slice(-(-left // max(1, others)))})
        values = array.transpose("chain", "draw", ...).values
        for place in islice(np.ndindex(*values.shape[2:]), left):
            label = f"{name}[{', '.join(map(str, place))}]" if place else str(name)
            found[label] = values[(slice(None), slice(None), *place)]
            left -= 1
    return Scalars(found, every, total)


def choose_scalars(scalars: Scalars, most: int) -> dict[str, np.ndarray]:
    """Return draws of the first scalars for a picture, without those that never move if others
    do."""
    step = scalars.every_shown // scalars.every
    thinned = {label: draws[:, ::step] for label, draws in scalars.draws.items()}
    moving = {label: draws for label, draws in thinned.items() if np.ptp(draws) > 0}
    return dict(islice((moving or thinned).items(), most))

"""Data of the paper's experiments, read from the folder that MOMENTEM_DATA names.

    australian()              690 x 14, the Statlog Australian credit approvals
    heart()                   270 x 13, the Statlog heart disease data
    synthetic_logistic(seed)  two normals at [1, -1] and [-1, 1], made, not read

The files are the UCI repository's own (CC BY 4.0, doi:10.24432/C59012 and doi:10.24432/C57303).
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Classification", "australian", "heart", "synthetic_logistic"]


class Classification(NamedTuple):
    """Covariates, one row a datum, and labels 0 or 1."""

    x: np.ndarray
    y: np.ndarray

    def standardised(self) -> "Classification":
        """Every column with mean 0 and standard deviation 1."""
        return self._replace(x=(self.x - self.x.mean(axis=0)) / self.x.std(axis=0))


def australian() -> Classification:
    """The Australian credit approvals, categories as numbers; A14 reaches 100,001."""
    table = np.loadtxt(_found("australian/australian.dat"))
    return Classification(table[:, :-1], table[:, -1])


def heart() -> Classification:
    """The Statlog heart data; 1 is disease."""
    table = np.loadtxt(_found("heart_statlog/heart.dat"))
    return Classification(table[:, :-1], table[:, -1] - 1)


def synthetic_logistic(num: int = 2000, seed: int = 0) -> Classification:
    """Half the data from N([1, -1], I) and half from N([-1, 1], I), labels drawn with the weights
    [1, -1].

    Args:
        num: of data.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    centres = np.where(np.arange(num)[:, None] % 2 == 0, [[1.0, -1.0]], [[-1.0, 1.0]])
    x = centres + rng.normal(size=(num, 2))
    chance = 1 / (1 + np.exp(-x @ np.array([1.0, -1.0])))
    return Classification(x, (rng.uniform(size=num) < chance).astype(float))


def _found(name: str) -> Path:
    folder = os.environ.get("MOMENTEM_DATA")
    path = Path(folder or ".") / name
    if not folder or not path.is_file():
        where = f"it is not in {folder}" if folder else "the variable is not set"
        raise FileNotFoundError(
            f"{name} is looked for in the folder that MOMENTEM_DATA names, and {where}; download "
            "it from the UCI repository (docs/guide.md says which file)"
        )
    return path

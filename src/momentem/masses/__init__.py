"""How a mass acts, and what M-steps need of it."""

from momentem.masses.dense import DenseMass, dense_mass
from momentem.masses.diagonal import DiagonalMass, diagonal_mass
from momentem.masses.low_rank import LowRankMass, low_rank_mass
from momentem.masses.protocol import LearnableMass, MatrixMass, WindowMass

__all__ = [
    "DenseMass",
    "DiagonalMass",
    "LearnableMass",
    "LowRankMass",
    "MatrixMass",
    "WindowMass",
    "dense_mass",
    "diagonal_mass",
    "low_rank_mass",
]

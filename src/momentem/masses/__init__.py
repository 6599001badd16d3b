"""How a mass acts, and how it is learnt."""

from momentem.masses.all import (
    DenseMass,
    DiagonalMass,
    LowRankMass,
    dense_mass,
    diagonal_mass,
    low_rank_mass,
)

__all__ = [
    "DenseMass",
    "DiagonalMass",
    "LowRankMass",
    "dense_mass",
    "diagonal_mass",
    "low_rank_mass",
]

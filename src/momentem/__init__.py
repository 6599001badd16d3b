"""Bayesian sampling with Hamiltonian dynamics whose masses are learnt by Monte Carlo EM."""

from numpyro.distributions import constraints

from momentem import kernels, testing
from momentem.em import e_steps, fixed, forever, m_steps, monte_carlo_em, schedules
from momentem.masses import (
    DenseMass,
    DiagonalMass,
    LowRankMass,
    dense_mass,
    diagonal_mass,
    low_rank_mass,
)
from momentem.run import SamplingWarning, sample, summary
from momentem.samplers import hmc, hmc_em
from momentem.targets import Target, dataset, density, starts
from momentem.types import EnsembleInfo, Info, Kernel, Learnt, Mass, Sampler

__version__ = "0.1.0"

__all__ = [
    "DenseMass",
    "DiagonalMass",
    "EnsembleInfo",
    "Info",
    "Kernel",
    "Learnt",
    "LowRankMass",
    "Mass",
    "Sampler",
    "SamplingWarning",
    "Target",
    "constraints",
    "dataset",
    "dense_mass",
    "density",
    "diagonal_mass",
    "e_steps",
    "fixed",
    "forever",
    "hmc",
    "hmc_em",
    "kernels",
    "low_rank_mass",
    "m_steps",
    "monte_carlo_em",
    "sample",
    "schedules",
    "starts",
    "summary",
    "testing",
]

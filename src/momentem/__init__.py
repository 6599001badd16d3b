"""Bayesian sampling with Hamiltonian dynamics whose masses are learnt by Monte Carlo EM."""

from numpyro.distributions import constraints

from momentem import fixed_points, kernels, metrics, testing
from momentem.em import e_steps, fixed, forever, m_steps, monte_carlo_em, schedules
from momentem.keys import key
from momentem.masses import (
    DenseMass,
    DiagonalMass,
    LowRankMass,
    dense_mass,
    diagonal_mass,
    low_rank_mass,
)
from momentem.run import SamplingWarning, sample, summary
from momentem.samplers import (
    hmc,
    hmc_em,
    nphmc,
    rhmc,
    self_tuned,
    sg_nphmc,
    sg_nphmc_em,
    sghmc,
    sghmc_em,
    sgnht,
    sgnht_em,
    sgr_nphmc,
    tuned_hmc_em,
)
from momentem.targets import (
    NoisyGradient,
    StochasticTarget,
    Target,
    blocks,
    control_variate,
    dataset,
    density,
    mode,
    starts,
    with_replacement,
)
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
    "NoisyGradient",
    "Sampler",
    "SamplingWarning",
    "StochasticTarget",
    "Target",
    "blocks",
    "constraints",
    "control_variate",
    "dataset",
    "dense_mass",
    "density",
    "diagonal_mass",
    "e_steps",
    "fixed",
    "fixed_points",
    "forever",
    "hmc",
    "hmc_em",
    "kernels",
    "key",
    "low_rank_mass",
    "m_steps",
    "metrics",
    "mode",
    "monte_carlo_em",
    "nphmc",
    "rhmc",
    "sample",
    "schedules",
    "self_tuned",
    "sg_nphmc",
    "sg_nphmc_em",
    "sghmc",
    "sghmc_em",
    "sgnht",
    "sgnht_em",
    "sgr_nphmc",
    "starts",
    "summary",
    "testing",
    "tuned_hmc_em",
    "with_replacement",
]

"""Bayesian sampling with Hamiltonian dynamics whose masses are learnt by Monte Carlo EM."""

from numpyro.distributions import constraints

from momentem import fixed_points, kernels, metrics, testing
from momentem.bridges import (
    from_blackjax,
    from_numpyro,
    from_pymc,
    inverse_mass_matrix,
    last_positions,
    learnt_from,
    pymc_labels,
)
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
    "from_blackjax",
    "from_numpyro",
    "from_pymc",
    "hmc",
    "hmc_em",
    "inverse_mass_matrix",
    "kernels",
    "key",
    "last_positions",
    "learnt_from",
    "low_rank_mass",
    "m_steps",
    "metrics",
    "mode",
    "monte_carlo_em",
    "nphmc",
    "pymc_labels",
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
    "with_replacement",
]

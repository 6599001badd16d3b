"""Bayesian sampling with Hamiltonian dynamics whose masses are learnt by Monte Carlo EM."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from momentem import kernels, riemannian
from momentem._version import __version__ as __version__
from momentem.devices import mesh
from momentem.em import e_steps, fixed, forever, m_steps, monte_carlo_em, schedules
from momentem.masses import (
    DenseMass,
    DiagonalMass,
    LowRankMass,
    dense_mass,
    diagonal_mass,
    low_rank_mass,
)
from momentem.riemannian import fixed_points, metrics
from momentem.run.diagnostics import summary
from momentem.run.health import SamplingWarning
from momentem.run.warm_start import inverse_mass_matrix, last_positions, learnt_from
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
    tuned_sghmc_em,
)
from momentem.sampling import load, resume, sample
from momentem.targets import (
    NoisyGradient,
    StochasticTarget,
    Target,
    blocks,
    control_variate,
    dataset,
    density,
    mode,
    sources,
    starts,
    stream,
    with_replacement,
)
from momentem.tuning import tuned_em
from momentem.types import EnsembleInfo, Info, Kernel, Learnt, Mass, Sampler
from momentem.xla.keys import key

if TYPE_CHECKING:
    from numpyro.distributions import constraints as constraints

    from momentem import testing as testing
    from momentem.bridges import from_blackjax as from_blackjax
    from momentem.bridges import from_numpyro as from_numpyro
    from momentem.bridges import from_pymc as from_pymc
    from momentem.bridges import nuts as nuts
    from momentem.bridges import pymc_labels as pymc_labels
    from momentem.bridges import to_blackjax as to_blackjax
    from momentem.bridges import to_numpyro as to_numpyro
    from momentem.predictive import Prediction as Prediction
    from momentem.predictive import log_likelihood as log_likelihood
    from momentem.predictive import loo as loo
    from momentem.predictive import plot as plot
    from momentem.predictive import predict as predict
    from momentem.predictive import prior_predictive as prior_predictive
    from momentem.predictive import report as report
    from momentem.predictive import scores as scores

BRIDGES = (
    *("from_blackjax", "from_numpyro", "from_pymc", "nuts", "pymc_labels"),
    *("to_blackjax", "to_numpyro"),
)
PREDICTIVE = (
    *("Prediction", "log_likelihood", "loo", "plot", "predict", "prior_predictive", "report"),
    "scores",
)
LAZY = {  # imported when first used, because NumPyro takes longer to import than all the rest
    "constraints": "numpyro.distributions.constraints",
    "testing": "momentem.testing",
    **dict.fromkeys(BRIDGES, "momentem.bridges"),
    **dict.fromkeys(PREDICTIVE, "momentem.predictive"),
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'momentem' has no attribute {name!r}")
    home = import_module(LAZY[name])
    globals()[name] = value = getattr(home, name, home)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})


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
    "Prediction",
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
    "load",
    "log_likelihood",
    "loo",
    "low_rank_mass",
    "m_steps",
    "mesh",
    "metrics",
    "mode",
    "monte_carlo_em",
    "nphmc",
    "nuts",
    "plot",
    "predict",
    "prior_predictive",
    "pymc_labels",
    "report",
    "resume",
    "rhmc",
    "riemannian",
    "sample",
    "schedules",
    "scores",
    "self_tuned",
    "sg_nphmc",
    "sg_nphmc_em",
    "sghmc",
    "sghmc_em",
    "sgnht",
    "sgnht_em",
    "sgr_nphmc",
    "sources",
    "starts",
    "stream",
    "summary",
    "testing",
    "to_blackjax",
    "to_numpyro",
    "tuned_em",
    "tuned_hmc_em",
    "tuned_sghmc_em",
    "with_replacement",
]

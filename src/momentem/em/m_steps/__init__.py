"""How a mass, and whatever else a kernel leaves open, is learnt: M-steps.

With S pooled draws theta, their scores g = grad L(theta) and accepted momenta p, M_I_est is

    momentum           ((S - D - 1) / S) (mean p p')^-1       the paper's, its bias removed
    momentum_printed   (mean p p')^-1                         the paper's
    score              (mean g g')^-1                         E[g g'] = -E[hess L] at stationarity
    draws              Cov(theta)                             Stan's
    fisher             Cov(theta) # Cov(g)^-1                 minimises the Fisher divergence

where A # B is the geometric mean. The initial mass decides the structure: with a DiagonalMass every
matrix above is its diagonal (and D is 1 in the bias factor), with a DenseMass it is whole.
`fisher_low_rank` serves a LowRankMass, and `noise` stochastic kernels. Only `score`, `draws` and
`fisher` carry information about the target at stationarity, where p ~ N(0, M) for *every* M: see
docs/methods/mcem.md.
"""

from momentem.em.m_steps._draws import draws
from momentem.em.m_steps._fisher import fisher
from momentem.em.m_steps._low_rank import fisher_low_rank
from momentem.em.m_steps._momentum import momentum, momentum_printed
from momentem.em.m_steps._noise import noise
from momentem.em.m_steps._score import score
from momentem.em.m_steps.additions import add_means, with_anchor, with_centre, with_thermostat
from momentem.em.m_steps.contract import MStep

__all__ = [
    "MStep",
    "add_means",
    "draws",
    "fisher",
    "fisher_low_rank",
    "momentum",
    "momentum_printed",
    "noise",
    "score",
    "with_anchor",
    "with_centre",
    "with_thermostat",
]

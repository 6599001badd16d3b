"""From a kernel to a sampler: with everything held fixed, or learnt by Monte Carlo EM.

What is learnt and how: `m_steps`. From how many draws: `e_steps`. How estimates are averaged:
`schedules`.
"""

from momentem.em import e_steps, m_steps, schedules
from momentem.em._em import EMState, forever, monte_carlo_em
from momentem.em._fixed import FixedState, fixed

__all__ = [
    "EMState",
    "FixedState",
    "e_steps",
    "fixed",
    "forever",
    "m_steps",
    "monte_carlo_em",
    "schedules",
]

"""Monte Carlo EM around any kernel: how a mass is learnt, how long an E-step is, how estimates are
averaged."""

from momentem.em import e_steps, m_steps, schedules
from momentem.em._em import EMState, FixedState, fixed, forever, monte_carlo_em

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

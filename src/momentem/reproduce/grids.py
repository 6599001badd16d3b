"""The paper's grids: run all settings of a sampler at once, and choose the most accurate one.

The paper does not say how it chose. Here the settings are chosen by the distance of the draws from
the known posterior, on data that no table uses. This is the most favourable choice for a sampler
that is not tuned otherwise.
"""

from itertools import product

import numpy as np

from momentem.reproduce.contenders import Settings, contender
from momentem.reproduce.problems import Problem
from momentem.reproduce.runs import extremes, judge, run

__all__ = ["FRICTIONS", "STEP_SIZES", "choose_settings"]

STEP_SIZES = (1e-2, 1e-4, 1e-6)
FRICTIONS = (0.001, 0.01, 0.1, 1.0, 10.0)


def choose_settings(
    name: str,
    problem: Problem,
    settings: Settings,
    frictions: tuple[float, ...],
    num_warmup: int,
    num_draws: int,
) -> Settings:
    """Return the settings with the best step size of the grid and the best of some frictions.

    Args:
        name: of the sampler.
        problem: the problem to choose settings on.
        settings: of all samplers.
        frictions: to choose from. A single one is kept.
        num_warmup: iterations before the draws that are judged.
        num_draws: iterations after those.
    """
    candidates = [settings.set_sampler(name, *pair) for pair in product(STEP_SIZES, frictions)]
    samplers = [contender(name, problem, each) for each in candidates]
    draws = run([problem] * len(samplers), samplers, num_warmup, num_draws, seed=0).draws
    return candidates[int(np.argmin([_distance(problem, each[num_warmup:]) for each in draws]))]


def _distance(problem: Problem, draws: np.ndarray) -> float:
    """Return the distance from the posterior: of the mean in standard deviations, plus of the
    covariance in logarithms."""
    judged = judge(problem, draws)
    low, high = extremes(judged["covariance"])
    return judged["mean"] + max(abs(np.log(low)), abs(np.log(high))) if low > 0 else np.inf

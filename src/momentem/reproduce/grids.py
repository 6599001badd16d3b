"""The paper's grids: every setting of a sampler at once, and the one that comes nearest the truth.

The paper does not say by which measure it chose. Here the posterior itself chooses, on data that no
table uses: the most that a grid can give to a sampler that is not tuned otherwise.
"""

from itertools import product

import numpy as np

from momentem.reproduce.contenders import Settings, contender
from momentem.reproduce.problems import Problem
from momentem.reproduce.runs import extremes, judge, run

__all__ = ["FRICTIONS", "STEP_SIZES", "best"]

STEP_SIZES = (1e-2, 1e-4, 1e-6)
FRICTIONS = (0.001, 0.01, 0.1, 1.0, 10.0)


def best(
    name: str,
    problem: Problem,
    settings: Settings,
    frictions: tuple[float, ...],
    num_burn_in: int,
    num_draws: int,
) -> Settings:
    """The settings with the best step size of the grid, and the best of some frictions.

    Args:
        name: of the sampler.
        problem: to choose on.
        settings: of all samplers.
        frictions: to choose from; one is as good as given.
        num_burn_in: iterations before the draws that are judged.
        num_draws: iterations after those.
    """
    candidates = [settings.having(name, *pair) for pair in product(STEP_SIZES, frictions)]
    samplers = [contender(name, problem, each) for each in candidates]
    draws = run([problem] * len(samplers), samplers, num_burn_in, num_draws, seed=0).draws
    return candidates[int(np.argmin([_distance(problem, each[num_burn_in:]) for each in draws]))]


def _distance(problem: Problem, draws: np.ndarray) -> float:
    """From the posterior: of its mean in standard deviations, of its covariance in logarithms."""
    judged = judge(problem, draws)
    low, high = extremes(judged["covariance"])
    return judged["mean"] + max(abs(np.log(low)), abs(np.log(high))) if low > 0 else np.inf

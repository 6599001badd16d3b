"""A stochastic kernel whose momentum is redrawn in every iteration, an exact Gibbs step.

Thermostats are kept: they hold the noise that they have absorbed (maths 6.2).
"""

from typing import Any

import jax
from jax.tree_util import Partial

from momentem.checks import check_instance
from momentem.kernels.langevin import fresh_momentum
from momentem.types import Info, Kernel, Learnt, PRNGKey

__all__ = ["refreshed"]


def refreshed(kernel: Kernel) -> Kernel:
    """The same kernel with its momentum redrawn before each iteration, as in Algorithm 3.

    The shorter an iteration, the more this turns the dynamics into a random walk.

    Args:
        kernel: one whose state has a whitened momentum, e.g. `sghmc(…)`.
    """
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    return kernel._replace(step=Partial(_step, kernel))


def _step(kernel: Kernel, key: PRNGKey, state: Any, learnt: Learnt) -> tuple[Any, Info]:
    momentum_key, step_key = jax.random.split(key)
    fresh = state._replace(whitened=fresh_momentum(momentum_key, state.position))
    return kernel.step(step_key, fresh, learnt)

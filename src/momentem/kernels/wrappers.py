"""A stochastic kernel whose control variates are around the anchor that EM has learnt."""

from typing import Any

from jax.tree_util import Partial

from momentem.checks import check_instance
from momentem.pytrees import replaced
from momentem.types import Info, Kernel, Learnt, PRNGKey, Vector

__all__ = ["following"]


def following(kernel: Kernel) -> Kernel:
    """The same kernel with the anchor of `learnt` in place of its target's.

    Args:
        kernel: of a target with control variates, e.g. `sghmc(control_variate(target), 10)`.
    """
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    return kernel._replace(init=Partial(_init, kernel), step=Partial(_step, kernel))


def _init(kernel: Kernel, key: PRNGKey, position: Vector, learnt: Learnt) -> Any:
    return replaced(kernel, learnt.anchor).init(key, position, learnt)


def _step(kernel: Kernel, key: PRNGKey, state: Any, learnt: Learnt) -> tuple[Any, Info]:
    return replaced(kernel, learnt.anchor).step(key, state, learnt)

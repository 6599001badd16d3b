"""Kernels made from kernels."""

from typing import Any

import jax
from jax.tree_util import Partial

from momentem.checks import check_instance
from momentem.kernels.langevin import draw_momentum
from momentem.pytrees import find_node, replace_node
from momentem.targets.control_variates import Anchor
from momentem.types import Info, Kernel, Learnt, PRNGKey, Vector

__all__ = ["following", "refreshed"]


def following(kernel: Kernel) -> Kernel:
    """Return the same kernel with the anchor of `Learnt` in place of its target's.

    Args:
        kernel: its target has control variates, e.g. `sghmc(control_variate(target), 10)`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.following(mt.kernels.sghmc(mt.control_variate(target), 3))
        >>> isinstance(kernel, mt.Kernel)
        True
    """
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    if find_node(Anchor, kernel) is None:
        raise TypeError(
            "kernel must sample a target with control variates, and this one has none; build its "
            "target by momentem.control_variate(target)"
        )
    return kernel._replace(
        init=Partial(_follow_init, kernel),
        step=Partial(_follow_step, kernel),
        complete=Partial(_follow_complete, kernel),
    )


def refreshed(kernel: Kernel) -> Kernel:
    """Return the same kernel with its momentum redrawn before each draw, as in Algorithm 3.

    Redrawing the momentum is an exact Gibbs step. The fewer steps a draw takes, the more it turns
    the dynamics into a random walk. Thermostats are kept, since they hold the noise that they have
    absorbed (maths 6.2).

    Args:
        kernel: its state has a whitened momentum, e.g. `sghmc(target, 10)`.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.refreshed(mt.kernels.sghmc(target, num_steps=3))
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), noise=jnp.ones(2))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    return kernel._replace(step=Partial(_refresh_step, kernel))


def _follow_complete(kernel: Kernel, learnt: Learnt) -> Learnt:
    anchor = find_node(Anchor, kernel)._asdict()
    del anchor["follows"]
    known = {name: array for name, array in anchor.items() if array is not None}
    return kernel.complete(learnt).with_defaults(anchor=known)


def _follow(kernel: Kernel, learnt: Learnt) -> Kernel:
    """Return the kernel with the anchor that was learnt."""
    return replace_node(kernel, find_node(Anchor, kernel)._replace(**learnt.anchor))


def _follow_init(kernel: Kernel, key: PRNGKey, position: Vector, learnt: Learnt) -> Any:
    return _follow(kernel, learnt).init(key, position, learnt)


def _follow_step(kernel: Kernel, key: PRNGKey, state: Any, learnt: Learnt) -> tuple[Any, Info]:
    return _follow(kernel, learnt).step(key, state, learnt)


def _refresh_step(kernel: Kernel, key: PRNGKey, state: Any, learnt: Learnt) -> tuple[Any, Info]:
    momentum_key, step_key = jax.random.split(key)
    fresh = state._replace(whitened=draw_momentum(momentum_key, state.position))
    return kernel.step(step_key, fresh, learnt)

"""Values that are computed once, and changes that are seldom due: loops that XLA keeps as they are.

XLA merges loops: a loop's values are computed again in each that uses them, for each element that
it uses, and random bits, which are whole numbers, count as cheap. On a CPU it drops
`optimization_barrier` before it merges. It keeps a loop that it cannot prove to be idle, and what a
loop carries has a place in memory.

`lax.cond` copies every array that it might have changed, on every iteration, and mapped over a
batch it always computes both branches. A loop's carry is changed in place, and mapped over, its
body runs only when it is due somewhere.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from momentem.types import PRNGKey

__all__ = ["compute_once", "run_if_due"]


def compute_once(values: Any) -> Any:
    """Return `values` unchanged, computed once. The first leaf must be floating-point.

    Args:
        values: a tree of arrays. The first leaf is not copied.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(compute_once(jnp.arange(3.0)))
        [0. 1. 2.]
    """
    first = jax.tree.leaves(values)[0].reshape(-1)[0]

    def idle(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        # runs once, and only where there are NaN already
        return jnp.zeros_like(carry[0]), jax.tree.map(lambda leaf: leaf + leaf, carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], idle, (jnp.isnan(first), values))[1]


def run_if_due(is_due: Any, change: Callable[[PRNGKey, Any], Any], key: PRNGKey, state: Any) -> Any:
    """Return `change(key, state)` if it is due, else the state as it is.

    Args:
        is_due: a boolean.
        change: from a state to one of the same shapes.
        key: that the change may use.
        state: any tree of arrays.
    """

    def once(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        # JAX's check of keys cannot see that the loop ends here: a clone may be used again
        return jnp.zeros_like(carry[0]), change(jax.random.clone(key), carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], once, (is_due, state))[1]

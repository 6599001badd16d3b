"""Values that are computed once, and updates that are rarely due, both as loops that XLA keeps.

XLA fuses loops: it computes the values of a loop again in every loop that uses them, for every
element used. Random bits are integers, which it counts as cheap. On a CPU it drops
`optimization_barrier` before fusion. But it keeps a loop that it cannot prove to be idle, and the
carry of a loop is stored in memory.

`lax.cond` copies every array that it might change in every iteration, and under `vmap` it always
computes both branches. The carry of a loop is changed in place, and under `vmap` its body runs only
when it is due for some element of the batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from momentem.types import PRNGKey

__all__ = ["compute_once", "run_if_due"]


def compute_once(values: Any) -> Any:
    """Return `values` unchanged, computed once.

    Args:
        values: a tree of arrays. The first leaf must be floating-point. It is not copied.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(compute_once(jnp.arange(3.0)))
        [0. 1. 2.]
    """
    first = jax.tree.leaves(values)[0].reshape(-1)[0]

    def idle(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        # runs only if the first number is NaN, and then once
        return jnp.zeros_like(carry[0]), jax.tree.map(lambda leaf: leaf + leaf, carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], idle, (jnp.isnan(first), values))[1]


def run_if_due(is_due: Any, change: Callable[[PRNGKey, Any], Any], key: PRNGKey, state: Any) -> Any:
    """Return `change(key, state)` if it is due, and the state unchanged otherwise.

    Args:
        is_due: a boolean.
        change: (key, state) -> a state with the same shapes.
        key: a PRNG key for the change.
        state: any tree of arrays.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> def double(key, state):
        ...     return 2 * state
        >>> print(run_if_due(jnp.array(True), double, jax.random.key(0), jnp.arange(3.0)))
        [0. 2. 4.]
    """

    def once(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        # JAX's check of key reuse cannot see that the loop ends here, and a clone may be reused
        return jnp.zeros_like(carry[0]), change(jax.random.clone(key), carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], once, (is_due, state))[1]

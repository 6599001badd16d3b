"""A change of state that is seldom due: a loop that runs once or not at all.

`lax.cond` copies every array that it might have changed, on every iteration, and mapped over a
batch it computes both branches always. A loop's carry is changed in place, and mapped over, its
body runs only when it is due somewhere.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from momentem.types import PRNGKey

__all__ = ["rarely"]


def rarely(is_due: Any, change: Callable[[PRNGKey, Any], Any], key: PRNGKey, state: Any) -> Any:
    """`change(key, state)` if it is due, else the state as it is.

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

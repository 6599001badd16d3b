"""A change of state that is seldom due: a loop that runs once or not at all.

`lax.cond` copies every array that it might have changed, on every iteration, and mapped over a
batch it computes both branches always. A loop's carry is changed in place, and mapped over, its
body runs only when it is due somewhere.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["rarely"]


def rarely(is_due: Any, change: Callable[[Any], Any], state: Any) -> Any:
    """`change(state)` if it is due, else the state as it is.

    Args:
        is_due: a boolean.
        change: from a state to one of the same shapes.
        state: any tree of arrays.
    """

    def once(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return jnp.zeros_like(carry[0]), change(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], once, (is_due, state))[1]

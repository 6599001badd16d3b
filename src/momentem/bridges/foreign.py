"""What code of other libraries needs to ride in our compiled programs.

`Constants` holds what cannot be an array: sizes, functions, text. It is static under jit, and equal
to another with the same content, so that a model bound anew does not compile again.

`usual_promotion` gives other libraries JAX's usual promotion of dtypes and ranks, which they are
written for, in programs that set stricter rules for themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

__all__ = ["Constants", "usual_promotion"]


@jax.tree_util.register_static
class Constants:
    """Values that are part of the compiled program. What has no hash is compared by identity."""

    def __init__(self, *values: Any):
        self.values = values
        self._identity = tuple((type(value), _identity(value)) for value in values)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Constants) and self._identity == other._identity


def _identity(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


@contextmanager
def usual_promotion() -> Iterator[None]:
    """Within it, dtypes and ranks promote as JAX does unless told otherwise."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

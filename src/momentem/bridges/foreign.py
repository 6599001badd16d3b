"""Helpers for the code of other libraries inside our compiled programs.

`Constants` holds values that cannot be arrays: sizes, functions, strings. It is static under jit.
Two with the same content are equal, so a model that is bound again does not compile again.

`usual_promotion` restores JAX's default promotion of dtypes and ranks for other libraries, in
programs that set stricter rules.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

__all__ = ["Constants", "usual_promotion"]


@jax.tree_util.register_static
class Constants:
    """Values that are part of the compiled program. Values without a hash are compared by
    identity."""

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
    """Use JAX's default promotion of dtypes and ranks inside the `with` block."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield

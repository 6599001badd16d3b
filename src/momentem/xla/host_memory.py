"""Host memory for many rows, of a kind that JAX uses as it lies.

An array that is aligned to a cache line is not copied by `jax.device_put` on a CPU. And NumPy asks
for huge pages, which JAX's own allocator does not: rows at random places in gigabytes are then
found without a walk through page tables.
"""

import math
from typing import Any

import jax
import numpy as np

__all__ = ["empty_rows", "on_device"]

ALIGNMENT = 64  # bytes


def empty_rows(num_rows: int, like: Any) -> np.ndarray:
    """An array of so many rows like those of `like`, of any content."""
    shape, dtype = (num_rows, *like.shape[1:]), np.dtype(like.dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def on_device(rows: Any) -> Any:
    """A pytree of host arrays that nobody writes to any more, as JAX arrays."""
    return jax.tree.map(jax.device_put, rows)

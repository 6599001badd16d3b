"""Host memory for many rows that JAX uses without a copy.

On a CPU, `jax.device_put` does not copy an array that is aligned to a cache line. NumPy also
requests huge pages, and JAX's allocator does not. With huge pages, access to random rows in
gigabytes of memory needs no walk through page tables.
"""

import math
from typing import Any

import jax
import numpy as np

__all__ = ["empty_rows", "on_device"]

ALIGNMENT = 64  # bytes


def empty_rows(num_rows: int, like: Any) -> np.ndarray:
    """Return an uninitialised array of `num_rows` rows with the shape and dtype of `like`'s."""
    shape, dtype = (num_rows, *like.shape[1:]), np.dtype(like.dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def on_device(rows: Any) -> Any:
    """Return a pytree of host arrays as JAX arrays. The host arrays must not change afterwards."""
    return jax.tree.map(jax.device_put, rows)

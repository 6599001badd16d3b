"""Large numbers of standard normals.

z = sqrt(2) erfinv(x) with x uniform on (-1, 1). erfinv is computed by Giles's polynomials in
w = -log(1 - x^2) ("Approximating the erfinv function", 2012), as in `jax.random.normal`. The
difference is the logarithm: it is computed as log((1 - x) (1 + x)), because XLA vectorises its
loop, and does not vectorise that of log1p. Normals are drawn in rows, because XLA does not
vectorise a loop over a single axis that is divided among processors.
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from momentem.types import PRNGKey
from momentem.xla.once import compute_once

__all__ = ["normal"]

CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
LARGEST = 1 - 2.0**-24  # the largest float below 1
ROW = 512


def normal(key: PRNGKey, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw standard normals. Other types than float32 are drawn by JAX.

    Args:
        key: a PRNG key, to be used once.
        shape: of the result.
        dtype: of the result.

    Examples:
        >>> import jax
        >>> normal(jax.random.key(0), (3,), "float32").shape
        (3,)
    """
    if np.dtype(dtype) != np.float32:
        return jax.random.normal(key, shape, dtype)
    size = math.prod(shape)
    bits = jax.random.bits(key, (-(-size // ROW), ROW), np.uint32)
    x = jax.lax.bitcast_convert_type(bits, np.int32).astype(np.float32) * np.float32(2.0**-31)
    x = jnp.clip(x, -LARGEST, LARGEST)
    w = -jnp.log((1 - x) * (1 + x))
    scaled = jnp.where(w < 5, _polynomial(CENTRE, w - 2.5), _polynomial(TAIL, jnp.sqrt(w) - 3))
    rows = compute_once(np.float32(2**0.5) * scaled * x)
    return rows.reshape(-1)[:size].reshape(shape)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    return reduce(lambda value, each: value * x + each, coefficients, jnp.zeros_like(x))

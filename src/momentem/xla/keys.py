"""JAX's random numbers, bit for bit, drawn in one pass.

On a CPU, JAX computes its hash, threefry2x32, as a loop of five small array programs. Launching
these is most of the cost of a short sampler step: about 400 of 570 launches for D = 2 and one
chain. Written out without a loop, the rounds fuse with the code that uses the bits. The hash and
the counters are the same, so a seed gives the same draws either way. (docs/decisions/0008-keys.md)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array

from momentem.types import PRNGKey

__all__ = ["key", "standard"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def key(seed: Any) -> PRNGKey:
    """Return the key of `jax.random.key(seed)`, with draws that cost less in small compiled loops.

    Args:
        seed: a whole number.

    Examples:
        >>> import jax, momentem as mt
        >>> bool(jax.random.normal(mt.key(7)) == jax.random.normal(jax.random.key(7)))
        True
    """
    raw = jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
    return jax.random.wrap_key_data(raw, impl=_STRAIGHT)


def standard(key: PRNGKey) -> PRNGKey:
    """Return the same key with JAX's own type, for functions that accept no other."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def _threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Return the Threefry-2x32 hash with 20 rounds (Salmon et al. 2011)."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    a, b = high + schedule[0], low + schedule[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation)))
        a = a + schedule[(i + 1) % 3]
        b = b + schedule[(i + 2) % 3] + np.uint32(i + 1)
    return a, b


def _hash_indices(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return two words for each element of `shape`: the hash of its 64-bit index, as in JAX."""
    if math.prod(shape) > 2**32:
        raise ValueError(
            f"shape must have at most 2^32 elements, got {shape}; draw them in several parts"
        )
    low = jax.lax.iota(np.uint32, math.prod(shape)).reshape(shape)
    return _threefry(key, jnp.zeros_like(low), low)


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _store(jnp.stack(_hash_indices(key, shape), axis=-1))


def _fold_in(key: Array, data: Any) -> Array:
    words = _threefry(key, jnp.zeros_like(data, np.uint32), data.astype(np.uint32))
    return _store(jnp.stack(words))


def _store(key: Array) -> Array:
    """Store the key as a result. Otherwise its hash is compiled again into all code that uses it,
    which takes a tenth of the default sampler's compilation."""
    return jax.lax.optimization_barrier(key)


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    high, low = _hash_indices(key, shape)
    if width == 64:
        return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (high ^ low).astype(f"uint{width}")


_STRAIGHT = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="threefry2x32_straight",
)

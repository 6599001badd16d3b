"""momentem.key draws what jax.random.key draws, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt


@pytest.fixture(params=[0, 1, 2**31 + 5, 2**32 - 1], ids=str)
def pair(request):
    return jax.random.key(request.param), mt.key(request.param)


def assert_same(theirs, ours):
    np.testing.assert_array_equal(np.asarray(theirs), np.asarray(ours))


def test_same_derived_keys(pair):
    theirs, ours = pair
    data = jax.random.key_data
    assert_same(data(theirs), data(ours))
    assert_same(data(jax.random.split(theirs, (3, 2))), data(jax.random.split(ours, (3, 2))))
    assert_same(data(jax.random.fold_in(theirs, 12345)), data(jax.random.fold_in(ours, 12345)))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_same_bits(pair, dtype):
    theirs, ours = pair
    for shape in ((), (7,), (3, 0), (5, 2, 3)):
        assert_same(jax.random.bits(theirs, shape, dtype), jax.random.bits(ours, shape, dtype))


def test_same_normals_mapped_over_keys(pair):
    draw = jax.jit(jax.vmap(lambda key: jax.random.normal(key, (6,), jnp.float32)))
    theirs, ours = (draw(jax.random.split(key, 5)) for key in pair)
    assert_same(theirs, ours)


def test_too_many_at_once_are_refused():
    with pytest.raises(ValueError, match="at most 2\\^32 elements"):
        jax.jit(lambda: jax.random.bits(mt.key(0), (2**17, 2**17))).lower()

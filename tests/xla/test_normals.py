"""Fast normals are normal; values that are computed once are not changed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from momentem.kernels import langevin
from momentem.xla import normals
from momentem.xla.once import compute_once

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM = 1_000_000


@pytest.mark.parametrize("broken", [None, "CENTRE", "TAIL"])
def test_normals_in_law(monkeypatch, broken):
    """Kolmogorov's distance of 10^6, and the share beyond 3: each a false alarm in 10^6 seeds. A
    coefficient that is off by a hundredth, or left out, shows."""
    if broken == "CENTRE":
        monkeypatch.setattr(normals, "CENTRE", (*normals.CENTRE[:-1], 1.01 * normals.CENTRE[-1]))
    if broken == "TAIL":
        monkeypatch.setattr(normals, "TAIL", (*normals.TAIL[:-2], 0.9, normals.TAIL[-1]))
    z = np.asarray(normals.normal(jax.random.key(0), (NUM,), jnp.float32), float)
    is_near = stats.kstest(z, "norm").statistic < 2.7 / NUM**0.5
    beyond = 2 * stats.norm.sf(3)
    # w > 5, where the other polynomial begins, is |z| > 2.9
    is_near &= abs(np.mean(np.abs(z) > 3) - beyond) < 5 * (beyond / NUM) ** 0.5
    assert is_near == (broken is None)


def test_normals_are_those_of_the_inverse_error_function(monkeypatch):
    """At every 4096th of all bits, the ends included: within a few units of the last place."""
    bits = np.append(np.arange(0, 2**32, 4096), [2**31 - 1, 2**31, 2**32 - 1]).astype(np.uint32)
    monkeypatch.setattr(
        normals.jax.random, "bits", lambda key, shape, dtype: jnp.asarray(np.resize(bits, shape))
    )
    found = np.asarray(normals.normal(jax.random.key(0), bits.shape, np.float32), float)
    x = bits.astype(np.int64)
    x = np.where(x < 2**31, x, x - 2**32) * 2.0**-31
    rounded = np.clip(x.astype(np.float32), -normals.LARGEST, normals.LARGEST).astype(float)
    np.testing.assert_allclose(found, stats.norm.ppf((1 + rounded) / 2), rtol=3e-5, atol=1e-6)
    assert np.abs(found).max() < 6


def test_other_types_are_jax_s_own():
    key = jax.random.key(1)
    expected = jax.random.normal(key, (5,), jnp.float64)
    np.testing.assert_array_equal(normals.normal(key, (5,), jnp.float64), expected)


@pytest.mark.parametrize("dim", [3, langevin.MOST_AT_ONCE + 1])
def test_normals_of_steps_are_independent(dim):
    """Of steps, of those within a step, and the spare: correlations below 5 / sqrt(n)."""
    like = jnp.zeros(dim, jnp.float32)

    def drawn(key):
        found = langevin.step_normals(key, 3, 2, like)
        return jnp.concatenate(
            [jax.vmap(found.drawn)(found.sources).reshape(6, dim), found.spare[None]]
        )

    rows = jax.vmap(drawn)(jax.random.split(jax.random.key(2), 1 + 30_000 // dim))
    rows = np.asarray(rows, float).transpose(1, 0, 2).reshape(7, -1)
    correlations = np.corrcoef(rows)
    assert np.abs(correlations - np.eye(7)).max() < 5 / rows.shape[1] ** 0.5
    assert np.abs(rows.var(axis=1) - 1).max() < 5 * (2 / rows.shape[1]) ** 0.5


def test_computed_once_changes_nothing():
    values = (jnp.array([1.5, jnp.nan, -2.0]), jnp.arange(4), jnp.array([[jnp.inf]]))
    found = jax.jit(compute_once)(values)
    jax.tree.map(np.testing.assert_array_equal, found, values)

"""Targets whose draws can be made exactly, for tests that a kernel leaves them alone."""

import jax
import jax.numpy as jnp
import numpy as np

COVARIANCE = np.array([[4.0, 0.9], [0.9, 0.25]])
PRECISION = jnp.asarray(np.linalg.inv(COVARIANCE))
FACTOR = jnp.asarray(np.linalg.cholesky(COVARIANCE))


def skewed(x):
    """Logarithms of Gamma(1) and Gamma(3) variables, the second shifted by half the first."""
    y = x[1] - 0.5 * x[0]
    return x[0] - jnp.exp(x[0]) + 3 * y - jnp.exp(y)


def skewed_exact(key, n):
    one, two = jax.random.split(key)
    x, y = jnp.log(jax.random.gamma(one, 1.0, (n,))), jnp.log(jax.random.gamma(two, 3.0, (n,)))
    return jnp.stack([x, y + 0.5 * x], axis=1)

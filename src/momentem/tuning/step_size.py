"""The step size by dual averaging of the ensemble's acceptance rate (Hoffman and Gelman 2014).

    H_t   <- (1 - 1/(t + t0)) H + (target - rate) / (t + t0)
    x_t   <- mu - sqrt(t) / gamma H_t                               explores
    xbar  <- t^-kappa x + (1 - t^-kappa) xbar                       settles

x is the logarithm of the step size, and mu what it is drawn to. There is one rate per iteration:
the mean over the chains.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from momentem.types import Count, Scalar

__all__ = ["LONGEST", "DualAveraging", "add_rate", "restart", "start"]

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75  # Hoffman and Gelman's
LONGEST = 0.75 * math.pi  # of paths, but for their jitter, and so of steps
OPTIMISM = 0.7  # mu above the start, in logarithms: exploring errs on the large side


class DualAveraging(NamedTuple):
    """x, xbar and what they are computed from."""

    time: Count
    centre: Scalar  # mu
    error: Scalar  # H
    log_step: Scalar  # x
    log_average: Scalar  # xbar


def start(step_size: Scalar) -> DualAveraging:
    """Start at a step size, with no rates seen."""
    x = jnp.log(step_size)
    return DualAveraging(jnp.array(0), x + OPTIMISM, jnp.zeros_like(x), x, x)


def restart(old: DualAveraging) -> DualAveraging:
    """Start at the old average, with no rates seen."""
    return start(jnp.exp(old.log_average))


def add_rate(old: DualAveraging, rate: Scalar, target: Scalar | float) -> DualAveraging:
    """Add an iteration in which proposals were accepted at this rate."""
    time = old.time + 1
    t = time.astype(rate.dtype)
    error = (1 - 1 / (t + T0)) * old.error + (target - rate) / (t + T0)
    log_step = jnp.minimum(old.centre - jnp.sqrt(t) / GAMMA * error, math.log(LONGEST))
    weight = t**-KAPPA
    average = weight * log_step + (1 - weight) * old.log_average
    return DualAveraging(time, old.centre, error, log_step, average)

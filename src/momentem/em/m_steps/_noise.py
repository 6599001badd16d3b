"""Mass, gradient noise and step size of a stochastic kernel from the noise of its minibatches.

The half-differences of the minibatches have the covariance V of the gradient noise, and those of
the plain gradient (n/N)^-1 times the data's Fisher information. So

    M   <- (n/N) Cov(information) + prior curvature,      V <- Cov(noise)
    eps <- min(max_step_size, 2 share A / lambda, sqrt(.1 / lambda)),   lambda = lambda_max(M^-1 V)

At that step size the noise Bhat = eps V / 2 is at most `share` times the injected friction A M, and
eps lambda_max(M^-1 Bhat), the scale of the error in the covariance, at most .05.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_positive
from momentem.em.m_steps._noise_low_rank import (
    LastNoises,
    add_last,
    estimate_low_rank,
    no_noises,
)
from momentem.em.m_steps.contract import MStep, empty_second_moment, target_of
from momentem.masses import WindowMass
from momentem.pytrees import find_node, where
from momentem.targets._minibatch import StochasticTarget, one_gradient
from momentem.types import Count, Flag, Friction, Info, Kernel, Learnt, Scalar, Vector
from momentem.xla.keys import key

__all__ = ["noise"]

COST = 2.0  # of a gradient with control variates
BIAS_SCALE = 0.05  # of eps lambda_max(M^-1 Bhat), maths 6.4


class Noises(NamedTuple):
    """Second moments of gradient noise and information, and where the draws were."""

    num_samples: Count
    num_noises: Count
    noise: Array
    information: Any  # None where the noise is it
    position: Vector  # summed


class NoiseEstimate(NamedTuple):
    """An estimate of the mass, and of V in the mass's structure."""

    mass: Any
    noise_matrix: Array
    plain_matrix: Array  # V without control variates

    def is_proper(self) -> Flag:
        """Return whether both can be used."""
        return self.mass.is_proper() & jnp.all(jnp.isfinite(self.noise_matrix))


def noise(kernel: Kernel, share: float = 2.0, max_step_size: float = 0.3) -> MStep:
    """Learn everything that a stochastic kernel leaves open: mass, gradient noise and step size.

    Args:
        kernel: whose target and friction the M-step works with.
        share: of the noise in units of the friction.
        max_step_size: in whitened time, where every posterior frequency is about 1.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(10.0), 0.0, batch_size=2)
        >>> m_step = mt.m_steps.noise(mt.kernels.sghmc(target, num_steps=5))
    """
    target, friction = target_of(kernel), find_node(Friction, kernel)
    if friction is None:
        raise TypeError(
            "kernel must have a friction that balances the gradient noise, and this one has none; "
            "use kernels.sghmc, sgnht, matrix_sgnht, ccadl or sg_nphmc, or another M-step"
        )
    check_positive(share=share, max_step_size=max_step_size)
    return MStep(
        Partial(_init, target),
        Partial(_update),
        Partial(_estimate, target),
        Partial(_average, friction.rate, share, max_step_size),
    )


def _init(target: StochasticTarget, mass: Any, size: Any) -> Noises | LastNoises:
    noisy = jax.eval_shape(one_gradient, target, key(0), target.initial)
    if isinstance(mass, WindowMass):
        return no_noises(mass, noisy.information is not None)
    zeros = empty_second_moment(mass, size).total
    position = jnp.zeros_like(mass.inverse_mass_diagonal())
    information = None if noisy.information is None else zeros
    return Noises(jnp.array(0), jnp.zeros((), int), zeros, information, position)


def _update(statistic: Any, info: Info, learnt: Learnt) -> Noises | LastNoises:
    if isinstance(statistic, LastNoises):
        return add_last(statistic, info)
    mass, dim, is_empty = learnt.mass, info.position.shape[1], statistic.num_samples == 0

    def kept(array: Array) -> Array:
        return jnp.where(is_empty, jnp.zeros_like(array), array)

    def added(total: Array, samples: Array) -> Array:
        return kept(total) + mass.outer(samples.reshape(-1, dim))

    num_new = info.noise.shape[1] * jnp.sum(~info.stats["diverging"])  # the others are zeros
    return Noises(
        num_samples=statistic.num_samples + len(info.position),
        num_noises=kept(statistic.num_noises) + num_new.astype(statistic.num_noises.dtype),
        noise=added(statistic.noise, info.noise),
        information=jax.tree.map(added, statistic.information, info.information),
        position=kept(statistic.position) + jnp.sum(info.position, axis=0),
    )


def _estimate(target: StochasticTarget, statistic: Any, learnt: Learnt) -> NoiseEstimate:
    mass, dtype = learnt.mass, statistic.position.dtype
    n = statistic.num_noises.astype(dtype)
    position = statistic.position / statistic.num_samples.astype(dtype)
    prior = jnp.maximum(target.prior_curvature(position), 0)
    if isinstance(statistic, LastNoises):
        scale = target.information_scale
        return NoiseEstimate(*estimate_low_rank(statistic, mass, scale, prior))
    prior = mass.diagonal(prior)
    samples = statistic.noise if statistic.information is None else statistic.information
    information = mass.shrink(samples / n, statistic.num_noises, power=2)
    fisher = target.information_scale * information + prior
    estimate = mass.from_inverse_mass(mass.inverse(fisher))
    return NoiseEstimate(estimate, statistic.noise / n, samples / n)


def _average(
    friction: Any,
    share: Any,
    max_step_size: Any,
    learnt: Learnt,
    estimate: NoiseEstimate,
    rate: Scalar,
) -> Learnt:
    # before the first M-step there is nothing to average with
    rate_noise = jnp.where(jnp.any(learnt.noise > 0), rate, 1)
    old = learnt.mass.noise_matrix(learnt.noise)
    averaged = learnt.mass.average(estimate.mass, rate)

    def tuned(noise_matrix: Array) -> Learnt:
        mass, noise = averaged.with_frame(noise_matrix)
        largest = jnp.max(noise)
        by_share, by_bias = 2 * share * friction / largest, jnp.sqrt(2 * BIAS_SCALE / largest)
        step_size = jnp.minimum(max_step_size, jnp.minimum(by_share, by_bias))
        return learnt.replace(mass=mass, noise=noise, step_size=step_size.astype(noise.dtype))

    new = tuned((1 - rate_noise) * old + rate_noise * estimate.noise_matrix)
    if "anchor" not in learnt or "is_used" not in learnt.anchor:
        return new
    return _keep_control_if_it_pays(new, tuned(estimate.plain_matrix))


def _keep_control_if_it_pays(with_control: Learnt, without: Learnt) -> Learnt:
    """Return what was learnt, without control variates from now on if they do not pay: time passes
    in proportion to the step size, and each of their gradients costs as much as COST."""
    is_used = with_control.anchor["is_used"]
    pays = (is_used > 0) & (with_control.step_size >= COST * without.step_size)
    chosen = where(pays, with_control, without)
    return chosen.replace(anchor=chosen.anchor | {"is_used": pays.astype(is_used.dtype)})

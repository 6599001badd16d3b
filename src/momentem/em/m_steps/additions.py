"""M-steps that learn something besides: they wrap another M-step, and use means over the E-step.

with_centre        mu <- mean theta + M_I mean grad L     of rotating HMC
with_anchor        theta_0 <- mean theta                  of control variates
with_thermostat    Q <- Var(q)                            of SG-NPHMC
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_instance
from momentem.em.m_steps.contract import MStep, target_of
from momentem.pytrees import as_partial
from momentem.targets.control_variates import anchor_at
from momentem.types import Count, Flag, Info, Kernel, Learnt, Scalar, Vector

__all__ = ["add_means", "with_anchor", "with_centre", "with_thermostat"]


FAR = 4.0  # squared distance per dimension, in standard deviations, at which control is tried anew


class InnerAndMeans(NamedTuple):
    """The inner statistic, and the means of what else is learnt from."""

    num_samples: Count
    inner: Any
    means: tuple[Array, ...]


class Estimate(NamedTuple):
    """The inner estimate, and the means of what else is learnt from."""

    inner: Any
    means: tuple[Array, ...]
    is_usable: Flag

    def is_proper(self) -> Flag:
        """Return whether all can be used."""
        return self.inner.is_proper() & self.is_usable


def with_thermostat(m_step: MStep) -> MStep:
    """Learn the thermostat's mass too: Q <- Var(q), as in the paper's SG-NPHMC-EM.

    q is centred, because its mean is the noise that the thermostat absorbs. For SG-NPHMC alone: the
    thermostat of SGNHT is xi = q / Q, whose variance is 1 / Q.

    Args:
        m_step: what learns the rest.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.with_thermostat(mt.m_steps.momentum())
    """
    return add_means(m_step, _thermostat_moments, _has_variance, _average_thermostat)


def with_centre(m_step: MStep) -> MStep:
    """Learn the centre mu of the posterior too, for rotating steps.

    mu <- mean theta + M_I mean grad L, which is exactly the mean if the posterior is Gaussian with
    covariance M_I, wherever the draws are.

    Args:
        m_step: what learns the rest.

    Examples:
        >>> import momentem as mt
        >>> m_step = mt.m_steps.with_centre(mt.m_steps.fisher())
    """
    return add_means(m_step, _draws_and_scores, _are_finite, _average_centre)


def with_anchor(m_step: MStep, kernel: Kernel) -> MStep:
    """Move the anchor of control variates to the running mean of the draws too. Each M-step then
    takes one gradient on all data.

    Args:
        m_step: what learns the rest.
        kernel: of a target from `control_variate(target)`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.arange(10.0), 0.0, batch_size=2)
        >>> kernel = mt.kernels.sghmc(mt.control_variate(target), num_steps=5)
        >>> m_step = mt.m_steps.with_anchor(mt.m_steps.noise(kernel), kernel)
    """
    return add_means(m_step, _draws, _are_finite, Partial(_average_anchor, target_of(kernel)))


def add_means(m_step: MStep, gather: Callable, is_usable: Callable, average: Callable) -> MStep:
    """Return an M-step that also learns from means over the draws of an E-step.

    Args:
        m_step: what learns the rest.
        gather: (info of all chains) -> a tuple of arrays with a leading axis of chains.
        is_usable: (*means) -> whether they can be learnt from; if not, the M-step is refused.
        average: (learnt, kappa, *means) -> learnt.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> from momentem.em.m_steps.additions import add_means
        >>> m_step = add_means(
        ...     mt.m_steps.fisher(),
        ...     gather=lambda info: (info.position,),
        ...     is_usable=lambda mean: jnp.isfinite(mean).all(),
        ...     average=lambda learnt, rate, mean: learnt.replace(centre=mean),
        ... )
    """
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    gather, is_usable, average = map(as_partial, (gather, is_usable, average))
    return MStep(
        Partial(_init, m_step, gather),
        Partial(_update, m_step, gather),
        Partial(_estimate, m_step, is_usable),
        Partial(_average, m_step, average),
    )


def _init(m_step: MStep, gather: Callable, mass: Any, size: Any) -> InnerAndMeans:
    inner, zeros = m_step.init(mass, size), jnp.zeros_like(mass.inverse_mass_diagonal())
    nowhere = Info(zeros, zeros, zeros, defaultdict(lambda: zeros[0]))  # of whatever statistics
    forms = jax.eval_shape(gather, nowhere)
    means = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), forms)
    return InnerAndMeans(inner.num_samples, inner, means)


def _update(
    m_step: MStep, gather: Callable, statistic: InnerAndMeans, info: Info, learnt: Learnt
) -> InnerAndMeans:
    # one number for both: EM empties a statistic by its outermost num_samples
    inner = m_step.update(_inner(statistic), info, learnt)
    old = statistic.num_samples

    def updated(mean: Array, new: Array) -> Array:
        share = (len(new) / (old + len(new))).astype(mean.dtype)
        mean = jnp.where(old == 0, jnp.zeros_like(mean), mean)
        return mean + share * (jnp.mean(new, axis=0) - mean)

    means = jax.tree.map(updated, statistic.means, gather(info))
    return InnerAndMeans(inner.num_samples, inner, means)


def _estimate(
    m_step: MStep, is_usable: Callable, statistic: InnerAndMeans, learnt: Learnt
) -> Estimate:
    means = statistic.means
    return Estimate(m_step.estimate(_inner(statistic), learnt), means, is_usable(*means))


def _average(
    m_step: MStep, average: Callable, learnt: Learnt, estimate: Estimate, rate: Scalar
) -> Learnt:
    return average(m_step.average(learnt, estimate.inner, rate), rate, *estimate.means)


def _inner(statistic: InnerAndMeans) -> Any:
    return statistic.inner._replace(num_samples=statistic.num_samples)


def _draws_and_scores(info: Info) -> tuple[Array, Array]:
    return info.position, info.gradient


def _draws(info: Info) -> tuple[Array]:
    return (info.position,)


def _are_finite(*means: Vector) -> Flag:
    return jnp.all(jnp.isfinite(jnp.stack(means)))


def _average_anchor(target: Any, learnt: Learnt, rate: Scalar, draw: Vector) -> Learnt:
    mean = (1 - rate) * learnt.anchor["position"] + rate * draw
    anchor = learnt.anchor | anchor_at(target, mean)
    if "is_used" in anchor:  # what was found there tells nothing of a place far from it
        move = learnt.mass.unfold(mean - learnt.anchor["position"])
        is_far = jnp.mean(move**2) > FAR
        anchor["is_used"] = jnp.where(is_far, jnp.ones_like(mean[0]), anchor["is_used"])
    return learnt.replace(anchor=anchor)


def _average_centre(learnt: Learnt, rate: Scalar, draw: Vector, score: Vector) -> Learnt:
    centre = draw + learnt.mass.velocity(score)
    return learnt.replace(centre=(1 - rate) * learnt.centre + rate * centre)


def _thermostat_moments(info: Info) -> tuple[Array, Array]:
    q = info.stats["thermostat"]
    return q, q**2


def _has_variance(mean: Scalar, square: Scalar) -> Flag:
    return square - mean**2 > 0


def _average_thermostat(learnt: Learnt, rate: Scalar, mean: Scalar, square: Scalar) -> Learnt:
    averaged = (1 - rate) * learnt.thermostat_mass + rate * (square - mean**2)
    return learnt.replace(thermostat_mass=averaged)

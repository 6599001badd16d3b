"""How a mass is learnt: M-steps, each from a statistic of the draws, none from stored draws.

With S pooled draws theta, their scores g = grad L(theta) and accepted momenta p, M_I_est is

    momentum           ((S - D - 1) / S) (mean p p')^-1       the paper's, its bias removed
    momentum_printed   (mean p p')^-1                         the paper's
    score              (mean g g')^-1                         E[g g'] = -E[hess L] at stationarity
    draws              Cov(theta)                             Stan's
    fisher             Cov(theta) # Cov(g)^-1                 minimises the Fisher divergence

where A # B is the geometric mean. The initial mass decides the structure: with a DiagonalMass every
matrix above is its diagonal (and D is 1 in the bias factor), with a DenseMass it is whole.
`fisher_low_rank` serves a LowRankMass. Only `score`, `draws` and `fisher` carry information about
the target at stationarity, where p ~ N(0, M) for *every* M: see docs/methods/mcem.md.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_count, check_instance, check_positive, is_traced
from momentem.masses.all import DenseMass, DiagonalMass, LowRankMass, strongest
from momentem.targets._minibatch import StochasticTarget, one_gradient
from momentem.targets.control_variates import anchored
from momentem.types import (
    Count,
    Flag,
    Info,
    Learnt,
    Mass,
    Scalar,
    Static,
    Vector,
    Vectors,
    as_partial,
)
from momentem.xla.keys import key

__all__ = [
    "MStep",
    "draws",
    "fisher",
    "fisher_low_rank",
    "momentum",
    "momentum_printed",
    "noise",
    "score",
    "with_anchor",
    "with_centre",
    "with_thermostat",
]


# A direction that the window's draws see and its scores do not (or the reverse) has no finite
# answer; this much of the identity is added to both. Of 1e-5 … 1, 1e-2 kept cond(M_I P) lowest on
# Gaussians with ten outlying directions where the window is shorter than D, and costs little where
# it is not.
WINDOW_RIDGE = 1e-2

BIAS_SCALE = 0.05  # of eps lambda_max(M^-1 Bhat), maths 6.4


class MStep(NamedTuple):
    """How a mass is learnt. A statistic with `num_samples` 0 is empty, whatever else it holds."""

    init: Callable[..., Any]  # (mass, size of the E-step) -> empty statistic
    update: Callable[..., Any]  # (statistic, info of all chains, learnt) -> statistic
    estimate: Callable[..., Any]  # (statistic, learnt) -> estimate, which knows if it is_proper()
    average: Callable[..., Learnt]  # (learnt, estimate, kappa) -> learnt


def average_mass(learnt: Learnt, estimate: Mass, rate: Scalar) -> Learnt:
    """M_I averaged; V, which does not depend on M, put into the new mass's frame."""
    noise_matrix = learnt.mass.noise_matrix(learnt.noise)
    mass, noise = learnt.mass.average(estimate, rate).framed(noise_matrix)
    return learnt._replace(mass=mass, noise=noise)


def _learns_mass(init: Partial, update: Callable, estimate: Callable) -> MStep:
    return MStep(init, Partial(update), Partial(estimate), Partial(average_mass))


class SecondMoment(NamedTuple):
    """sum x x', in the mass's structure."""

    num_samples: Count
    total: Array


class Moments(NamedTuple):
    """Mean of x and sum (x - mean)(x - mean)', in the mass's structure (Welford)."""

    num_samples: Count
    mean: Vector
    total: Array


class DrawsAndScores(NamedTuple):
    """Moments of the draws and of their scores."""

    num_samples: Count
    draws: Moments
    scores: Moments


class Window(NamedTuple):
    """The last draws and their scores, as many as there are rows."""

    num_samples: Count
    draws: Float[Array, "window dim"]
    scores: Float[Array, "window dim"]


def momentum() -> MStep:
    """The paper's M-step without its bias: E[(mean p p')^-1] = S / (S - D - 1) M_I is divided out.

    Every mass is its fixed point at stationarity, so that it learns from transients alone.

    Examples:
        >>> import momentem as mt
        >>> sampler = mt.monte_carlo_em(
        ...     mt.kernels.hmc(mt.density(lambda x: -0.5 * x**2, initial=0.0), num_steps=5),
        ...     mt.Learnt(mt.diagonal_mass([1.0]), 0.5),
        ...     m_step=mt.m_steps.momentum(),
        ...     e_step=mt.e_steps.constant(100),
        ... )
    """
    return _learns_mass(Partial(_empty_momenta), _gather_momenta, _estimate_momentum)


def momentum_printed() -> MStep:
    """The paper's M-step as printed: M_I drifts upwards by S / (S - D - 1) per unit of kappa."""
    return _learns_mass(Partial(_empty_momenta), _gather_momenta, _estimate_momentum_printed)


def score() -> MStep:
    """M from the second moment of the scores: the expected curvature of the log density."""
    return _learns_mass(Partial(_empty_second_moment), _gather_scores, _estimate_score)


def draws() -> MStep:
    """M_I from the covariance of the draws."""
    return _learns_mass(Partial(_empty_moments), _gather_draws, _estimate_draws)


def fisher() -> MStep:
    """M_I from draws and scores together, which on a Gaussian agree wherever the draws are.

    Their noise cancels, so it is shrunk by (D/S)^4 where `draws` and `score` need (D/S)^2.
    """
    return _learns_mass(Partial(_empty_both), _gather_both, _estimate_fisher)


def fisher_low_rank(window: int) -> MStep:
    """`fisher` for a LowRankMass, from the last `window` draws and scores: O(D window) memory.

    The diagonal is that of `fisher`. In its frame, draws and scores span a space of 2 window
    directions at most; there the geometric mean is taken, and the directions farthest from 1 are
    kept, as many as the mass has.

    Args:
        window: how many draws are kept, at least twice the rank of the mass; ten times is better.
    """
    check_count(4, window=window)
    return _learns_mass(Partial(_empty_window, Static(window)), _gather_window, _estimate_window)


def noise(
    target: StochasticTarget, friction: float, share: float = 2.0, max_step_size: float = 0.3
) -> MStep:
    """One M-step for everything a stochastic kernel leaves open: mass, gradient noise, step size.

    The half-differences of the minibatches have the covariance V of the gradient noise, and those
    of the plain gradient (n/N)^-1 times the data's Fisher information, so that

        M <- (n/N) Cov(information) + prior curvature,     V <- Cov(noise),
        eps <- min(max_step_size, 2 share A / lambda_max(M^-1 V), sqrt(.1 / lambda_max(M^-1 V)))

    At that step size the noise Bhat = eps V / 2 is at most `share` times the injected friction A M,
    and eps lambda_max(M^-1 Bhat), the scale of the error in the covariance, at most .05.

    Args:
        target: the minibatch target of the kernel.
        friction: A of the kernel.
        share: of the noise in units of the friction.
        max_step_size: in whitened time, where every posterior frequency is about 1.
    """
    check_instance(StochasticTarget, "build it by dataset(…, batch_size=…)", target=target)
    check_positive(friction=friction, share=share, max_step_size=max_step_size)
    return MStep(
        Partial(_empty_noises, target),
        Partial(_gather_noises),
        Partial(_estimate_noise, target),
        Partial(_average_noise, friction, share, max_step_size),
    )


def with_thermostat(m_step: MStep) -> MStep:
    """An M-step that also learns the thermostat's mass: Q <- Var(q), as in the paper's SG-NPHMC-EM.

    q is centred, because its mean is the noise that the thermostat absorbs. For SG-NPHMC alone: the
    thermostat of SGNHT is xi = q / Q, whose variance is 1 / Q.

    Args:
        m_step: what learns the rest.
    """
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    return _with_means(m_step, _thermostat_moments, _has_variance, _average_thermostat)


def with_centre(m_step: MStep) -> MStep:
    """An M-step that also learns the centre mu of the posterior, for rotating steps.

    mu <- mean theta + M_I mean grad L: for a Gaussian whose precision M_I is, its mean, wherever
    the draws are.

    Args:
        m_step: what learns the rest.
    """
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    return _with_means(m_step, _draws_and_scores, _are_finite, _average_centre)


def with_anchor(m_step: MStep, target: StochasticTarget) -> MStep:
    """An M-step that also moves the anchor of control variates to the running mean of the draws:
    one gradient on all data.

    Args:
        m_step: what learns the rest.
        target: from `control_variate(target)`.
    """
    check_instance(MStep, "choose one from momentem.m_steps", m_step=m_step)
    return _with_means(m_step, _draws, _are_finite, Partial(_average_anchor, target))


def _with_means(m_step: MStep, told: Callable, is_usable: Callable, average: Callable) -> MStep:
    """An M-step that also learns from the means of what `told(info)` gives for every chain."""
    return MStep(
        Partial(_empty_means, m_step, Partial(told)),
        Partial(_gather_means, m_step, Partial(told)),
        Partial(_estimate_means, m_step, Partial(is_usable)),
        Partial(_average_means, m_step, as_partial(average)),
    )


class Sums(NamedTuple):
    """The inner statistic, and the sums of what else is learnt from."""

    num_samples: Count
    inner: Any
    sums: tuple[Array, ...]


class Means(NamedTuple):
    """The inner estimate, and the means of what else is learnt from."""

    inner: Any
    means: tuple[Array, ...]
    is_usable: Flag

    def is_proper(self) -> Flag:
        """Whether all can be used."""
        return self.inner.is_proper() & self.is_usable


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

    def is_proper(self) -> Flag:
        """Whether both can be used."""
        return self.mass.is_proper() & jnp.all(jnp.isfinite(self.noise_matrix))


def _empty_noises(target: StochasticTarget, mass: Mass, size: Any) -> Noises:
    zeros = _empty_second_moment(mass, size).total
    position = jnp.zeros_like(mass.inverse_mass_diagonal())
    told = jax.eval_shape(one_gradient, target, key(0), target.initial)
    information = None if told.information is None else zeros
    return Noises(jnp.array(0), jnp.zeros((), int), zeros, information, position)


def _gather_noises(statistic: Noises, info: Info, learnt: Learnt) -> Noises:
    mass: Any = learnt.mass
    dim, is_empty = info.position.shape[1], statistic.num_samples == 0

    def kept(array: Array) -> Array:
        return jnp.where(is_empty, jnp.zeros_like(array), array)

    def added(total: Array, samples: Array) -> Array:
        return kept(total) + mass.outer(samples.reshape(-1, dim))

    num_told = info.noise.shape[1] * jnp.sum(~info.stats["diverging"])  # the others are zeros
    return Noises(
        num_samples=statistic.num_samples + len(info.position),
        num_noises=kept(statistic.num_noises) + num_told.astype(statistic.num_noises.dtype),
        noise=added(statistic.noise, info.noise),
        information=jax.tree.map(added, statistic.information, info.information),
        position=kept(statistic.position) + jnp.sum(info.position, axis=0),
    )


def _estimate_noise(target: StochasticTarget, statistic: Noises, learnt: Learnt) -> NoiseEstimate:
    mass: Any = learnt.mass
    dtype = statistic.position.dtype
    n = statistic.num_noises.astype(dtype)
    position = statistic.position / statistic.num_samples.astype(dtype)
    curvature = jnp.maximum(target.prior_curvature(position), 0)
    prior = mass.diagonal(curvature)
    told = statistic.noise if statistic.information is None else statistic.information
    information = mass.shrink(told / n, statistic.num_noises, power=2)
    fisher = target.information_scale * information + prior
    return NoiseEstimate(mass.from_inverse_mass(mass.inverse(fisher)), statistic.noise / n)


def _average_noise(
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
    noise_matrix = (1 - rate_noise) * old + rate_noise * estimate.noise_matrix
    mass, noise = learnt.mass.average(estimate.mass, rate).framed(noise_matrix)
    largest = jnp.max(noise)
    by_share, by_bias = 2 * share * friction / largest, jnp.sqrt(2 * BIAS_SCALE / largest)
    step_size = jnp.minimum(max_step_size, jnp.minimum(by_share, by_bias))
    return learnt._replace(mass=mass, noise=noise, step_size=step_size.astype(noise.dtype))


def _empty_means(m_step: MStep, told: Callable, mass: Mass, size: Any) -> Sums:
    inner, zeros = m_step.init(mass, size), jnp.zeros_like(mass.inverse_mass_diagonal())
    nowhere = Info(zeros, zeros, zeros, {"thermostat": zeros[0]})
    sums = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(told, nowhere)
    )
    return Sums(inner.num_samples, inner, sums)


def _gather_means(
    m_step: MStep, told: Callable, statistic: Sums, info: Info, learnt: Learnt
) -> Sums:
    # one number for both: EM empties a statistic by its outermost num_samples
    inner = m_step.update(_inner(statistic), info, learnt)
    is_empty = statistic.num_samples == 0
    sums = jax.tree.map(
        lambda total, new: jnp.where(is_empty, 0.0, total) + jnp.sum(new, axis=0),
        statistic.sums,
        told(info),
    )
    return Sums(inner.num_samples, inner, sums)


def _estimate_means(m_step: MStep, is_usable: Callable, statistic: Sums, learnt: Learnt) -> Means:
    means = jax.tree.map(
        lambda total: total / statistic.num_samples.astype(total.dtype), statistic.sums
    )
    return Means(m_step.estimate(_inner(statistic), learnt), means, is_usable(*means))


def _average_means(
    m_step: MStep, average: Callable, learnt: Learnt, estimate: Means, rate: Scalar
) -> Learnt:
    return average(m_step.average(learnt, estimate.inner, rate), rate, *estimate.means)


def _inner(statistic: Sums) -> Any:
    return statistic.inner._replace(num_samples=statistic.num_samples)


def _draws_and_scores(info: Info) -> tuple[Array, Array]:
    return info.position, info.gradient


def _draws(info: Info) -> tuple[Array]:
    return (info.position,)


def _are_finite(*means: Vector) -> Flag:
    return jnp.all(jnp.isfinite(jnp.stack(means)))


def _average_anchor(target: Any, learnt: Learnt, rate: Scalar, draw: Vector) -> Learnt:
    anchor: Any = learnt.anchor
    mean = (1 - rate) * anchor.position + rate * draw
    return learnt._replace(anchor=anchored(target, mean, anchor.follows))


def _average_centre(learnt: Learnt, rate: Scalar, draw: Vector, score: Vector) -> Learnt:
    centre = draw + learnt.mass.velocity(score)
    return learnt._replace(centre=(1 - rate) * learnt.centre + rate * centre)


def _thermostat_moments(info: Info) -> tuple[Array, Array]:
    q = info.stats["thermostat"]
    return q, q**2


def _has_variance(mean: Scalar, square: Scalar) -> Flag:
    return square - mean**2 > 0


def _average_thermostat(learnt: Learnt, rate: Scalar, mean: Scalar, square: Scalar) -> Learnt:
    averaged = (1 - rate) * learnt.thermostat_mass + rate * (square - mean**2)
    return learnt._replace(thermostat_mass=averaged)


def _check_structure(mass: Mass) -> DiagonalMass | DenseMass:
    if not isinstance(mass, DiagonalMass | DenseMass):
        raise TypeError(
            "this M-step learns a DiagonalMass or a DenseMass, got an initial mass of type "
            f"{type(mass).__name__}; "
            "use m_steps.fisher_low_rank for a LowRankMass"
        )
    return mass


def _empty_momenta(mass: Mass, size: Any) -> SecondMoment:
    degrees = _check_structure(mass).degrees
    if not is_traced(size) and size < degrees + 2:
        raise ValueError(
            "the momentum M-step inverts the momenta's second moment, so the E-step needs at least "
            f"{degrees} + 2 draws for a {type(mass).__name__} of this size, got {size}; raise the "
            "size of the E-step"
        )
    return _empty_second_moment(mass, size)


def _empty_second_moment(mass: Mass, size: Any) -> SecondMoment:
    del size
    return SecondMoment(jnp.array(0), jnp.zeros_like(_check_structure(mass).inverse_mass))


def _empty_moments(mass: Mass, size: Any) -> Moments:
    num_samples, total = _empty_second_moment(mass, size)
    return Moments(num_samples, jnp.zeros_like(mass.inverse_mass_diagonal()), total)


def _empty_both(mass: Mass, size: Any) -> DrawsAndScores:
    empty = _empty_moments(mass, size)
    return DrawsAndScores(empty.num_samples, empty, empty)


def _empty_window(window: Static, mass: Mass, size: Any) -> Window:
    if not isinstance(mass, LowRankMass):
        raise TypeError(
            "fisher_low_rank learns a LowRankMass, got an initial mass of type "
            f"{type(mass).__name__}; "
            "use m_steps.fisher, or build the mass with low_rank_mass"
        )
    num_rows, rank = window.value, len(mass.eigenvalues)
    if num_rows < 2 * rank:
        raise ValueError(f"window must be at least twice the rank, 2 x {rank}, got {num_rows}")
    if not is_traced(size) and size < num_rows:
        raise ValueError(
            f"the E-step must fill the window of {num_rows} draws, got size {size}; raise the size"
        )
    rows = jnp.zeros((num_rows, len(mass.scale)), mass.scale.dtype)
    return Window(jnp.array(0), rows, rows)


def _gather_momenta(statistic: SecondMoment, info: Info, learnt: Learnt) -> SecondMoment:
    return _add(statistic, info.momentum, learnt.mass)


def _gather_scores(statistic: SecondMoment, info: Info, learnt: Learnt) -> SecondMoment:
    return _add(statistic, info.gradient, learnt.mass)


def _gather_draws(statistic: Moments, info: Info, learnt: Learnt) -> Moments:
    return _add_centred(statistic, info.position, learnt.mass)


def _gather_both(statistic: DrawsAndScores, info: Info, learnt: Learnt) -> DrawsAndScores:
    # one number for both: EM empties a statistic by its outermost num_samples
    num_samples = statistic.num_samples
    thetas = _add_centred(
        statistic.draws._replace(num_samples=num_samples), info.position, learnt.mass
    )
    scores = _add_centred(
        statistic.scores._replace(num_samples=num_samples), info.gradient, learnt.mass
    )
    return DrawsAndScores(thetas.num_samples, thetas, scores)


def _gather_window(statistic: Window, info: Info, learnt: Learnt) -> Window:
    del learnt
    window = len(statistic.draws)
    thetas, scores = info.position[-window:], info.gradient[-window:]
    rows = (statistic.num_samples + jnp.arange(len(thetas))) % window
    return Window(
        statistic.num_samples + len(info.position),
        statistic.draws.at[rows].set(thetas),
        statistic.scores.at[rows].set(scores),
    )


def _add(statistic: SecondMoment, vectors: Vectors, mass: Any) -> SecondMoment:
    total = jnp.where(statistic.num_samples == 0, 0.0, statistic.total)
    return SecondMoment(statistic.num_samples + len(vectors), total + mass.outer(vectors))


def _add_centred(statistic: Moments, vectors: Vectors, mass: Any) -> Moments:
    """Chan, Golub and LeVeque's pooled update of Welford's moments."""
    old, new = statistic.num_samples, len(vectors)
    is_empty, n = old == 0, old.astype(vectors.dtype)
    mean = jnp.where(is_empty, 0.0, statistic.mean)
    total = jnp.where(is_empty, 0.0, statistic.total)
    batch_mean = jnp.mean(vectors, axis=0)
    shift = batch_mean - mean
    between = mass.outer(shift[None]) * (n * new / (n + new))
    return Moments(
        old + new,
        mean + shift * (new / (n + new)),
        total + mass.outer(vectors - batch_mean[None]) + between,
    )


def _mean(statistic: SecondMoment) -> Array:
    return statistic.total / statistic.num_samples.astype(statistic.total.dtype)


def _covariance(statistic: Moments, mass: Any, power: int) -> Array:
    covariance = statistic.total / (statistic.num_samples - 1).astype(statistic.total.dtype)
    return mass.shrink(covariance, statistic.num_samples, power)


def _estimate_momentum_printed(statistic: SecondMoment, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    return mass.from_inverse_mass(mass.inverse(_mean(statistic)))


def _estimate_momentum(statistic: SecondMoment, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    n = statistic.num_samples.astype(statistic.total.dtype)
    return mass.from_inverse_mass((n - mass.degrees - 1) / n * mass.inverse(_mean(statistic)))


def _estimate_score(statistic: SecondMoment, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    return mass.from_inverse_mass(
        mass.inverse(mass.shrink(_mean(statistic), statistic.num_samples, power=2))
    )


def _estimate_draws(statistic: Moments, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    return mass.from_inverse_mass(_covariance(statistic, mass, power=2))


def _estimate_fisher(statistic: DrawsAndScores, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    covariance = _covariance(statistic.draws, mass, power=4)
    information = _covariance(statistic.scores, mass, power=4)
    return mass.from_inverse_mass(mass.geometric_mean_inverse(covariance, information))


def _estimate_window(statistic: Window, learnt: Learnt) -> LowRankMass:
    mass: Any = learnt.mass
    n = len(statistic.draws)
    thetas = statistic.draws - jnp.mean(statistic.draws, axis=0, keepdims=True)
    scores = statistic.scores - jnp.mean(statistic.scores, axis=0, keepdims=True)
    scale = (jnp.sum(thetas**2, axis=0) / jnp.sum(scores**2, axis=0)) ** 0.25
    thetas, scores = thetas / scale[None] / (n - 1) ** 0.5, scores * scale[None] / (n - 1) ** 0.5

    basis, _ = jnp.linalg.qr(jnp.concatenate([thetas, scores]).T)
    identity = jnp.eye(basis.shape[1], dtype=scale.dtype)
    covariance = DenseMass.outer(thetas @ basis) + WINDOW_RIDGE * identity
    information = DenseMass.outer(scores @ basis) + WINDOW_RIDGE * identity
    projected = DenseMass.geometric_mean_inverse(covariance, information)
    eigenvalues, vectors = jnp.linalg.eigh(projected)
    return LowRankMass(scale, *strongest(eigenvalues, basis @ vectors, rank=len(mass.eigenvalues)))

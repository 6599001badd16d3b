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

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_count, is_traced
from momentem.masses import DenseMass, DiagonalMass, LowRankMass, strongest
from momentem.types import Count, Info, Learnt, Mass, Vector, Vectors

__all__ = [
    "MStep",
    "draws",
    "fisher",
    "fisher_low_rank",
    "momentum",
    "momentum_printed",
    "score",
]


# A direction that the window's draws see and its scores do not (or the reverse) has no finite
# answer; this much of the identity is added to both. Of 1e-5 … 1, 1e-2 kept cond(M_I P) lowest on
# Gaussians with ten outlying directions where the window is shorter than D, and costs little where
# it is not.
WINDOW_RIDGE = 1e-2


class MStep(NamedTuple):
    """How a mass is learnt. A statistic with `num_samples` 0 is empty, whatever else it holds."""

    init: Callable[..., Any]  # (mass, size of the E-step) -> empty statistic
    update: Callable[..., Any]  # (statistic, info of all chains, learnt) -> statistic
    estimate: Callable[..., Mass]  # (statistic, learnt) -> mass


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
    return MStep(Partial(_empty_momenta), Partial(_gather_momenta), Partial(_estimate_momentum))


def momentum_printed() -> MStep:
    """The paper's M-step as printed: M_I drifts upwards by S / (S - D - 1) per unit of kappa."""
    return MStep(
        Partial(_empty_momenta), Partial(_gather_momenta), Partial(_estimate_momentum_printed)
    )


def score() -> MStep:
    """M from the second moment of the scores: the expected curvature of the log density."""
    return MStep(Partial(_empty_second_moment), Partial(_gather_scores), Partial(_estimate_score))


def draws() -> MStep:
    """M_I from the covariance of the draws."""
    return MStep(Partial(_empty_moments), Partial(_gather_draws), Partial(_estimate_draws))


def fisher() -> MStep:
    """M_I from draws and scores together, which on a Gaussian agree wherever the draws are.

    Their noise cancels, so it is shrunk by (D/S)^4 where `draws` and `score` need (D/S)^2.
    """
    return MStep(Partial(_empty_both), Partial(_gather_both), Partial(_estimate_fisher))


def fisher_low_rank(window: int) -> MStep:
    """`fisher` for a LowRankMass, from the last `window` draws and scores: O(D window) memory.

    The diagonal is that of `fisher`. In its frame, draws and scores span a space of 2 window
    directions at most; there the geometric mean is taken, and the directions farthest from 1 are
    kept, as many as the mass has.

    Args:
        window: how many draws are kept, at least twice the rank of the mass; ten times is better.
    """
    check_count(4, window=window)
    # the number of rows is a shape, so it must stay concrete: it rides as one, in an empty array
    return MStep(
        Partial(_empty_window, jnp.zeros((window, 0))),
        Partial(_gather_window),
        Partial(_estimate_window),
    )


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
    return SecondMoment(jnp.array(0), jnp.zeros_like(_check_structure(mass).precision))


def _empty_moments(mass: Mass, size: Any) -> Moments:
    num_samples, total = _empty_second_moment(mass, size)
    return Moments(num_samples, jnp.zeros_like(mass.precision_diagonal()), total)


def _empty_both(mass: Mass, size: Any) -> DrawsAndScores:
    empty = _empty_moments(mass, size)
    return DrawsAndScores(empty.num_samples, empty, empty)


def _empty_window(shape: Array, mass: Mass, size: Any) -> Window:
    if not isinstance(mass, LowRankMass):
        raise TypeError(
            "fisher_low_rank learns a LowRankMass, got an initial mass of type "
            f"{type(mass).__name__}; "
            "use m_steps.fisher, or build the mass with low_rank_mass"
        )
    window, rank = len(shape), len(mass.eigenvalues)
    if window < 2 * rank:
        raise ValueError(f"window must be at least twice the rank, 2 x {rank}, got {window}")
    if not is_traced(size) and size < window:
        raise ValueError(
            f"the E-step must fill the window of {window} draws, got size {size}; raise the size"
        )
    rows = jnp.zeros((window, len(mass.scale)), mass.scale.dtype)
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
        statistic.num_samples + len(thetas),
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
    return mass.from_precision(mass.inverse(_mean(statistic)))


def _estimate_momentum(statistic: SecondMoment, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    n = statistic.num_samples.astype(statistic.total.dtype)
    return mass.from_precision((n - mass.degrees - 1) / n * mass.inverse(_mean(statistic)))


def _estimate_score(statistic: SecondMoment, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    return mass.from_precision(
        mass.inverse(mass.shrink(_mean(statistic), statistic.num_samples, power=2))
    )


def _estimate_draws(statistic: Moments, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    return mass.from_precision(_covariance(statistic, mass, power=2))


def _estimate_fisher(statistic: DrawsAndScores, learnt: Learnt) -> Mass:
    mass: Any = learnt.mass
    covariance = _covariance(statistic.draws, mass, power=4)
    information = _covariance(statistic.scores, mass, power=4)
    return mass.from_precision(mass.geometric_mean_inverse(covariance, information))


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

"""What an M-step is, and what several of them share.

An M-step is one file, from the statistic that it gathers to the estimate that it makes of it. It
stores no draws, only statistics of them (and, for a low-rank mass, a window).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from momentem.checks import check_instance
from momentem.masses import LearnableMass, MatrixMass
from momentem.pytrees import as_partial, find_node
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Count, Kernel, Learnt, Scalar, Vectors

__all__ = [
    "MStep",
    "SecondMoment",
    "add_outer",
    "average_mass",
    "check_matrix_mass",
    "empty_second_moment",
    "learn_mass",
    "target_of",
]


class MStep(NamedTuple):
    """How something is learnt. A statistic with `num_samples` 0 is empty, whatever else it
    holds."""

    init: Callable[..., Any]  # (mass, size of the E-step) -> empty statistic
    update: Callable[..., Any]  # (statistic, info of all chains, learnt) -> statistic
    estimate: Callable[..., Any]  # (statistic, learnt) -> estimate, which knows if it is_proper()
    average: Callable[..., Learnt]  # (learnt, estimate, kappa) -> learnt


class SecondMoment(NamedTuple):
    """sum x x', in the mass's structure."""

    num_samples: Count
    total: Array

    def mean(self) -> Array:
        """Return the mean of x x'."""
        return self.total / self.num_samples.astype(self.total.dtype)


def learn_mass(init: Callable, update: Callable, estimate: Callable) -> MStep:
    """Return an M-step whose estimate is a mass, and which sets nothing else."""
    return MStep(as_partial(init), Partial(update), Partial(estimate), Partial(average_mass))


def average_mass(learnt: Learnt, estimate: LearnableMass, rate: Scalar) -> Learnt:
    """Return `learnt` with M_I averaged. The gradient noise V does not depend on M: if it is known,
    it is written in the new mass's frame."""
    mass = learnt.mass.average(estimate, rate)
    if "noise" not in learnt:
        return learnt.replace(mass=mass)
    mass, noise = mass.with_frame(learnt.mass.noise_matrix(learnt.noise))
    return learnt.replace(mass=mass, noise=noise)


def target_of(kernel: Kernel) -> StochasticTarget:
    """Return the minibatch target that a kernel samples, or refuse one that has none."""
    check_instance(Kernel, "build it with a factory from momentem.kernels", kernel=kernel)
    target = find_node(StochasticTarget, kernel)
    if target is None:
        raise TypeError(
            "kernel must sample a minibatch target and bind it with jax.tree_util.Partial, and "
            "none was found in it; build the target by dataset(…, batch_size=…)"
        )
    return target


def check_matrix_mass(mass: Any) -> None:
    """Refuse a mass that cannot be learnt from second moments."""
    if not isinstance(mass, MatrixMass):
        raise TypeError(
            "this M-step learns a mass from second moments (momentem.masses.MatrixMass), such as a "
            f"DiagonalMass or a DenseMass, got an initial mass of type {type(mass).__name__}; use "
            "m_steps.fisher_low_rank for a LowRankMass"
        )


def empty_second_moment(mass: Any, size: Any) -> SecondMoment:
    """Return the second moment of no samples."""
    del size
    check_matrix_mass(mass)
    return SecondMoment(jnp.array(0), jnp.zeros_like(mass.inverse_mass))


def add_outer(statistic: SecondMoment, vectors: Vectors, mass: Any) -> SecondMoment:
    """Return the second moment with more samples."""
    total = jnp.where(statistic.num_samples == 0, 0.0, statistic.total)
    return SecondMoment(statistic.num_samples + len(vectors), total + mass.outer(vectors))

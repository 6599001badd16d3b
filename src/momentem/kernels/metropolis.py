"""The Metropolis step that makes Hamiltonian trajectories exact, and the state it moves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from momentem.kernels.integrators import PhasePoint
from momentem.targets._minibatch import AnyTarget
from momentem.types import Array, Count, Flag, Info, Learnt, Mass, PRNGKey, Scalar, Vector

__all__ = ["PointState", "accept_move", "accept_or_stay", "init_at"]

DIVERGENCE_THRESHOLD = 1000.0  # Stan's bound on the energy error of a trajectory


class PointState(NamedTuple):
    """The position of a chain, with the log density and its gradient there."""

    position: Vector
    logdensity: Scalar
    gradient: Vector


def init_at(target: AnyTarget, key: PRNGKey, position: Vector, learnt: Learnt) -> PointState:
    """Return the state at a position."""
    del key, learnt
    return PointState(position, *jax.value_and_grad(target.logdensity)(position))


def accept_move(
    key: PRNGKey,
    energy_start: Scalar,
    energy_end: Scalar,
    is_usable: Flag,
    is_reversible: Flag | bool = True,
) -> tuple[Flag, dict[str, Array]]:
    """Return whether to accept the end of a trajectory, and the statistics of the decision."""
    energy_error = energy_end - energy_start
    is_finite = jnp.isfinite(energy_error) & is_usable
    is_divergent = ~is_finite | (energy_error > DIVERGENCE_THRESHOLD)
    is_possible = ~is_divergent & is_reversible
    acceptance_rate = jnp.where(is_possible, jnp.exp(jnp.minimum(0.0, -energy_error)), 0.0)
    is_accepted = jax.random.uniform(key, dtype=energy_error.dtype) < acceptance_rate
    return is_accepted, {
        "energy": jnp.where(is_accepted, energy_end, energy_start),
        "energy_error": energy_error,
        "acceptance_rate": acceptance_rate,
        "diverging": is_divergent,
    }


def accept_or_stay(
    key: PRNGKey,
    mass: Mass,
    start: PhasePoint,
    end: PhasePoint,
    num_steps: Count,
    is_reversible: Flag | bool = True,
) -> tuple[PointState, Info]:
    """Return the state and Info at `end` if a Metropolis step accepts it, else those at `start`. A
    move that is not reversible is refused."""
    energy_start = mass.kinetic_energy(start.momentum) - start.logdensity
    energy_end = mass.kinetic_energy(end.momentum) - end.logdensity
    is_usable = jnp.isfinite(end.gradient).all()
    is_accepted, stats = accept_move(key, energy_start, energy_end, is_usable, is_reversible)
    here = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), end, start)
    stats = {"lp": here.logdensity, **stats, "n_steps": num_steps}
    info = Info(here.position, here.momentum, here.gradient, stats)
    return PointState(here.position, here.logdensity, here.gradient), info

"""The Metropolis step that makes Hamiltonian trajectories exact."""

import jax
import jax.numpy as jnp

from momentem.types import Array, Flag, PRNGKey, Scalar

__all__ = ["metropolis"]

DIVERGENCE_THRESHOLD = 1000.0  # Stan's bound on the energy error of a trajectory


def metropolis(
    key: PRNGKey, energy_start: Scalar, energy_end: Scalar, is_usable: Flag
) -> tuple[Flag, dict[str, Array]]:
    """Whether to accept the end of a trajectory, and what to tell of it."""
    energy_error = energy_end - energy_start
    is_finite = jnp.isfinite(energy_error) & is_usable
    is_divergent = ~is_finite | (energy_error > DIVERGENCE_THRESHOLD)
    acceptance_rate = jnp.where(is_divergent, 0.0, jnp.exp(jnp.minimum(0.0, -energy_error)))
    is_accepted = jax.random.uniform(key, dtype=energy_error.dtype) < acceptance_rate
    return is_accepted, {
        "energy": jnp.where(is_accepted, energy_end, energy_start),
        "energy_error": energy_error,
        "acceptance_rate": acceptance_rate,
        "diverging": is_divergent,
    }

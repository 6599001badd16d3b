"""All chains of an ensemble at once: how they start and how they move, whatever is learnt."""

from typing import Any

import jax
import jax.numpy as jnp

from momentem.checks import check_instance, check_positive
from momentem.types import Info, Kernel, Learnt, Mass, PRNGKey, PRNGKeys, Vectors

__all__ = ["check_learnt", "move_chains", "num_chains", "num_keys", "over_chains", "start_chains"]


def check_learnt(kernel: Any, learnt: Any) -> Learnt:
    """Return `learnt` with everything that the kernel leaves open, in the mass's dtype."""
    remedy = (
        "build it with a factory from momentem.kernels (the mass of a Riemannian kernel is its "
        "metric, and there is nothing to learn: use momentem.rhmc or momentem.sgr_nphmc)"
    )
    check_instance(Kernel, remedy, kernel=kernel)
    check_instance(Learnt, "build it as momentem.Learnt(mass, step_size)", learnt=learnt)
    check_instance(
        Mass, "build it with diagonal_mass, dense_mass or low_rank_mass", mass=learnt.mass
    )
    check_positive(step_size=learnt.step_size)
    dtype = jax.eval_shape(learnt.mass.inverse_mass_diagonal).dtype
    step_size = jnp.asarray(learnt.step_size, dtype)
    known = kernel.complete(Learnt(learnt.mass, step_size)).others
    if strangers := [name for name in learnt.others if name not in known]:
        names = ", ".join(["mass", "step_size", *known])
        raise ValueError(
            f"learnt names {strangers[0]!r}, which this kernel does not leave open; it leaves open "
            f"{names}: give those alone, as momentem.Learnt(mass, step_size, …)"
        )
    completed = kernel.complete(learnt.replace(step_size=step_size))
    completed.arrays()  # refuses a name that the mass has too: a trace could not hold both
    return completed


def start_chains(kernel: Kernel, learnt: Learnt, key: PRNGKey, positions: Vectors) -> Any:
    """Return the states of chains that start at `positions`."""
    diagonal = learnt.mass.inverse_mass_diagonal()
    if positions.ndim != 2 or positions.shape[1] != len(diagonal):
        raise ValueError(
            f"positions must have shape (chains, {len(diagonal)}) to fit the mass, got "
            f"{positions.shape}"
        )
    if positions.dtype != diagonal.dtype:
        raise TypeError(
            f"positions and mass must share a dtype, got {positions.dtype} and {diagonal.dtype}"
        )
    keys = jax.random.split(key, len(positions))
    return over_chains(kernel.init, (keys, positions), learnt)


def over_chains(function: Any, of_chains: tuple, *shared: Any) -> Any:
    """Return `function` of every chain. One chain is not mapped over: gathers and scatters along an
    axis of length one take XLA twice as long on a CPU."""
    if num_chains(of_chains) > 1:
        return jax.vmap(lambda own: function(*own, *shared))(of_chains)
    own = jax.tree.map(lambda leaf: leaf[0], of_chains)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*own, *shared))


def num_chains(chains: Any) -> int:
    """Return the length of the leading axis."""
    return len(jax.tree.leaves(chains)[0])


def num_keys(kernel: Kernel, chains: Any) -> int:
    """Return the number of keys that `move_chains` needs: one per chain, and one for what they
    share."""
    return num_chains(chains) + (kernel.share is not None)


def move_chains(kernel: Kernel, learnt: Learnt, keys: PRNGKeys, chains: Any) -> tuple[Any, Info]:
    """Move every chain by one step, each with its own key; what they share has the last key."""
    if kernel.share is not None:
        keys, learnt = keys[:-1], kernel.share(keys[-1], learnt)
    chains, info = over_chains(kernel.step, (keys, chains), learnt)
    step_sizes = jnp.broadcast_to(learnt.step_size, keys.shape)
    return chains, info._replace(stats=info.stats | {"step_size": step_sizes})

"""Conversion of a sampler's state, and of moments, to named arrays and back.

Each leaf is stored under its index and path, and PRNG keys are stored as raw key data. The tree
structure is not stored: it comes from a state of the same sampler.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from momentem.devices._mesh import chain_sharding, local_part, whole_array
from momentem.run.batch_means import Streamed
from momentem.run.log.segment import Segment, SegmentError
from momentem.run.plan import Plan

__all__ = ["place_moments", "restore", "restore_moments", "store_moments", "store_state"]


def store_moments(moments: Streamed) -> dict[str, np.ndarray]:
    """Return moments as named arrays."""
    arrays = {"moments.num_draws": local_part(moments.num_draws)}
    for kind, by_name in zip(Streamed._fields[1:], moments[1:], strict=True):
        arrays |= {f"moments.{kind}.{name}": local_part(x) for name, x in by_name.items()}
    return arrays


def _state_names(state: Any) -> list[tuple[str, Any]]:
    """Return every leaf of a state with its name, made of index and path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    names = [re.sub(r"[^A-Za-z0-9_.-]", "_", path) for path in paths]
    return [(f"state.{i:04d}.{names[i]}", leaf) for i, (_, leaf) in enumerate(leaves)]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def store_state(state: Any) -> dict[str, np.ndarray]:
    """Return a state as named arrays. PRNG keys are stored as raw key data."""
    return {name: local_part(_numbers(leaf)) for name, leaf in _state_names(state)}


def restore(segment: Segment, like: Any) -> Any:
    """Return the state at the end of a segment. `like` gives its structure, shapes, dtypes and
    shardings."""
    named = _state_names(like)
    stored = {name for name in segment.forms if name.startswith("state.")}
    if strangers := sorted(stored.symmetric_difference(name for name, _ in named)):
        raise SegmentError(
            f"segment {segment.path.name} must hold the sampler's state, but {strangers[0]} is "
            "missing from the segment or from the sampler"
        )
    leaves = []
    for name, leaf in named:
        numbers = _numbers(leaf)
        raw = local_part(numbers)
        if segment.forms[name] != (raw.dtype.name, raw.shape):
            raise SegmentError(
                f"segment {segment.path.name} must hold {name} as {raw.dtype.name}{raw.shape}, got "
                f"{segment.forms[name]}"
            )
        array = whole_array(segment.read(name), numbers.sharding, numbers.shape)
        is_key = _is_key(leaf)
        leaves.append(
            jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key else array
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restore_moments(plan: Plan, segment: Segment) -> Streamed | None:
    """Return the moments at the end of a segment, for the chains in it, or None in warm-up."""
    if "moments.num_draws" not in segment.forms:
        return None
    by_kind = (
        {name: jnp.asarray(segment.read(f"moments.{kind}.{name}")) for name in plan.streamed}
        for kind in Streamed._fields[1:]
    )
    return Streamed(jnp.asarray(segment.read("moments.num_draws")), *by_kind)


def place_moments(moments: Streamed | None, num_chains: int, mesh: Mesh | None) -> Streamed | None:
    """Place this process's moments on the mesh, as a part of the moments of all chains."""
    if moments is None or mesh is None:
        return moments
    num_draws, *by_kind = moments
    placed = jax.tree.map(
        lambda x: whole_array(np.asarray(x), chain_sharding(mesh), (num_chains, *x.shape[1:])),
        by_kind,
    )
    return Streamed(num_draws, *placed)

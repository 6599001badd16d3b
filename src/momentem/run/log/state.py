"""A sampler's state, and moments, as named arrays and back.

Leaves are stored by number and path, of keys the data. Their tree is not stored: it is that of a
state of the same sampler.
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
    """Moments as named arrays."""
    arrays = {"moments.num_draws": local_part(moments.num_draws)}
    for kind, by_name in zip(Streamed._fields[1:], moments[1:], strict=True):
        arrays |= {f"moments.{kind}.{name}": local_part(x) for name, x in by_name.items()}
    return arrays


def _state_names(state: Any) -> list[tuple[str, Any]]:
    """Every leaf of a state, by its number and path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    names = [re.sub(r"[^A-Za-z0-9_.-]", "_", path) for path in paths]
    return [(f"state.{i:04d}.{names[i]}", leaf) for i, (_, leaf) in enumerate(leaves)]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _numbers(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def store_state(state: Any) -> dict[str, np.ndarray]:
    """A state as named arrays; of keys, their data."""
    return {name: local_part(_numbers(leaf)) for name, leaf in _state_names(state)}


def restore(segment: Segment, like: Any) -> Any:
    """The state at the end of a segment, in the tree of another that gives structure, shapes,
    dtypes and places."""
    named = _state_names(like)
    stored = {name for name in segment.forms if name.startswith("state.")}
    if strangers := sorted(stored.symmetric_difference(name for name, _ in named)):
        raise SegmentError(
            f"segment {segment.path.name} must hold the sampler's state: {strangers[0]} is missing "
            "from it, or from the sampler"
        )
    leaves = []
    for name, leaf in named:
        numbers = _numbers(leaf)
        raw = local_part(numbers)
        if segment.forms[name] != (raw.dtype.name, raw.shape):
            raise SegmentError(
                f"segment {segment.path.name} must hold {name} as {raw.dtype.name}{raw.shape}, has "
                f"{segment.forms[name]}"
            )
        array = whole_array(segment.read(name), numbers.sharding, numbers.shape)
        is_key = _is_key(leaf)
        leaves.append(
            jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key else array
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restore_moments(plan: Plan, segment: Segment) -> Streamed | None:
    """The moments at the end of a segment, of the chains in it; none in warm-up."""
    if "moments.num_draws" not in segment.forms:
        return None
    by_kind = (
        {name: jnp.asarray(segment.read(f"moments.{kind}.{name}")) for name in plan.streamed}
        for kind in Streamed._fields[1:]
    )
    return Streamed(jnp.asarray(segment.read("moments.num_draws")), *by_kind)


def place_moments(moments: Streamed | None, num_chains: int, mesh: Mesh | None) -> Streamed | None:
    """The moments of all chains of which this process has its own, for a run on a mesh."""
    if moments is None or mesh is None:
        return moments
    num_draws, *by_kind = moments
    placed = jax.tree.map(
        lambda x: whole_array(np.asarray(x), chain_sharding(mesh), (num_chains, *x.shape[1:])),
        by_kind,
    )
    return Streamed(num_draws, *placed)

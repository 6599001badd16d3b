"""The mesh of devices, chains x data, and the placement of a run's arrays on it.

    chains    the leading axis of states and draws: each device moves its own chains
    data      the leading axis of rows: each device sums the terms of its own rows

Programs are written for one device. JAX divides them according to the sharding of their arrays. A
sum along a divided axis becomes a collective: the sum of log likelihoods over data, and of an
M-step's statistics over chains. There is no second code path. No gradient is summed by hand,
because JAX already sums it inside `shard_map`, and a second sum would count it once per device.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from momentem.checks import check_count, check_instance
from momentem.types import Sampler

__all__ = [
    "chain_sharding",
    "check_mesh",
    "constrain_sharding",
    "local_chains",
    "local_part",
    "mesh",
    "place_state",
    "spread_rows",
    "whole_array",
]

AXES = ("chains", "data")


def mesh(chains: int | None = None, data: int = 1) -> Mesh:
    """Return the mesh of all devices of all processes, with an axis of chains and an axis of data.

    Args:
        chains: devices along the axis of chains. Default: the number of all devices divided by
            `data`.
        data: devices along the axis of data.

    Returns:
        The `mesh` argument of `momentem.sample` and `momentem.dataset`.

    Examples:
        >>> import momentem as mt
        >>> dict(mt.mesh().shape)
        {'chains': 1, 'data': 1}
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    check_count(1, data=data)
    if chains is not None:
        check_count(1, chains=chains)
    chains = len(devices) // data if chains is None else chains
    if chains * data != len(devices):
        raise ValueError(
            f"chains x data must be the number of devices, {len(devices)}, got {chains} x {data}; "
            "choose numbers that multiply to it, or start with that many devices"
        )
    grid = np.empty(len(devices), object)
    grid[:] = devices
    return Mesh(grid.reshape(chains, data), AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def check_mesh(mesh: Mesh | None, num_chains: int | None = None) -> None:
    """Refuse anything but a mesh of all devices, and a number of chains that it cannot divide."""
    if mesh is None:
        if jax.process_count() > 1:
            raise ValueError(
                f"mesh must be given for {jax.process_count()} processes, because otherwise each "
                "would make the same draws; give mesh=momentem.mesh()"
            )
        return
    check_instance(Mesh, "build it with momentem.mesh()", mesh=mesh)
    if mesh.axis_names != AXES or mesh.size != jax.device_count():
        raise ValueError(
            f"mesh must have the axes {AXES} and all {jax.device_count()} devices, got "
            f"{dict(mesh.shape)}; build it with momentem.mesh()"
        )
    if num_chains is not None and num_chains % mesh.shape["chains"]:
        raise ValueError(
            f"num_chains must be a multiple of the {mesh.shape['chains']} devices along the axis "
            f"of chains, got {num_chains}; give a multiple, or mesh=momentem.mesh(data=…) with "
            "fewer devices for chains"
        )


def spread_rows(mesh: Mesh, array: Any) -> jax.Array:
    """Divide the leading axis of a host array over the mesh's axis of data.

    The axis must be a multiple of the mesh's axis. Every process must have the whole array, and
    sends the parts to its own devices.
    """
    host = np.asarray(array)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def chain_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays with a leading axis of chains."""
    return NamedSharding(mesh, PartitionSpec("chains"))


def constrain_sharding(mesh: Mesh | None, tree: Any, axis: int | None) -> Any:
    """Apply a sharding constraint inside a compiled program. Arrays are divided along `axis`, which
    is that of chains, or copied to every device if it is None."""
    if mesh is None:
        return tree
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "chains")
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, spec))


def place_state(mesh: Mesh | None, sampler: Sampler, key: Any, positions: Any, state: Any) -> Any:
    """Apply a sharding constraint to a sampler's state inside a compiled program.

    Arrays with an axis of chains are divided along it. They are those whose shape changes with one
    more chain.
    """
    if mesh is None:
        return state
    num_chains, dim = positions.shape
    forms = [jax.ShapeDtypeStruct((n, dim), positions.dtype) for n in (num_chains, num_chains + 1)]
    like, more = (jax.eval_shape(sampler.init, key, form) for form in forms)
    return jax.tree.map(
        lambda leaf, a, b: constrain_sharding(mesh, leaf, 0 if a.shape != b.shape else None),
        state,
        like,
        more,
    )


def whole_array(local: np.ndarray, sharding: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return the whole array from this process's part, `local`: the inverse of `local_part`."""
    if not isinstance(sharding, NamedSharding):
        return jnp.asarray(local)
    return jax.make_array_from_process_local_data(sharding, local, shape)


def local_part(array: Any) -> np.ndarray:
    """Return the part of an array that this process holds: all of it unless it is divided."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    pieces = {
        tuple(along.start or 0 for along in shard.index): np.asarray(shard.data)
        for shard in array.addressable_shards
    }
    starts = sorted(pieces)
    axis = next((a for a in range(array.ndim) if starts[0][a] != starts[-1][a]), 0)
    return np.concatenate([pieces[start] for start in starts], axis)


def local_chains(mesh: Mesh | None, num_chains: int) -> range:
    """Return the chains whose states this process holds. They are consecutive, because devices are
    sorted by process."""
    if mesh is None:
        return range(num_chains)
    here = jax.process_index()
    rows = [i for i, row in enumerate(mesh.devices) if any(d.process_index == here for d in row)]
    each = num_chains // mesh.shape["chains"]
    return range(rows[0] * each, (rows[-1] + 1) * each)

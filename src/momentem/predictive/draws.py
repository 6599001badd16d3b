"""Draws of a trace as parameters: a pytree as the model takes it, with a leading axis of draws.

Only the draws that are asked for are read from a run log.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from momentem.checks import check_count, check_instance
from momentem.targets.parameters import parameter_names

if TYPE_CHECKING:
    import xarray

__all__ = ["Draws", "check_posterior", "read_draws", "spaced_draws"]


class Draws(NamedTuple):
    """Some draws of all chains."""

    parameters: Any  # (chain x draw, …), chain by chain
    num_chains: int
    draw: np.ndarray  # labels of the draws, the same in every chain


def check_posterior(trace: Any) -> None:
    """Refuse anything but a trace with draws."""
    from xarray import DataTree

    check_instance(DataTree, "give what momentem.sample returned", trace=trace)
    if "posterior" not in trace.children and trace.parent is not None:
        raise ValueError(
            "trace must be the whole of what momentem.sample returned, got its group "
            f"{trace.name}; leave out the brackets"
        )
    if "posterior" not in trace.children or not trace["posterior"].sizes.get("draw"):
        raise ValueError(
            "trace must have posterior draws, got none: the run ended during its warm-up; resume "
            "it, or run it again"
        )


def spaced_draws(trace: "xarray.DataTree", target: Any, num_draws: int | None) -> Draws:
    """Return evenly spaced draws, at most `num_draws` of all chains together (at least one of
    each)."""
    check_posterior(trace)
    chains, draws = (trace["posterior"].sizes[axis] for axis in ("chain", "draw"))
    every = 1
    if num_draws is not None:
        check_count(1, num_draws=num_draws)
        every = -(-draws // max(1, num_draws // chains))
    return read_draws(trace, target, slice(every - 1, None, every))


def read_draws(trace: "xarray.DataTree", target: Any, draws: slice) -> Draws:
    """Return these draws of all chains. Without a target, their structure is that of their names:
    "a.b" is entry b of entry a, and a position alone is an array."""
    posterior = trace["posterior"].to_dataset().isel(draw=draws)
    if target is None:
        parameters = _nest({str(name): _flat(array) for name, array in posterior.data_vars.items()})
        return Draws(parameters, posterior.sizes["chain"], posterior["draw"].values)
    like = jax.eval_shape(target.constrain, target.initial)
    names = parameter_names(like)
    if missing := sorted(set(names) - set(map(str, posterior.data_vars))):
        raise ValueError(
            f"trace must be of this target, with all its parameters, got one without "
            f"{missing[0]!r}; give the target that was sampled, and leave out `keep`"
        )
    leaves = [_flat(posterior[name]) for name in names]
    parameters = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return Draws(parameters, posterior.sizes["chain"], posterior["draw"].values)


def _flat(array: "xarray.DataArray") -> jax.Array:
    values = array.transpose("chain", "draw", ...).values
    return jnp.asarray(values.reshape(-1, *values.shape[2:]))


def _nest(found: dict[str, Any]) -> Any:
    """Return the parameters by their dotted names, as a dict, a tuple, or an array alone."""
    if list(found) == ["position"]:
        return found["position"]
    top: dict[str, Any] = {}
    for name, value in found.items():
        *parents, last = name.split(".")
        place = top
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return _as_tuples(top)


def _as_tuples(tree: Any) -> Any:
    """Return the tree with a tuple in place of every dict whose keys are 0, 1, …"""
    if not isinstance(tree, dict):
        return tree
    values = {key: _as_tuples(value) for key, value in tree.items()}
    if sorted(values) == sorted(map(str, range(len(values)))):
        return tuple(values[str(i)] for i in range(len(values)))
    return values

"""What a target was built from, beyond its log density: the terms of its likelihood, its data, and
the labels of its parameters.

Samplers do not look at it. Predictions, log likelihoods and traces do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from momentem.pytrees import Static
from momentem.targets.streams import Window

if TYPE_CHECKING:
    import xarray

__all__ = ["SMALL", "Labels", "Origin", "label_data", "name_leaves", "rows_origin", "small_data"]

SMALL = 10**6  # numbers: data with more are left out of a trace


@jax.tree_util.register_static
class Labels:
    """Names of dimensions, and labels along them, as ArviZ has them.

    All labels are equal to JAX, because no program depends on them: a model with other labels is
    not compiled again.

    Args:
        dims: names of the dimensions of each parameter.
        coords: labels along dimensions, by the dimension's name.
    """

    def __init__(
        self,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | None = None,
    ):
        given = {} if dims is None else dims, {} if coords is None else coords
        self.dims, self.coords = ({name: list(x) for name, x in each.items()} for each in given)

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Labels)


class Origin(NamedTuple):
    """What a target was built from."""

    # (parameters, rows) -> {name: log likelihood of every datum}; rows are those of `data`
    terms: Callable[..., dict[str, Any]]
    data: (
        Any  # rows with one leading axis, a Window of a stream, or None: the terms are of all data
    )
    num_rows: Any  # Static number of the rows in `data`
    observed: dict[str, Any]  # arrays that the model explains, by name
    constant: dict[str, Any]  # arrays that it is given besides
    labels: Labels
    # new data -> the function (key, parameters) -> {name: (distribution, draw)} of what the model
    # predicts; None if it cannot
    generate: Callable[..., Any] | None = None
    draw_prior: Callable[..., Any] | None = None  # key -> parameters and data; None if it cannot


def rows_origin(log_likelihood: Callable[..., Any], data: Any, num_rows: int) -> Origin:
    """Return the origin of a target that has the likelihood of one datum, and rows of data."""
    return Origin(
        Partial(_terms, log_likelihood), data, Static(num_rows), {}, _own_names(data), Labels()
    )


def _terms(log_likelihood: Callable, parameters: Any, rows: Any) -> dict[str, Any]:
    return {"datum": jax.vmap(log_likelihood, in_axes=(None, 0))(parameters, rows)}


def _own_names(data: Any) -> dict[str, Any]:
    """Return the leaves of data by name, or nothing if only a window of them is at hand."""
    return {} if isinstance(data, Window) else name_leaves(data)


def name_leaves(data: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="_")
        found[f"data_{name}" if name.isdigit() or not name else name] = leaf
    return found


def small_data(origin: Origin | None) -> dict[str, dict[str, np.ndarray]]:
    """Return the observed and the constant arrays of a model by ArviZ's group, if together they
    have at most SMALL numbers, and are not divided over processes."""
    if origin is None:
        return {}
    groups = {"observed_data": origin.observed, "constant_data": origin.constant}
    leaves = jax.tree.leaves(groups)
    is_here = all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)
    if not is_here or sum(leaf.size for leaf in leaves) > SMALL:
        return {}
    if origin.constant and isinstance(origin.num_rows, Static):  # rows that pad a mesh are no data
        count = origin.num_rows.value
        groups["constant_data"] = {name: leaf[:count] for name, leaf in origin.constant.items()}
    return {
        group: {name: np.asarray(leaf) for name, leaf in arrays.items()}
        for group, arrays in groups.items()
        if arrays
    }


def label_data(
    arrays: Mapping[str, np.ndarray], labels: Labels, sample_dims: Sequence[str] = ()
) -> "xarray.Dataset":
    """Return arrays as a Dataset, with the labels of their dimensions after `sample_dims`."""
    from arviz_base import dict_to_dataset

    dims: Any = {name: labels.dims[name] for name in arrays if name in labels.dims}
    used = {dim for names in dims.values() for dim in names}
    coords: Any = {name: values for name, values in labels.coords.items() if name in used}
    return dict_to_dataset(
        dict(arrays),
        sample_dims=list(sample_dims),
        dims=dims,
        coords=coords,
        check_conventions=False,
    )

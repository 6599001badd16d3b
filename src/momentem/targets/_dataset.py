"""Targets built from a prior, the likelihood of one datum, and data.

log p(theta | data) = log p(theta) + sum_i log p(datum_i | theta)
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from momentem.checks import check_callable, check_count, check_numbers
from momentem.devices._mesh import check_mesh, spread_rows
from momentem.pytrees import Static, as_partial
from momentem.targets._density import Target, build_target
from momentem.targets._minibatch import Scheme, StochasticTarget, blocks, build_stochastic
from momentem.targets.origin import rows_origin
from momentem.targets.parameters import Parameters, as_parameters, check_scalar
from momentem.targets.sources import Source
from momentem.targets.strata import build_stratified
from momentem.targets.streams import Stream, Window, in_window
from momentem.types import Scalar, Vector

__all__ = ["as_rows", "dataset"]


@overload
def dataset(
    log_prior: Callable[[Any], Any],
    log_likelihood: Callable[[Any, Any], Any],
    data: Any,
    initial: Any,
    constraints: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | None = None,
) -> Target: ...


@overload
def dataset(
    log_prior: Callable[[Any], Any],
    log_likelihood: Callable[[Any, Any], Any],
    data: Any,
    initial: Any,
    constraints: Mapping[str, Any] | None = None,
    *,
    batch_size: int,
    batches: Scheme | None = None,
    mesh: Mesh | None = None,
) -> StochasticTarget: ...


def dataset(
    log_prior: Callable[[Any], Any],
    log_likelihood: Callable[[Any, Any], Any],
    data: Any,
    initial: Any,
    constraints: Mapping[str, Any] | None = None,
    *,
    batch_size: int | None = None,
    batches: Scheme | None = None,
    mesh: Mesh | None = None,
) -> Target | StochasticTarget:
    """Return the target of a prior, the likelihood of ONE datum, and data.

    Args:
        log_prior: maps parameters to their log prior density, a scalar.
        log_likelihood: maps (parameters, datum) to the log likelihood of that one datum, a scalar.
        data: an array, or a pytree of arrays, with one shared leading axis and one datum per row.
            For data larger than memory, give `momentem.stream(…)`.
        initial: as for `density`.
        constraints: as for `density`.
        batch_size: rows per minibatch, an even number. Default: every gradient uses all data.
        batches: how minibatches are drawn, `blocks()` or `with_replacement()`. Default:
            `blocks()`.
        mesh: devices to divide the rows over, from `momentem.mesh(data=…)`. A minibatch then has
            one block of rows from each device. Default: all rows are on one device.

    Examples:
        >>> import jax.numpy as jnp
        >>> import momentem as mt
        >>> target = mt.dataset(
        ...     log_prior=lambda mu: -0.5 * mu**2,
        ...     log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        ...     data=jnp.array([1.0, 2.0, 3.0]),
        ...     initial=0.0,
        ... )
        >>> float(target.logdensity(target.initial))
        -7.0
    """
    check_callable(log_prior=log_prior, log_likelihood=log_likelihood)
    if isinstance(data, Stream):
        stored = data.open(_check_streamed(batch_size, batches, mesh))
        rows, num_rows, scheme = stored.rows, data.num_rows, in_window(stored)
    else:
        rows = as_rows(data)
        stored = jax.tree.map(jnp.asarray if mesh is None else partial(_divide, mesh), rows)
        num_rows, scheme = _length(rows), blocks() if batches is None else batches
    parameters = as_parameters(initial)
    datum = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows)
    check_scalar("log_prior(parameters)", log_prior, parameters)
    check_scalar("log_likelihood(parameters, datum)", log_likelihood, parameters, datum)
    prior, likelihood = as_partial(log_prior), as_partial(log_likelihood)
    logdensity = Partial(_log_posterior, prior, likelihood, Static(num_rows), stored)
    target = build_target(logdensity, parameters, constraints)
    target = target._replace(origin=rows_origin(likelihood, stored, num_rows))
    if batch_size is None:
        return target
    check_count(2, batch_size=batch_size)
    if batch_size > _length(rows) or batch_size % 2:
        raise ValueError(
            "batch_size must be even, because a minibatch has two halves, and at most the "
            f"{_length(rows)} rows of data, got {batch_size}"
        )
    flat_prior = build_target(prior, parameters, constraints).logdensity
    flat_likelihood = Partial(_flat_likelihood, likelihood, target.constrain)
    if mesh is not None and mesh.shape["data"] > 1:
        if scheme != blocks():
            raise ValueError("batches must be blocks() for data divided over devices; leave it out")
        return build_stratified(target, flat_prior, flat_likelihood, rows, batch_size, mesh)
    return build_stochastic(
        *(target, flat_prior, flat_likelihood, stored, num_rows, batch_size, scheme),
        is_part=isinstance(data, Stream),
    )


def _check_streamed(batch_size: int | None, batches: Any, mesh: Mesh | None) -> int:
    if batch_size is None:
        raise ValueError("batch_size must be given for a stream: its rows do not fit in memory")
    if batches is not None or mesh is not None:
        raise ValueError(
            "batches and mesh must be None for a stream: its minibatches are drawn from its "
            "window, which is on one device; leave them out"
        )
    return batch_size


def _flat_likelihood(
    log_likelihood: Callable, constrain: Callable, position: Vector, datum: Any
) -> Scalar:
    return log_likelihood(constrain(position), datum)


def _log_posterior(
    log_prior: Callable,
    log_likelihood: Callable,
    num_rows: Static,
    stored: Any,
    parameters: Parameters,
) -> Scalar:
    """Return the log posterior of the rows. Rows that only pad the mesh have weight 0. The rows of
    a window are scaled up to all rows."""
    rows = stored.rows if isinstance(stored, Window) else stored
    terms = jax.vmap(log_likelihood, in_axes=(None, 0))(parameters, rows)
    if len(terms) > num_rows.value:
        terms = jnp.where(jnp.arange(len(terms)) < num_rows.value, terms, 0)
    return log_prior(parameters) + max(1, num_rows.value / len(terms)) * jnp.sum(terms)


def _length(rows: Any) -> int:
    return len(jax.tree.leaves(rows)[0])


def _divide(mesh: Mesh, rows: np.ndarray) -> jax.Array:
    """Divide rows over the mesh's axis of data, padded to a multiple of its length."""
    check_mesh(mesh)
    lacking = -len(rows) % mesh.shape["data"]
    return spread_rows(mesh, np.concatenate([rows, *[rows[:1]] * lacking]))


def as_rows(data: Any) -> Any:
    """Return `data` as a pytree of host arrays with one shared leading axis. Errors name the leaf
    and the row."""
    if isinstance(data, str | os.PathLike):
        path = os.fspath(data)
        raise TypeError(
            f"data must be arrays, got the path {path!r}; load it with numpy or pandas, or read it "
            f"in windows: data=momentem.stream(momentem.sources.from_parquet({path!r}, "
            "columns=[…])), batch_size=…"
        )
    if isinstance(data, Source):
        raise TypeError(
            "data must be arrays or a stream, got a source; write data=momentem.stream(source), "
            "batch_size=…"
        )
    leaves = jax.tree_util.tree_flatten_with_path(data)[0]
    if not leaves:
        raise ValueError(f"data must hold at least one array, got {data!r}")
    counts = {}
    for path, leaf in leaves:
        name = f"data{jax.tree_util.keystr(path)}"
        try:
            array = np.asarray(leaf)
        except ValueError:
            raise TypeError(f"{name} must be an array of numbers, got {leaf!r:.80}") from None
        if array.dtype.kind in "biuf" and (array.ndim == 0 or len(array) == 0):
            raise ValueError(f"{name} must have a row per datum, got shape {array.shape}")
        check_numbers(name, array)
        counts[name] = len(array)
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ValueError(f"data must share one leading axis, got rows {found}")
    return jax.tree.map(np.asarray, data)

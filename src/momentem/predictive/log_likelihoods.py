"""The log likelihood of every datum for every draw, in ArviZ's group, and leave-one-out by it.

    log p(y_i | theta_s)        (chain, draw, datum)

`arviz_stats.loo`, `loo_expectations` and `compare` read that group.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from momentem.predictive.draws import check_posterior, read_draws
from momentem.predictive.rows import count_rows, open_rows, pieces
from momentem.pytrees import Static
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.targets.origin import Origin, label_data

if TYPE_CHECKING:
    import xarray

__all__ = ["log_likelihood", "origin_of", "term_arrays"]

MOST_NUMBERS = 2 * 10**8  # of a group that is kept in memory
BLOCK_NUMBERS = 2**22  # computed at a time
PIECE = 4096  # rows at a time


def log_likelihood(trace: "xarray.DataTree", target: AnyTarget) -> "xarray.DataTree":
    """Return the trace with the log likelihood of every datum, in the group `log_likelihood`.

    `arviz_stats.loo(trace)` and `arviz_stats.compare({…})` then work. With more than 2 × 10⁸
    numbers, use `momentem.loo`, which needs a subsample of the data only.

    Args:
        trace: what `sample` returned. Its draws are read block by block.
        target: the target that was sampled, with a likelihood: from `dataset`, `from_numpyro` or
            `from_pymc`.

    Examples:
        >>> import arviz_stats, jax.numpy as jnp, momentem as mt
        >>> prior, likelihood = (lambda mu: -0.5 * mu**2), (lambda mu, x: -0.5 * (x - mu) ** 2)
        >>> target = mt.dataset(prior, likelihood, jnp.linspace(-2.0, 2.0, 20), 0.0)
        >>> trace = mt.log_likelihood(mt.sample(target), target)
        >>> print(arviz_stats.loo(trace).n_data_points)
        20
    """
    from xarray import DataTree

    check_posterior(trace)
    origin = origin_of(target)
    sizes = trace["posterior"].sizes
    total = sizes["chain"] * sizes["draw"] * _num_terms(trace, target, origin)
    if total > MOST_NUMBERS:
        raise ValueError(
            f"log likelihoods must be at most {MOST_NUMBERS:,} numbers to be kept, got {total:,}; "
            "use momentem.loo(trace, target), which takes a subsample of the data, or thin the "
            "trace: trace.isel(draw=slice(None, None, 10))"
        )
    arrays = term_arrays(trace, target, slice(None))
    shape = sizes["chain"], sizes["draw"]
    named = {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}
    found = trace.copy(deep=False)
    group = label_data(named, origin.labels, sample_dims=("chain", "draw"))
    found["log_likelihood"] = DataTree(group.assign_coords(draw=trace["posterior"]["draw"].values))
    return found


def origin_of(target: AnyTarget) -> Origin:
    """Return what a target was built from. Refuse one that is a density alone."""
    check_target(target)
    if target.origin is None:
        raise ValueError(
            "target must have a likelihood of its data, got a density alone; build it with "
            "momentem.dataset(log_prior, log_likelihood, data, initial), whose log_likelihood is "
            "that of one datum"
        )
    return target.origin


def _num_terms(trace: "xarray.DataTree", target: AnyTarget, origin: Origin) -> int:
    """Return the number of data of all kinds."""
    if origin.data is not None:
        return origin.num_rows.value
    one = read_draws(trace, target, slice(0, 1)).parameters
    shapes = jax.eval_shape(_over_draws, origin.terms, one, None)
    if not shapes:
        raise ValueError("target must have data, got a model without observed variables")
    return sum(math.prod(shape.shape[1:]) for shape in shapes.values())


@jax.jit
def _over_draws(terms: Any, parameters: Any, rows: Any) -> dict[str, Any]:
    return jax.vmap(terms, in_axes=(0, None))(parameters, rows)


def term_arrays(
    trace: "xarray.DataTree", target: AnyTarget, draws: slice, places: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return log likelihoods (chain x draw, datum) of these draws, and of the data at these places
    of one axis if they are given."""
    origin = origin_of(target)
    sizes = trace["posterior"].sizes
    wanted = range(sizes["draw"])[draws]
    rows = None if origin.data is None else _rows(origin)
    width = min(PIECE, count_rows(rows)) if rows is not None else _num_terms(trace, target, origin)
    size = max(1, BLOCK_NUMBERS // max(1, width * sizes["chain"]))
    found: dict[str, list[np.ndarray]] = {}
    for begin in range(0, len(wanted), size):
        block = wanted[begin : begin + size]
        some = slice(block.start, block.stop, block.step)
        parameters = read_draws(trace, target, some).parameters
        for name, array in _terms(origin, parameters, rows, places).items():
            by_chain = array.reshape(sizes["chain"], len(block), *array.shape[1:])
            found.setdefault(name, []).append(by_chain)
    joined = {name: np.concatenate(blocks, axis=1) for name, blocks in found.items()}
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in joined.items()}


def _rows(origin: Origin) -> Any:
    """Return the rows without those that pad a mesh."""
    rows = open_rows(origin.data)
    if isinstance(origin.num_rows, Static) and count_rows(rows) > origin.num_rows.value:
        return jax.tree.map(lambda leaf: leaf[: origin.num_rows.value], rows)
    return rows


def _terms(
    origin: Origin, parameters: Any, rows: Any, places: np.ndarray | None
) -> dict[str, np.ndarray]:
    if rows is None:
        found = {k: np.asarray(v) for k, v in _over_draws(origin.terms, parameters, None).items()}
        if places is None:
            return found
        flat = np.concatenate([v.reshape(len(v), -1) for v in found.values()], axis=1)
        return {"datum": flat[:, places]}
    number, total = len(jax.tree.leaves(parameters)[0]), count_rows(rows)
    is_wanted = np.ones(total, bool) if places is None else np.isin(np.arange(total), places)
    column = np.cumsum(is_wanted) - 1
    out: dict[str, np.ndarray] = {}
    for piece in pieces(rows, PIECE):
        span = slice(piece.first, piece.first + piece.number)
        if not is_wanted[span].any():
            continue
        for name, values in _over_draws(
            origin.terms, parameters, jax.tree.map(jnp.asarray, piece.rows)
        ).items():
            if name not in out:
                out[name] = np.empty((number, int(is_wanted.sum())), values.dtype)
            kept = is_wanted[span]
            out[name][:, column[span][kept]] = np.asarray(values)[:, : piece.number][:, kept]
    return out

"""Conversion of what a run kept to an xarray DataTree in ArviZ's schema."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from arviz_base import dict_to_dataset
from xarray import Dataset, DataTree
from xarray.core.indexing import LazilyIndexedArray

from momentem.run.batch_means import Streamed
from momentem.run.health import Troubles
from momentem.run.log.arrays import StoredArray
from momentem.run.plan import Plan

__all__ = ["as_datatree", "attributes"]


def as_datatree(
    plan: Plan,
    groups: Mapping[str, Mapping[str, Any]],
    learning: list[dict[str, np.ndarray]],
    final: Mapping[str, np.ndarray],
    moments: Streamed | None,
    attrs: Mapping[str, Any],
) -> DataTree:
    """Return the trace of a run.

    Args:
        plan: of the run.
        groups: arrays (chain, draw, …), in memory or stored, by group name in ArviZ.
        learning: what EM did, with one row per M-step, in pieces.
        final: arrays of what was learnt by the end.
        moments: of parameters that were not kept.
        attrs: attributes of the root.
    """
    labels: dict[str, Any] = {"dims": plan.dims, "coords": plan.coords}
    datasets = {
        name: _label(arrays, labels if name.endswith("posterior") else {})
        for name, arrays in groups.items()
    }
    if moments is not None:
        for name, arrays in moments.by_chain().items():
            datasets[name] = dict_to_dataset(arrays, sample_dims=["chain"], **labels)
        datasets["posterior_ess"] = dict_to_dataset(moments.ess(), sample_dims=[], **labels)
    if learning:
        rows = {name: np.concatenate([piece[name] for piece in learning]) for name in learning[0]}
        em = dict_to_dataset(rows, sample_dims=["m_step"], check_conventions=False)
        named = {f"final_{name}": array for name, array in final.items()}
        datasets["em"] = em.merge(dict_to_dataset(named, sample_dims=[], check_conventions=False))
    trace = DataTree.from_dict(datasets)
    trace.attrs = dict(attrs)
    return trace


def attributes(
    plan: Plan, iterations: int, seconds: float, is_whole: bool, troubles: Sequence[Troubles]
) -> dict[str, Any]:
    """Return the attributes of a trace's root after `iterations` iterations. `troubles` has those
    of warm-up and those of draws."""
    draws = max(0, iterations - plan.num_warmup)
    diverging = troubles[0].diverging + troubles[1].diverging
    return {
        "inference_library": "momentem",
        "seed": plan.seed,
        "sampling_time": seconds,
        "is_interrupted": int(not is_whole),
        "num_divergences": troubles[1].diverging.times,
        "first_divergence": diverging.where() if diverging.times else "",
        "num_transitions": draws * plan.num_chains,
        "num_warmup_divergences": troubles[0].diverging.times,
    }


def _label(arrays: Mapping[str, Any], labels: dict[str, Any]) -> Dataset:
    """Label arrays as ArviZ does, from their shapes alone. Stored arrays are not read."""
    rows = {name: np.zeros((x.shape[0], 1, *x.shape[2:]), x.dtype) for name, x in arrays.items()}
    model = dict_to_dataset(rows, check_conventions=False, **labels)
    num_draws = next(iter(arrays.values())).shape[1]
    coords = {name: coord for name, coord in model.coords.items() if name != "draw"}
    variables = {
        name: (model[name].dims, LazilyIndexedArray(x) if isinstance(x, StoredArray) else x)
        for name, x in arrays.items()
    }
    # a range takes no memory; an array of labels would take as much as the draws of a scalar
    return Dataset(variables, coords | {"draw": pd.RangeIndex(num_draws)}, model.attrs)

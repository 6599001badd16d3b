"""The logs of a run's processes, joined along the axis of chains.

All processes have published the same iterations, except that a process may be one segment ahead of
another that was killed. The run consists of the segments that all of them have.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from xarray import DataTree

from momentem.run.batch_means import Streamed
from momentem.run.health import Trouble, Troubles
from momentem.run.log.arrays import StoredArray, join_chains
from momentem.run.log.folder import MANIFEST, PART
from momentem.run.log.read import Run, groups_of, learning_of, open_run, troubles_of
from momentem.run.log.segment import Segment
from momentem.run.log.state import restore_moments
from momentem.run.trace import as_datatree, attributes

__all__ = [
    "first_chain",
    "join_groups",
    "join_moments",
    "join_troubles",
    "num_chains",
    "open_parts",
    "stored_trace",
]


def open_parts(folder: Path) -> tuple[list[Run], list[str]]:
    """Open the log in a folder, or the logs of its processes in the order of their chains. Return
    them with descriptions of what is damaged or missing."""
    paths = sorted(folder.glob(f"{PART}*/{MANIFEST}"))
    if (folder / MANIFEST).is_file() or not paths:
        runs = [open_run(folder)]
    else:
        runs = _sort_by_chains([open_run(path.parent) for path in paths])
    faults = [run.fault for run in runs if run.fault is not None]
    problems = [f"{fault}; what comes before it is returned" for fault in faults]
    total, present = num_chains(runs[0]), sum(run.plan.num_chains for run in runs)
    if present < total:
        problems.append(
            f"{folder} has {present} of {total} chains; copy the folders {PART}* of the other "
            "hosts into it"
        )
    shared = min(len(run.segments) for run in runs)
    return [run._replace(segments=run.segments[:shared]) for run in runs], problems


def num_chains(run: Run) -> int:
    """Return the number of chains of all processes."""
    return _place(run)[2]


def first_chain(run: Run) -> int:
    """Return the index of the first chain of this process."""
    return _place(run)[0]


def _place(run: Run) -> tuple[int, int, int]:
    """Return the first chain in a log, the one after its last, and the total number of chains."""
    num_chains = run.plan.num_chains
    place: Any = run.manifest.get("chains", [0, num_chains, num_chains])
    is_right = isinstance(place, list) and len(place) == 3 and all(type(n) is int for n in place)
    if not is_right or not 0 <= place[0] < place[1] <= place[2]:
        raise ValueError(f"{run.folder} must say which chains it has, got {place!r:.80}")
    if place[1] - place[0] != num_chains:
        raise ValueError(f"{run.folder} must have {place[1] - place[0]} chains, got {num_chains}")
    return place[0], place[1], place[2]


def _sort_by_chains(runs: list[Run]) -> list[Run]:
    """Sort runs by their chains, and drop duplicates: processes that divide data hold the same
    chains."""
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(first_chain(run), run)
    ordered = [found[first] for first in sorted(found)]
    for one, other in pairwise(ordered):
        if _place(one)[1] > _place(other)[0] or _kind(one) != _kind(other):
            raise ValueError(
                f"{one.folder} and {other.folder} must be of the same run, and are not; keep the "
                "folders of different runs apart"
            )
    return ordered


def _kind(run: Run) -> list[Any]:
    """Return what the logs of one run have in common."""
    plan = run.plan._replace(num_chains=num_chains(run))
    return [plan, *(run.manifest.get(name) for name in ("model", "forms", "mesh", "processes"))]


def stored_trace(runs: list[Run], is_cut: bool) -> DataTree:
    """Return the trace of a run's logs. `is_cut` says that a damaged segment cut it short."""
    segments = runs[0].segments
    plan = runs[0].plan._replace(num_chains=sum(run.plan.num_chains for run in runs))
    learning, final = learning_of(segments)
    last = segments[-1].about if segments else {"num_draws": plan.num_draws, "seconds": 0.0}
    done = last["first"] + last["iterations"] if segments else 0
    is_whole = not is_cut and done >= plan.num_warmup + last["num_draws"]
    attrs = attributes(plan, done, last["seconds"], is_whole, join_troubles(runs))
    return as_datatree(plan, join_groups(runs), learning, final, join_moments(runs), attrs)


def join_groups(runs: list[Run]) -> dict[str, dict[str, StoredArray]]:
    """Return the arrays of a run by group and name in ArviZ. None of them is read."""
    first, *others = (groups_of(run.segments) for run in runs)
    if any(_forms(other) != _forms(first) for other in others):
        raise ValueError(
            f"the logs in {runs[0].folder.parent} must have the same statistics, and do not; keep "
            "the folders of different runs apart"
        )
    return {
        group: {
            name: join_chains([array, *(other[group][name] for other in others)])
            for name, array in arrays.items()
        }
        for group, arrays in first.items()
    }


def _forms(groups: dict[str, dict[str, StoredArray]]) -> dict[str, Any]:
    return {
        f"{group}.{name}": (array.dtype, array.shape[1:])
        for group, arrays in groups.items()
        for name, array in arrays.items()
    }


def join_moments(runs: list[Run]) -> Streamed | None:
    """Return the moments of all chains at the end of a run, or None in warm-up."""
    found = [restore_moments(run.plan, run.segments[-1]) for run in runs if run.segments]
    parts = [moments for moments in found if moments is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    by_kind = jax.tree.map(lambda *of_parts: jnp.concatenate(of_parts), *(x[1:] for x in parts))
    return Streamed(parts[0].num_draws, *by_kind)


def join_troubles(runs: list[Run]) -> tuple[Troubles, Troubles]:
    """Return the troubles of warm-up and those of the draws."""
    warmup, draws = zip(*(_troubles(run.segments, first_chain(run)) for run in runs), strict=True)
    return _add_processes(warmup), _add_processes(draws)


def _troubles(segments: list[Segment], first_chain: int) -> tuple[Troubles, Troubles]:
    found = [Troubles(), Troubles()]
    for segment in segments:
        phase = int(segment.about["is_frozen"])
        found[phase] = found[phase] + troubles_of(segment)
    warmup, draws = (
        Troubles(*(trouble._replace(chain=trouble.chain + first_chain) for trouble in kinds))
        for kinds in found
    )
    return warmup, draws


def _add_processes(parts: tuple[Troubles, ...]) -> Troubles:
    """Add the troubles of all processes. The first place of each kind is the earliest iteration."""
    kinds = (
        sorted(kind, key=lambda trouble: trouble.iteration) for kind in zip(*parts, strict=True)
    )
    return Troubles(*(sum(kind, start=Trouble()) for kind in kinds))

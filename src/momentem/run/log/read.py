"""Read a run log. Everything in it is checked before it is used."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from momentem.files import digest_of, read_table
from momentem.run.batch_means import NUM_BATCHES
from momentem.run.health import Trouble, Troubles
from momentem.run.log.arrays import StoredArray
from momentem.run.log.folder import FORMAT, MANIFEST, MANIFEST_BYTES
from momentem.run.log.segment import Segment, SegmentError, check_name, inspect, list_segments
from momentem.run.plan import Plan

__all__ = ["Run", "groups_of", "learning_of", "open_run", "troubles_of"]

LARGEST = 2**53  # of a whole number in a log


class Run(NamedTuple):
    """A run log on the disk."""

    folder: Path
    manifest: dict[str, Any]
    digest: str  # of the manifest's bytes
    plan: Plan
    segments: list[Segment]
    fault: SegmentError | None  # what is wrong with the first segment that is not whole


def open_run(folder: Path) -> Run:
    """Open a run log, up to the first segment that is not whole. Its manifest must be whole."""
    path = folder / MANIFEST
    if not path.exists():
        has_segments = folder.is_dir() and len(list_segments(folder)) > 1
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {MANIFEST} in it; "
            + (
                f"`momentem repair {folder}` writes it again from the segments"
                if has_segments
                else "give a folder that momentem.sample(out=…) has written. (A run that ended "
                "before its first iteration leaves no manifest: start it again)"
            )
        )
    try:
        manifest, text = read_table(path, MANIFEST_BYTES)
        plan = _plan(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"{path} is not the manifest of a run: {error!r}; if its segments are whole, `momentem "
            f"repair {folder}` writes it again"
        ) from error
    digest = digest_of(text)
    segments, fault, previous = [], None, digest
    try:
        for number, file in enumerate(list_segments(folder)):
            segment = inspect(folder, file, number, previous)
            _check_contents(manifest, plan, segments, segment)
            segments.append(segment)
            previous = segment.digest
        if not segments:
            raise SegmentError(f"segment 0 of {folder} is missing")
    except SegmentError as error:
        fault = error
    return Run(folder, manifest, digest, plan, segments, fault)


def _plan(manifest: Any) -> Plan:
    """Return the plan in a manifest. Refuse a manifest that no run can have written."""
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format must be {FORMAT}, got {manifest['format']!r}")
    for name in ("num_draws", "num_warmup", "num_chains", "seed", "thin"):
        _whole(manifest, name)
    if manifest["thin"] < 1 or manifest["num_chains"] < 1:
        raise ValueError("thin and num_chains must be at least 1")
    keep, streamed = tuple(manifest["keep"]), tuple(manifest["streamed"])
    for name in (*keep, *streamed):
        check_name(name)
    for name in (*keep, *streamed):
        dtype, shape = manifest["forms"][name]
        if np.dtype(dtype).kind != "f" or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(
                f"{name} must have a float dtype and a shape, got {manifest['forms'][name]}"
            )
    numbers = {k: manifest[k] for k in ("num_draws", "num_warmup", "num_chains", "seed", "thin")}
    labels = {name: manifest[name] for name in ("dims", "coords")}
    for name, table in labels.items():
        lists = {} if table is None else table
        if not isinstance(lists, dict) or any(not isinstance(x, list) for x in lists.values()):
            raise ValueError(f"{name} must be a table of lists")
    most = _whole(manifest, "most_draws") if "most_draws" in manifest else numbers["num_draws"]
    return Plan(**numbers, keep=keep, streamed=streamed, **labels, most_draws=most)


def _whole(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise SegmentError(f"{name} must be a whole number from 0 to 2^53, got {value!r:.80}")
    return value


def _check_contents(
    manifest: dict[str, Any], plan: Plan, before: list[Segment], segment: Segment
) -> None:
    """Refuse a segment that does not start where the last one ended, or whose arrays do not have
    the shapes of the run's arrays."""
    about, forms = segment.about, segment.forms
    try:
        first, count, rows = (_whole(about, name) for name in ("first", "iterations", "rows"))
        _whole(about, "num_draws")
        is_frozen = about.get("is_frozen")
        seconds = about.get("seconds")
        if not isinstance(is_frozen, bool) or not isinstance(seconds, float):
            raise SegmentError("is_frozen or seconds is missing")
        if not math.isfinite(seconds):
            raise SegmentError(f"seconds must be finite, got {seconds}")
        troubles_of(segment)
        last = before[-1].about if before else {"first": 0, "iterations": 0, "is_frozen": False}
        # warm-up may have ended early
        is_next_phase = is_frozen and not last["is_frozen"]
        due = plan.num_warmup if is_next_phase else last["first"] + last["iterations"]
        if first != due or last["is_frozen"] > is_frozen:
            raise SegmentError(f"it starts at iteration {first}, which is not where the last ended")
        start = plan.num_warmup if is_frozen else 0
        if first < start or not (is_frozen or first + count <= plan.num_warmup):
            raise SegmentError("it mixes warm-up and draws")
        done = first - start
        if rows != (done + count) // plan.thin - done // plan.thin:
            raise SegmentError(f"it has {rows} rows for {count} iterations")
        expected = _expected_forms(manifest, plan, rows, count, is_frozen)
        for name, form in expected.items():
            if forms.get(name) != form:
                raise SegmentError(f"{name} must be {form}, got {forms.get(name)}")
        _check_others(plan, before, segment, set(expected), rows, count)
    except SegmentError as error:
        raise SegmentError(f"segment {segment.path.name} is not whole: {error}") from None


def _expected_forms(
    manifest: dict[str, Any], plan: Plan, rows: int, count: int, is_frozen: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtypes and shapes of the arrays that follow from the manifest."""
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    if count:
        expected["stats.diverging"] = ("bool", (rows, plan.num_chains))
        for name in plan.keep:
            dtype, shape = manifest["forms"][name]
            expected[f"draws.{name}"] = (dtype, (rows, plan.num_chains, *shape))
    if is_frozen:
        for name in plan.streamed:
            dtype, shape = manifest["forms"][name]
            for kind, lead in (("mean", ()), ("variance", ()), ("batches", (NUM_BATCHES,))):
                expected[f"moments.{kind}.{name}"] = (dtype, (plan.num_chains, *lead, *shape))
    return expected


def _check_others(
    plan: Plan, before: list[Segment], segment: Segment, known: set[str], rows: int, count: int
) -> None:
    """Check statistics and learning, whose names depend on the sampler. All must have one length,
    and the same form as in earlier segments."""
    m_steps = segment.forms.get("learning.iteration", ("", (0,)))[1]
    for name, (_, shape) in segment.forms.items():
        group = name.split(".")[0]
        if group == "stats" and shape != (rows, plan.num_chains):
            raise SegmentError(f"{name} must have shape {(rows, plan.num_chains)}, got {shape}")
        if group == "learning" and shape[:1] != m_steps:
            raise SegmentError(f"{name} must have {m_steps} rows, got shape {shape}")
        if group == "draws" and name not in known:
            raise SegmentError(f"{name} must be a parameter of the run, and is not")
    earlier = next((s for s in before if s.about["is_frozen"] == segment.about["is_frozen"]
                    and s.about["iterations"]), None)  # fmt: skip
    if earlier is not None and count and _row_forms(earlier) != _row_forms(segment):
        raise SegmentError("its statistics differ from those of the segments before it")


def _row_forms(segment: Segment) -> dict[str, Any]:
    return {
        name: (dtype, shape[1:])
        for name, (dtype, shape) in segment.forms.items()
        if name.split(".")[0] in {"stats", "learning"}
    }


def troubles_of(segment: Segment) -> Troubles:
    """Return the troubles in a segment."""
    try:
        kinds = [Trouble(*kind) for kind in segment.about["troubles"]]
        for *numbers, what in kinds:
            if (
                any(type(n) is not int or abs(n) > LARGEST for n in numbers)
                or type(what) is not str
            ):
                raise ValueError("they must be three whole numbers and a text")
        return Troubles(*kinds)
    except (KeyError, TypeError, ValueError) as error:
        raise SegmentError(f"its troubles cannot be read: {error!r}") from None


def groups_of(segments: list[Segment]) -> dict[str, dict[str, StoredArray]]:
    """Return the arrays of segments by group and name in ArviZ. None of them is read."""
    groups: dict[str, dict[str, StoredArray]] = {}
    for is_frozen, prefix in ((True, ""), (False, "warmup_")):
        phase = [s for s in segments if s.about["is_frozen"] == is_frozen and s.about["rows"]]
        for kind, group in (("draws", "posterior"), ("stats", "sample_stats")):
            names = [n for n in (phase[0].forms if phase else ()) if n.startswith(f"{kind}.")]
            if names:
                arrays = {n.removeprefix(f"{kind}."): StoredArray(n, phase) for n in names}
                groups[f"{prefix}{group}"] = arrays
    return groups


def learning_of(
    segments: list[Segment],
) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return what EM did, in pieces, and the arrays of what was learnt by the end."""
    pieces, final = [], {}
    learnt = [segment for segment in segments if "learning.iteration" in segment.forms]
    for segment in learnt:
        names = [name for name in segment.forms if name.startswith("learning.")]
        pieces.append({name.removeprefix("learning."): segment.read(name) for name in names})
    if learnt:
        names = [name for name in learnt[-1].forms if name.startswith("learnt.")]
        final = {name.removeprefix("learnt."): learnt[-1].read(name) for name in names}
    return pieces, final

"""The run log: a folder with a manifest and a chain of segments.

    manifest.json                      what was asked for, from what it was made, and by which
                                       versions; never changed
    00000000-<sha256>.safetensors      the first state of the sampler, and no draws
    00000001-<sha256>.safetensors      draws, statistics, learning, and the state after them
    …

The newest whole segment is the truth: there is no counter that could disagree with it. Leaves of a
state are stored by number and path; their tree is rebuilt from the sampler.
(docs/decisions/0009-run-log.md)
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from momentem.run.history import as_rows, thinned
from momentem.run.lazy import StoredArray
from momentem.run.loop import Chunk, Here, Plan
from momentem.run.moments import Moments
from momentem.run.segments import (
    TEMPORARY,
    Segment,
    SegmentError,
    check_name,
    inspect,
    listed,
    publish,
    write_segment,
)
from momentem.run.troubles import Trouble, Troubles

__all__ = ["Run", "RunLog", "create", "layout", "open_run", "restored"]

SEGMENT_SECONDS = 10.0  # a kill costs at most so much,
SEGMENT_BYTES = 2**24  # and memory grows by no more than some of these
FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 2**24


class Run(NamedTuple):
    """A run log as it is on the disk."""

    folder: Path
    manifest: dict[str, Any]
    plan: Plan
    segments: list[Segment]
    fault: SegmentError | None  # of the first segment that is not whole


def layout() -> dict[str, Any]:
    """What bits depend on besides model, data and sampler."""
    import momentem

    return {
        "momentem": momentem.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "platform": jax.default_backend(),
        "num_devices": jax.device_count(),
    }


def create(
    folder: Path, plan: Plan, forms: Mapping[str, Any], hashes: Mapping[str, str], here: Here
) -> "RunLog":
    """Starts a log: the sampler's first state, then the manifest.

    Args:
        folder: new or empty.
        plan: of the run.
        forms: shape and dtype of every parameter.
        hashes: of what it is made from.
        here: where it starts.
    """
    for name in (*plan.keep, *plan.streamed):
        check_name(name)
    manifest = {
        "format": FORMAT,
        **layout(),
        "num_chains": plan.num_chains,
        "seed": plan.seed,
        "num_warmup": plan.num_warmup,
        "num_draws": plan.num_draws,
        "thin": plan.thin,
        "keep": list(plan.keep),
        "streamed": list(plan.streamed),
        "forms": {name: [str(form.dtype), list(form.shape)] for name, form in forms.items()},
        "dims": None if plan.dims is None else {k: list(v) for k, v in plan.dims.items()},
        "coords": None if plan.coords is None else _as_json(plan.coords),
        **hashes,
    }
    text = json.dumps(manifest, indent=2).encode()
    lock = _claim(folder)
    try:
        log = RunLog(folder, plan, _sha(text), [], here, 0.0, lock)
        log.publish()
        temporary = folder / TEMPORARY
        temporary.write_bytes(text)
        publish(temporary, folder / MANIFEST)
    except OSError as error:
        os.close(lock)
        raise OSError(
            f"out must be a folder that can be written to, got {folder}: {error}"
        ) from error
    return log


def _as_json(coords: Mapping[str, Any]) -> dict[str, list]:
    lists = {str(name): np.asarray(values).tolist() for name, values in coords.items()}
    try:
        json.dumps(lists)
    except TypeError:
        raise TypeError(
            f"coords must be numbers or texts to be stored with out=, got {coords!r:.200}; turn "
            "dates into texts"
        ) from None
    return lists


def _sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _claim(folder: Path) -> int:
    """Makes the folder, refuses one that is in use, and locks it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = list(folder.iterdir())
    except OSError as error:
        raise OSError(f"out must be a folder that can be made, got {folder}: {error}") from error
    if entries:
        raise FileExistsError(
            f"out must be a new or empty folder, got {folder}, which holds {entries[0].name!r}: "
            "go on with momentem.resume, or choose another folder"
        )
    return lock(folder)


def lock(folder: Path) -> int:
    """Keeps other processes from writing to the log. The lock ends with the process."""
    if os.name != "posix":
        return os.open(os.devnull, os.O_RDONLY)
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BlockingIOError(
            f"{folder} is being written to by another run; wait for it to end, or stop it"
        ) from None
    return descriptor


class RunLog:
    """The writing end of a run log."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        root: str,
        segments: list[Segment],
        here: Here,
        seconds: float,
        lock: int,
    ):
        self.folder, self.plan, self.segments = folder, plan, segments
        self._root, self._lock = root, lock
        self._pending: list[Chunk] = []
        self._here, self._size = here, 0
        self._begun, self._published = time.perf_counter() - seconds, time.perf_counter()
        # Ctrl-C is raised in the main thread only: what another one writes, it finishes
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: Future | None = None
        self._is_told = False  # of a failure to write

    def extend(self, chunk: Chunk) -> None:
        """Appends a chunk, and publishes a segment if one is due."""
        kept = thinned(self.plan, chunk)
        # copies, or the whole buffers would be held
        parameters, stats = (
            {name: np.array(rows[kept]) for name, rows in group.items()}
            for group in chunk.record[:2]
        )
        learning = as_rows(chunk) if chunk.record.learning else {}
        record = type(chunk.record)(parameters, stats, learning)
        arrays = [*parameters.values(), *stats.values()]
        self._pending.append(chunk._replace(record=record))
        self._size += sum(array.nbytes for array in arrays)
        is_due = time.perf_counter() - self._published >= SEGMENT_SECONDS
        if is_due or self._size >= SEGMENT_BYTES:
            self.publish()

    def end_phase(self) -> None:
        """Publishes what is there: the last state of warm-up."""
        if self._pending:
            self.publish()

    def publish(self) -> None:
        """Publishes all that was appended since the last time as one segment."""
        chunks, self._pending, self._size = self._pending, [], 0
        self._here = chunks[-1].here if chunks else self._here
        self._writing = self._writer.submit(self._write, chunks, self._here)
        try:
            self._writing.result()
        except OSError:
            self._is_told = True
            raise
        self._published = time.perf_counter()

    def close(self) -> None:
        """Publishes what is left, and lets go of the folder."""
        try:
            self._writer.shutdown()
            error = self._writing.exception() if self._writing else None
            if error is None and self._pending:
                self._write(self._pending, self._pending[-1].here)
            elif error is not None and not self._is_told:  # Ctrl-C came while it failed
                raise error
        finally:
            os.close(self._lock)

    def _write(self, chunks: list[Chunk], here: Here) -> None:
        arrays, count = _arrays(chunks), sum(chunk.iterations for chunk in chunks)
        rows = len(arrays["stats.diverging"]) if chunks else 0
        troubles = sum((chunk.troubles for chunk in chunks), start=Troubles())
        about = {
            "previous": self.segments[-1].digest if self.segments else self._root,
            "is_frozen": here.is_frozen,
            "first": here.iteration - count,
            "iterations": count,
            "rows": rows,
            "num_draws": self.plan.num_draws,
            "seconds": time.perf_counter() - self._begun,
            "troubles": troubles,
        }
        arrays |= stored_state(here.state)
        if here.moments is not None:
            arrays |= _stored_moments(here.moments)
        self.segments.append(write_segment(self.folder, len(self.segments), arrays, about))


def _arrays(chunks: list[Chunk]) -> dict[str, np.ndarray]:
    """The rows of chunks, by the names they are stored under, and the mass at their end."""
    arrays = {}
    for prefix, field in (("draws", 0), ("stats", 1), ("learning", 2)):
        for name in chunks[0].record[field] if chunks else ():
            arrays[f"{prefix}.{name}"] = np.concatenate([c.record[field][name] for c in chunks])
    if chunks and chunks[-1].record.learning:
        for name, array in chunks[-1].learnt.mass._asdict().items():
            arrays[f"mass.{name}"] = np.asarray(array)
    return arrays


def _stored_moments(moments: Moments) -> dict[str, np.ndarray]:
    arrays = {"moments.num_draws": np.asarray(moments.num_draws)}
    for name in moments.mean:
        arrays[f"moments.mean.{name}"] = np.asarray(moments.mean[name])
        arrays[f"moments.variance.{name}"] = np.asarray(moments.variance[name])
    return arrays


def _state_names(state: Any) -> list[tuple[str, Any]]:
    """Every leaf of a state, by its number and path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    names = [re.sub(r"[^A-Za-z0-9_.-]", "_", path) for path in paths]
    return [(f"state.{i:04d}.{names[i]}", leaf) for i, (_, leaf) in enumerate(leaves)]


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key)


def _raw(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def stored_state(state: Any) -> dict[str, np.ndarray]:
    """A state as named arrays; of keys, their data."""
    return {name: _raw(leaf) for name, leaf in _state_names(state)}


def restored(segment: Segment, like: Any) -> Any:
    """The state at the end of a segment, in the tree of another that gives structure, shapes and
    dtypes."""
    named = _state_names(like)
    stored = {name for name in segment.forms if name.startswith("state.")}
    if strangers := sorted(stored.symmetric_difference(name for name, _ in named)):
        raise SegmentError(
            f"segment {segment.path.name} must hold the sampler's state: {strangers[0]} is missing "
            "from it, or from the sampler"
        )
    leaves = []
    for name, leaf in named:
        raw = _raw(leaf)
        if segment.forms[name] != (raw.dtype.name, raw.shape):
            raise SegmentError(
                f"segment {segment.path.name} must hold {name} as {raw.dtype.name}{raw.shape}, has "
                f"{segment.forms[name]}"
            )
        array = jnp.asarray(segment.read(name))
        is_key = _is_key(leaf)
        leaves.append(
            jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key else array
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restored_moments(plan: Plan, segment: Segment) -> Moments | None:
    """The moments at the end of a segment; none in warm-up."""
    if "moments.num_draws" not in segment.forms:
        return None
    mean, variance = (
        {name: jnp.asarray(segment.read(f"moments.{kind}.{name}")) for name in plan.streamed}
        for kind in ("mean", "variance")
    )
    return Moments(jnp.asarray(segment.read("moments.num_draws")), mean, variance)


def open_run(folder: Path) -> Run:
    """A run log as far as it is whole. Its manifest must be."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no run: there is no {MANIFEST} in it; name a folder that "
            "momentem.sample(out=…) has written. (A run that ended before its first iteration "
            "leaves none: start it again)"
        )
    try:
        if path.resolve().parent != folder.resolve():
            raise ValueError(f"it leads out of the folder, to {path.resolve()}")
        if path.stat().st_size > MANIFEST_BYTES:
            raise ValueError(f"it is larger than {MANIFEST_BYTES} bytes")
        text = path.read_bytes()
        manifest = json.loads(text)
        plan = _plan(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is not the manifest of a run: {error!r}") from error
    segments, fault, previous = [], None, _sha(text)
    try:
        for number, file in enumerate(listed(folder)):
            segment = inspect(folder, file, number, previous)
            _check_contents(manifest, plan, segments, segment)
            segments.append(segment)
            previous = segment.digest
        if not segments:
            raise SegmentError(f"segment 0 of {folder} is missing")
    except SegmentError as error:
        fault = error
    return Run(folder, manifest, plan, segments, fault)


def _plan(manifest: Any) -> Plan:
    """The plan that a manifest tells of; refuses what no run can have written."""
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']!r}, known is {FORMAT}")
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
            raise ValueError(f"the form of {name} is {manifest['forms'][name]}")
    numbers = {k: manifest[k] for k in ("num_draws", "num_warmup", "num_chains", "seed", "thin")}
    labels = {name: manifest[name] for name in ("dims", "coords")}
    if any(not isinstance(value, dict | None) for value in labels.values()):
        raise ValueError("dims and coords must be tables")
    return Plan(**numbers, keep=keep, streamed=streamed, **labels)


def _whole(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name)
    if type(value) is not int or value < 0:
        raise SegmentError(f"{name} must be a whole number >= 0, got {value!r:.80}")
    return value


def _check_contents(
    manifest: dict[str, Any], plan: Plan, before: list[Segment], segment: Segment
) -> None:
    """Refuses a segment that does not go on where the last one ended, or whose arrays do not have
    the shapes that the run's have."""
    about, forms = segment.about, segment.forms
    try:
        first, count, rows = (_whole(about, name) for name in ("first", "iterations", "rows"))
        _whole(about, "num_draws")
        is_frozen = about.get("is_frozen")
        if not isinstance(is_frozen, bool) or not isinstance(about.get("seconds"), float):
            raise SegmentError("is_frozen or seconds is missing")
        troubles_of(segment)
        last = before[-1].about if before else {"first": 0, "iterations": 0, "is_frozen": False}
        # warm-up may have ended before its time
        is_next_phase = is_frozen and not last["is_frozen"]
        expected = plan.num_warmup if is_next_phase else last["first"] + last["iterations"]
        if first != expected or last["is_frozen"] > is_frozen:
            raise SegmentError(f"it starts at iteration {first}, which is not where the last ended")
        start = plan.num_warmup if is_frozen else 0
        if first < start or not (is_frozen or first + count <= plan.num_warmup):
            raise SegmentError("it mixes warm-up and draws")
        done = first - start
        if rows != (done + count) // plan.thin - done // plan.thin:
            raise SegmentError(f"it has {rows} rows of {count} iterations")
        wanted = _expected(manifest, plan, rows, count, is_frozen)
        for name, form in wanted.items():
            if forms.get(name) != form:
                raise SegmentError(f"{name} must be {form}, is {forms.get(name)}")
        _check_others(plan, before, segment, set(wanted), rows, count)
    except SegmentError as error:
        raise SegmentError(f"segment {segment.path.name} is not whole: {error}") from None


def _expected(
    manifest: dict[str, Any], plan: Plan, rows: int, count: int, is_frozen: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The forms of arrays that the manifest tells."""
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    if count:
        expected["stats.diverging"] = ("bool", (rows, plan.num_chains))
        for name in plan.keep:
            dtype, shape = manifest["forms"][name]
            expected[f"draws.{name}"] = (dtype, (rows, plan.num_chains, *shape))
    if is_frozen:
        for name in plan.streamed:
            dtype, shape = manifest["forms"][name]
            for kind in ("mean", "variance"):
                expected[f"moments.{kind}.{name}"] = (dtype, (plan.num_chains, *shape))
    return expected


def _check_others(
    plan: Plan, before: list[Segment], segment: Segment, known: set[str], rows: int, count: int
) -> None:
    """Statistics and learning, whose names are the sampler's: all of one length, and as before."""
    m_steps = segment.forms.get("learning.iteration", ("", (0,)))[1]
    for name, (_, shape) in segment.forms.items():
        group = name.split(".")[0]
        if group == "stats" and shape != (rows, plan.num_chains):
            raise SegmentError(f"{name} must have shape {(rows, plan.num_chains)}, has {shape}")
        if group == "learning" and shape[:1] != m_steps:
            raise SegmentError(f"{name} must have {m_steps} rows, has shape {shape}")
        if group == "draws" and name not in known:
            raise SegmentError(f"{name} is no parameter of the run")
    earlier = next((s for s in before if s.about["is_frozen"] == segment.about["is_frozen"]
                    and s.about["iterations"]), None)  # fmt: skip
    if earlier is not None and count and _row_forms(earlier) != _row_forms(segment):
        raise SegmentError("its statistics are not those of the segments before it")


def _row_forms(segment: Segment) -> dict[str, Any]:
    return {
        name: (dtype, shape[1:])
        for name, (dtype, shape) in segment.forms.items()
        if name.split(".")[0] in {"stats", "learning"}
    }


def troubles_of(segment: Segment) -> Troubles:
    """The troubles that a segment tells of."""
    try:
        kinds = [
            Trouble(int(a), int(b), int(c), str(d)) for a, b, c, d in segment.about["troubles"]
        ]
        return Troubles(*kinds)
    except (KeyError, TypeError, ValueError) as error:
        raise SegmentError(f"its troubles cannot be read: {error!r}") from None


def groups_of(segments: list[Segment]) -> dict[str, dict[str, StoredArray]]:
    """The arrays of a run by their names in ArviZ, none of them read."""
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
    """What EM did, in pieces, and the arrays of the mass it came to."""
    pieces, mass = [], {}
    learnt = [segment for segment in segments if "learning.iteration" in segment.forms]
    for segment in learnt:
        names = [name for name in segment.forms if name.startswith("learning.")]
        pieces.append({name.removeprefix("learning."): segment.read(name) for name in names})
    if learnt:
        names = [name for name in learnt[-1].forms if name.startswith("mass.")]
        mass = {name.removeprefix("mass."): learnt[-1].read(name) for name in names}
    return pieces, mass

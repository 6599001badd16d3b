"""The run log: a folder with a manifest and a chain of segments.

    manifest.json                      what was asked for, from what it was made, and by which
                                       versions; never changed
    00000000-<sha256>.safetensors      the first state of the sampler, and no draws
    00000001-<sha256>.safetensors      draws, statistics, learning, and the state after them
    …

Where there are several processes, each has a log of its own in a folder process-<i>, with the
chains that it holds, and all publish at the same iterations.

The newest whole segment is the truth: there is no counter that could disagree with it. Leaves of a
state are stored by number and path; their tree is rebuilt from the sampler.
(docs/decisions/0009-run-log.md)
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from momentem._version import __version__
from momentem.devices._mesh import held_chains
from momentem.devices.agreement import agreed
from momentem.run.health import Troubles
from momentem.run.in_memory import as_rows, thinned
from momentem.run.log.segment import TEMPORARY, Segment, check_name, listed, publish, write_segment
from momentem.run.log.state import stored_moments, stored_state
from momentem.run.loop import Chunk, Here, Plan

__all__ = [
    "FORMAT",
    "MANIFEST",
    "PART",
    "RunLog",
    "create",
    "forget_unbegun",
    "layout",
    "lock",
    "part_of",
]

SEGMENT_SECONDS = 10.0  # a kill costs at most so much,
SEGMENT_BYTES = 2**24  # and memory grows by no more than some of these
FORMAT = 1
MANIFEST = "manifest.json"
PART = "process-"


def part_of(folder: Path) -> Path:
    """The folder of this process's own log: the whole one, if there is no other process."""
    return folder if jax.process_count() == 1 else folder / f"{PART}{jax.process_index()}"


def forget_unbegun(folder: Path) -> None:
    """Clears the log of a run that ended before its first iteration, if that is what is there."""
    if not folder.is_dir() or len(segments := listed(folder)) > 1:
        return
    descriptor = lock(folder)
    for path in (folder / MANIFEST, folder / TEMPORARY, *segments):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def layout(mesh: Mesh | None) -> dict[str, Any]:
    """What bits depend on besides model, data and sampler."""
    grid = {} if mesh is None else {"mesh": dict(mesh.shape), "processes": jax.process_count()}
    return {
        "momentem": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "platform": jax.default_backend(),
        "num_devices": jax.device_count(),
        **grid,
    }


def create(
    folder: Path,
    plan: Plan,
    forms: Mapping[str, Any],
    hashes: Mapping[str, str],
    here: Here,
    mesh: Mesh | None,
) -> "RunLog":
    """Starts a log, of the chains that this process holds: the sampler's first state, then the
    manifest.

    Args:
        folder: new or empty.
        plan: of the run.
        forms: shape and dtype of every parameter.
        hashes: of what it is made from.
        here: where it starts.
        mesh: what it runs on.
    """
    for name in (*plan.keep, *plan.streamed):
        check_name(name)
    chains = held_chains(mesh, plan.num_chains)
    part = {"chains": [chains.start, chains.stop, plan.num_chains]}
    plan, folder = plan._replace(num_chains=len(chains)), part_of(folder)
    manifest = {
        "format": FORMAT,
        **layout(mesh),
        **(part if jax.process_count() > 1 else {}),
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

    is_local = True

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
        if agreed(is_due or self._size >= SEGMENT_BYTES):
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
        """Publishes what is left, and lets go of the folder. Of several processes, one that was
        stopped publishes nothing: the others would have no segment that ends there."""
        try:
            self._writer.shutdown()
            error = self._writing.exception() if self._writing else None
            end = self.plan.num_warmup + self.plan.num_draws
            pending = self._pending
            if jax.process_count() > 1 and pending and pending[-1].here.iteration < end:
                pending = []
            if error is None and pending:
                self._write(pending, pending[-1].here)
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
            arrays |= stored_moments(here.moments)
        self.segments.append(write_segment(self.folder, len(self.segments), arrays, about))


def _arrays(chunks: list[Chunk]) -> dict[str, np.ndarray]:
    """The rows of chunks, by the names they are stored under, and what is learnt at their end."""
    arrays = {}
    for prefix, field in (("draws", 0), ("stats", 1), ("learning", 2)):
        for name in chunks[0].record[field] if chunks else ():
            arrays[f"{prefix}.{name}"] = np.concatenate([c.record[field][name] for c in chunks])
    if chunks and chunks[-1].record.learning:
        for name, array in chunks[-1].learnt.arrays().items():
            arrays[f"learnt.{name}"] = np.asarray(array)
    return arrays

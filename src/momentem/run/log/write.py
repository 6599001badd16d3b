"""The sink that writes a run to its log, segment by segment."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from xarray import DataTree

from momentem.devices._mesh import local_chains
from momentem.devices.agreement import agree
from momentem.files import digest_of, publish
from momentem.run.health import Troubles
from momentem.run.log.folder import FORMAT, MANIFEST, MANIFEST_BYTES, claim, layout, part_of
from momentem.run.log.join import join_troubles, open_parts, stored_trace
from momentem.run.log.read import Run
from momentem.run.log.segment import check_name, write_segment
from momentem.run.log.state import store_moments, store_state
from momentem.run.plan import Chunk, Here, Plan, kept_rows, learning_rows

__all__ = ["RunLog", "create"]

SEGMENT_SECONDS = 10.0  # a killed run loses at most about this much work
SEGMENT_BYTES = 2**24  # bounds the memory that unpublished draws take


def create(
    folder: Path,
    plan: Plan,
    forms: Mapping[str, Any],
    hashes: Mapping[str, str],
    here: Here,
    mesh: Mesh | None,
    about: Mapping[str, Any] | None = None,
) -> "RunLog":
    """Start the log of the chains that this process holds.

    It writes the sampler's first state with a copy of the manifest, and then the manifest.

    Args:
        folder: new or empty.
        plan: of the run.
        forms: shape and dtype of every parameter.
        hashes: of model, data and sampler.
        here: where the run starts.
        mesh: devices that the run is divided over.
        about: what else the manifest should keep, by names of its own.
    """
    for name in (*plan.keep, *plan.streamed):
        check_name(name)
    chains = local_chains(mesh, plan.num_chains)
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
        "most_draws": plan.most_draws,
        "keep": list(plan.keep),
        "streamed": list(plan.streamed),
        "forms": {name: [str(form.dtype), list(form.shape)] for name, form in forms.items()},
        "dims": None if plan.dims is None else {k: list(v) for k, v in plan.dims.items()},
        "coords": None if plan.coords is None else _as_json(plan.coords),
        **hashes,
        **({} if about is None else about),
    }
    text = _text(manifest)
    if len(text) > MANIFEST_BYTES:
        raise ValueError(
            f"the settings of a run must take at most {MANIFEST_BYTES} bytes, got {len(text)}; "
            "shorten coords, or the vocabulary"
        )
    lock = claim(folder)
    try:
        run = Run(folder, manifest, digest_of(text), plan, [], None)
        log = RunLog(run, here, 0.0, lock)
        log.publish()
        publish([text.encode()], folder / MANIFEST)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, OSError):
            raise OSError(
                f"out must be a folder that can be written to, got {folder}: {error}"
            ) from error
        raise
    return log


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1)


def _as_json(coords: Mapping[str, Any]) -> dict[str, list]:
    lists = {str(name): np.asarray(values).tolist() for name, values in coords.items()}
    try:
        json.dumps(lists, allow_nan=False)
    except (TypeError, ValueError):
        raise TypeError(
            f"coords must be finite numbers or strings to be stored with out=, got "
            f"{coords!r:.200}; convert dates, NaN and infinities to strings"
        ) from None
    return lists


class RunLog:
    """The sink that writes a run log.

    Args:
        run: the log on the disk so far. Segments are appended to it.
        here: where the run is.
        seconds: that the run has taken so far.
        lock: from `folder.lock`. Closing the log releases it.
    """

    is_local = is_durable = True

    def __init__(self, run: Run, here: Here, seconds: float, lock: int):
        self.run, self.here, self.num_draws = run, here, run.plan.num_draws
        self._lock = lock
        self._pending: list[Chunk] = []
        self._size = 0
        self._begun, self._published = time.perf_counter() - seconds, time.perf_counter()
        # Ctrl-C is raised in the main thread only, so another thread finishes what it writes
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: Future | None = None
        self._is_reported = False  # whether a failure to write was raised
        self._parts = [run]  # the logs of all processes, as of the last trace

    @property
    def troubles(self) -> Sequence[Troubles]:
        """Troubles of warm-up and troubles of the draws, as of the last trace."""
        return join_troubles(self._parts)

    def extend(self, chunk: Chunk) -> None:
        """Append a chunk, and publish a segment if one is due."""
        kept = kept_rows(self.run.plan, chunk)
        # copies, because views would keep the whole buffers alive
        parameters = {name: np.array(rows) for name, rows in chunk.record.parameters.items()}
        stats = {name: np.array(rows[kept]) for name, rows in chunk.record.stats.items()}
        learning = learning_rows(chunk) if chunk.record.learning else {}
        record = type(chunk.record)(parameters, stats, learning)
        arrays = [*parameters.values(), *stats.values()]
        self._pending.append(chunk._replace(record=record))
        self.here = chunk.here
        self._size += sum(array.nbytes for array in arrays)
        is_due = time.perf_counter() - self._published >= SEGMENT_SECONDS
        if agree(is_due or self._size >= SEGMENT_BYTES):
            self.publish()

    def end_phase(self) -> None:
        """Publish the last state of warm-up."""
        if self._pending:
            self.publish()

    def reserve(self, num_draws: int) -> None:
        """Make room for this many draws per chain. Later segments record the number."""
        self.num_draws = num_draws

    def publish(self) -> None:
        """Publish all chunks since the last segment as one segment."""
        chunks, self._pending, self._size = self._pending, [], 0
        here = chunks[-1].here if chunks else self.here
        self._writing = self._writer.submit(self._write, chunks, here)
        try:
            self._writing.result()
        except OSError:
            self._is_reported = True
            raise
        self._published = time.perf_counter()

    def trace(self) -> DataTree:
        """Publish all chunks so far, and return the trace."""
        self._flush()
        if jax.process_count() > 1:
            agree(0)  # wait until all processes have published their last segments
            self._parts = open_parts(self.run.folder.parent)[0]
        return stored_trace(self._parts, is_cut=False)

    def close(self) -> None:
        """Publish what is left, and release the folder."""
        try:
            self._flush()
        finally:
            self._writer.shutdown()
            os.close(self._lock)

    def _flush(self) -> None:
        """Wait for the writer, and publish what is left. A process that was stopped while others
        run publishes nothing, because the others have no segment that ends there."""
        error = self._writing.exception() if self._writing else None
        if error is not None:
            if not self._is_reported:  # it failed while Ctrl-C was handled
                self._is_reported = True
                raise error
            return
        end = self.run.plan.num_warmup + self.num_draws
        is_everywhere = jax.process_count() == 1 or self.here.iteration >= end
        if self._pending and is_everywhere:
            self.publish()

    def _write(self, chunks: list[Chunk], here: Here) -> None:
        segments = self.run.segments
        arrays, count = _arrays(chunks), sum(chunk.iterations for chunk in chunks)
        rows = len(arrays["stats.diverging"]) if chunks else 0
        troubles = sum((chunk.troubles for chunk in chunks), start=Troubles())
        about: dict[str, Any] = {
            "previous": segments[-1].digest if segments else self.run.digest,
            "is_frozen": here.is_frozen,
            "first": here.iteration - count,
            "iterations": count,
            "rows": rows,
            "num_draws": self.num_draws,
            "seconds": time.perf_counter() - self._begun,
            "troubles": troubles,
        }
        if not segments:
            about["manifest"] = _text(self.run.manifest)
        arrays |= store_state(here.state)
        if here.moments is not None:
            arrays |= store_moments(here.moments)
        segments.append(write_segment(self.run.folder, len(segments), arrays, about))


def _arrays(chunks: list[Chunk]) -> dict[str, np.ndarray]:
    """Return the rows of chunks, and what is learnt by their end, under the names in the log."""
    arrays = {}
    for prefix, field in (("draws", 0), ("stats", 1), ("learning", 2)):
        for name in chunks[0].record[field] if chunks else ():
            arrays[f"{prefix}.{name}"] = np.concatenate([c.record[field][name] for c in chunks])
    if chunks and chunks[-1].record.learning:
        for name, array in chunks[-1].learnt.arrays().items():
            arrays[f"learnt.{name}"] = np.asarray(array)
    return arrays

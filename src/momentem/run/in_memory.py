"""The sink that keeps the draws of a run in the host's memory."""

import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.run.health import Troubles
from momentem.run.plan import Chunk, Here, Plan, kept_rows, learning_rows

if TYPE_CHECKING:
    import xarray

__all__ = ["REMEDY", "Memory"]

REMEDY = (
    "draw to a folder with out=…, keep fewer draws with thin=…, or fewer parameters with keep=…"
)


class Phase:
    """The iterations of one phase, warm-up or draws, in arrays of full length that are filled chunk
    by chunk."""

    def __init__(self, capacity: int, num_chains: int):
        self.capacity, self.num_chains = capacity, num_chains
        self.length = 0
        self._arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "stats": {}}

    def extend(self, record: Any, kept: slice) -> None:
        """Append a record. Only some rows of its statistics are kept."""
        stats = {name: rows[kept] for name, rows in record.stats.items()}
        count = len(stats["diverging"])
        for group, found in (("parameters", record.parameters), ("stats", stats)):
            arrays = self._arrays[group]
            for name, rows in found.items():
                if name not in arrays:  # memory pages are claimed only when they are written
                    shape = (self.num_chains, self.capacity, *rows.shape[2:])
                    arrays[name] = np.empty(shape, rows.dtype)
                arrays[name][:, self.length : self.length + count] = rows.swapaxes(0, 1)
        self.length += count

    def reserve(self, capacity: int) -> None:
        """Make room for this many draws."""
        for arrays in self._arrays.values():
            for name, old in arrays.items():
                new = np.empty((len(old), capacity, *old.shape[2:]), old.dtype)
                new[:, : self.length] = old[:, : self.length]
                arrays[name] = new
        self.capacity = capacity

    def group(self, name: str) -> dict[str, np.ndarray]:
        """Return the filled part of a group's arrays, (chain, draw, …)."""
        return {key: array[:, : self.length] for key, array in self._arrays[name].items()}


def _check_size(plan: Plan, forms: Mapping[str, Any]) -> None:
    """Refuse a trace that is larger than the machine's memory, before anything is drawn."""
    row = sum(math.prod(forms[name].shape) * forms[name].dtype.itemsize for name in plan.keep)
    needed = row * plan.num_chains * (plan.num_warmup // plan.thin + plan.num_draws // plan.thin)
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if all(name in getattr(os, "sysconf_names", ()) for name in names):
        most = math.prod(os.sysconf(name) for name in names)
        if needed > most:
            raise ValueError(
                f"the trace must fit in memory, and {plan.num_draws} draws of {plan.num_chains} "
                f"chains need {needed / 1e9:.1f} GB of {most / 1e9:.1f} GB; {REMEDY}"
            )


class Memory:
    """The sink in memory: both phases of a run, what was learnt, and where the run is."""

    is_local = is_durable = False

    def __init__(self, plan: Plan, forms: Mapping[str, Any], here: Here, begun: float):
        _check_size(plan, forms)
        self.plan, self.here, self.num_draws = plan, here, plan.num_draws
        self.troubles = [Troubles(), Troubles()]
        self._begun, self._seconds = begun, 0.0
        self._learning: list[dict[str, np.ndarray]] = []
        self._learnt: Any = None
        lengths = plan.num_warmup // plan.thin, plan.num_draws // plan.thin
        self._phases = [Phase(length, plan.num_chains) for length in lengths]

    def extend(self, chunk: Chunk) -> None:
        """Append a chunk."""
        phase = int(chunk.here.is_frozen)
        self._phases[phase].extend(chunk.record, kept_rows(self.plan, chunk))
        if chunk.record.learning:
            self._learning.append(learning_rows(chunk))
            self._learnt = chunk.learnt
        self.troubles[phase] = self.troubles[phase] + chunk.troubles
        self.here, self._seconds = chunk.here, time.perf_counter() - self._begun

    def end_phase(self) -> None:
        """No-op: both phases share the same memory."""

    def reserve(self, num_draws: int) -> None:
        """Make room for this many draws per chain, more than were planned."""
        self._phases[1].reserve(num_draws // self.plan.thin)
        self.num_draws = num_draws

    def trace(self) -> "xarray.DataTree":
        """Return the trace so far."""
        from momentem.run.trace import as_datatree, attributes

        plan, here = self.plan, self.here
        if not here.iteration:
            raise KeyboardInterrupt("interrupted before the first draw")
        is_whole = here.iteration >= plan.num_warmup + self.num_draws
        attrs = attributes(plan, here.iteration, self._seconds, is_whole, self.troubles)
        learnt = {} if self._learnt is None else self._learnt.arrays()
        final = {name: np.asarray(array) for name, array in learnt.items()}
        return as_datatree(plan, self._groups(), self._learning, final, here.moments, attrs)

    def close(self) -> None:
        """No-op: memory is freed with the sink."""

    def _groups(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the arrays by group name in ArviZ."""
        groups = {}
        for phase, prefix in ((self._phases[1], ""), (self._phases[0], "warmup_")):
            if phase.length:
                groups[f"{prefix}posterior"] = phase.group("parameters")
                groups[f"{prefix}sample_stats"] = phase.group("stats")
        return groups

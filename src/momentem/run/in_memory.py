"""What a run has drawn so far, in the host's memory."""

from typing import Any

import numpy as np

from momentem.run.health import Troubles
from momentem.run.loop import Chunk, Here, Plan

__all__ = ["History", "as_rows", "thinned"]


def thinned(plan: Plan, chunk: Chunk) -> slice:
    """The rows of a chunk that are kept: the last of every `thin` iterations of its phase."""
    done = chunk.first - (plan.num_warmup if chunk.here.is_frozen else 0)
    return slice(plan.thin - 1 - done % plan.thin, chunk.iterations, plan.thin)


def as_rows(chunk: Chunk) -> dict[str, np.ndarray]:
    """What EM did in a chunk, a row per M-step."""
    rows = dict(chunk.record.learning)
    is_m_step = rows.pop("is_m_step")
    rows["iteration"] = np.arange(chunk.first, chunk.first + chunk.iterations)
    return {name: values[is_m_step] for name, values in rows.items()}


class Phase:
    """The draws of warm-up, or those after it: arrays of the full length, filled chunk by chunk."""

    def __init__(self, capacity: int, num_chains: int):
        self.capacity, self.num_chains = capacity, num_chains
        self.length = 0
        self._arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "stats": {}}

    def extend(self, record: Any, kept: slice) -> None:
        """Appends rows of a record."""
        count = len(range(*kept.indices(len(record.stats["diverging"]))))
        for group, arrays in self._arrays.items():
            for name, rows in getattr(record, group).items():
                if name not in arrays:  # the pages are claimed as they are written
                    shape = (self.num_chains, self.capacity, *rows.shape[2:])
                    arrays[name] = np.empty(shape, rows.dtype)
                arrays[name][:, self.length : self.length + count] = rows[kept].swapaxes(0, 1)
        self.length += count

    def reserve(self, capacity: int) -> None:
        """Makes room for so many draws."""
        self.capacity = capacity
        for arrays in self._arrays.values():
            for name, old in arrays.items():
                arrays[name] = np.empty((len(old), capacity, *old.shape[2:]), old.dtype)
                arrays[name][:, : self.length] = old[:, : self.length]

    def group(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a group, (chain, draw, …), as far as they are filled."""
        return {key: array[:, : self.length] for key, array in self._arrays[name].items()}


class History:
    """Both phases of a run, what was learnt in them, and where the run is."""

    is_local = False

    def __init__(self, plan: Plan, here: Here):
        self.plan, self.here = plan, here
        self.learning: list[dict[str, np.ndarray]] = []
        self.learnt: Any = None
        lengths = plan.num_warmup // plan.thin, plan.num_draws // plan.thin
        self._phases = [Phase(length, plan.num_chains) for length in lengths]
        self.troubles = [Troubles(), Troubles()]  # of warm-up, and of the draws

    def extend(self, chunk: Chunk) -> None:
        """Appends a chunk."""
        phase = int(chunk.here.is_frozen)
        self._phases[phase].extend(chunk.record, thinned(self.plan, chunk))
        if chunk.record.learning:
            self.learning.append(as_rows(chunk))
            self.learnt = chunk.learnt
        self.troubles[phase] = self.troubles[phase] + chunk.troubles
        self.here = chunk.here

    def reserve(self, num_draws: int) -> None:
        """Makes room for so many draws per chain, more than were planned."""
        self._phases[1].reserve(num_draws // self.plan.thin)

    def end_phase(self) -> None:
        """Nothing to do: memory is one."""

    def groups(self) -> dict[str, dict[str, np.ndarray]]:
        """By their names in ArviZ."""
        groups = {}
        for phase, prefix in ((self._phases[1], ""), (self._phases[0], "warmup_")):
            if phase.length:
                groups[f"{prefix}posterior"] = phase.group("parameters")
                groups[f"{prefix}sample_stats"] = phase.group("stats")
        return groups

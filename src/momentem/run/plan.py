"""What a run is asked for, where it is, what it produces, and where that goes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from momentem.run.batch_means import Streamed
from momentem.run.health import Troubles

if TYPE_CHECKING:
    import xarray

__all__ = ["Chunk", "Here", "Plan", "Record", "Sink", "kept_rows", "learning_rows", "num_unkept"]


class Plan(NamedTuple):
    """What was asked for."""

    num_draws: int
    num_warmup: int
    num_chains: int
    seed: int
    thin: int
    keep: tuple[str, ...]  # parameters whose draws are kept
    streamed: tuple[str, ...]  # parameters whose moments are kept instead
    dims: Mapping[str, Sequence[str]] | None
    coords: Mapping[str, Any] | None
    most_draws: int  # up to which draws are doubled until R-hat and ESS are good


class Record(NamedTuple):
    """What is kept of an iteration, or, with a leading axis, of many."""

    parameters: dict[str, Any]  # by the user's names, chains first; of iterations that are kept
    stats: dict[str, Any]
    learning: dict[str, Any]


class Here(NamedTuple):
    """Where a run is between two chunks: all that it needs to go on."""

    iteration: int  # how many are done, warm-up included
    is_frozen: bool
    state: Any  # of the sampler
    moments: Streamed | None  # of draws; none in warm-up


class Chunk(NamedTuple):
    """A piece of a run: some iterations from `first` on, and what they came to."""

    first: int
    iterations: int
    record: Record  # a row per iteration; of parameters, a row per iteration that is kept
    learnt: Any
    here: Here
    troubles: Troubles


@runtime_checkable
class Sink(Protocol):
    """Where the chunks of a run go: memory, or a log on disk."""

    is_local: bool  # whether it takes the chains that this process holds, or all

    @property
    def num_draws(self) -> int:
        """Draws per chain that it has room for: the plan's, or more."""
        ...

    @property
    def here(self) -> Here:
        """Where the run is."""
        ...

    @property
    def troubles(self) -> Sequence[Troubles]:
        """Those of warm-up, and of the draws."""
        ...

    def extend(self, chunk: Chunk) -> None:
        """Append a chunk."""
        ...

    def end_phase(self) -> None:
        """Note that warm-up is over: its last state is what the sampler is frozen at."""
        ...

    def reserve(self, num_draws: int) -> None:
        """Make room for this many draws per chain, more than there was room for."""
        ...

    def trace(self) -> "xarray.DataTree":
        """Return what has come so far."""
        ...

    def close(self) -> None:
        """Keep what has come, and let go of what is held."""
        ...


def num_unkept(plan: Plan, first: int, is_frozen: bool) -> int:
    """Return the number of iterations before iteration `first` since the last that was kept."""
    return (first - (plan.num_warmup if is_frozen else 0)) % plan.thin


def kept_rows(plan: Plan, chunk: Chunk) -> slice:
    """Return the iterations of a chunk that are kept: the last of every `thin` iterations of its
    phase. `chunk.record.parameters` has rows for these alone."""
    before = num_unkept(plan, chunk.first, chunk.here.is_frozen)
    return slice(plan.thin - 1 - before, chunk.iterations, plan.thin)


def learning_rows(chunk: Chunk) -> dict[str, np.ndarray]:
    """Return what EM did in a chunk, a row per M-step."""
    rows = dict(chunk.record.learning)
    is_m_step = rows.pop("is_m_step")
    rows["iteration"] = np.arange(chunk.first, chunk.first + chunk.iterations)
    return {name: values[is_m_step] for name, values in rows.items()}

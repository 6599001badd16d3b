"""The parts of a run: its plan, its place, its chunks of draws, and the sink that takes them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from momentem.run.batch_means import Streamed
from momentem.run.health import Troubles

if TYPE_CHECKING:
    import xarray

__all__ = ["Chunk", "Here", "Plan", "Record", "Sink", "kept_rows", "learning_rows", "num_unkept"]


class Plan(NamedTuple):
    """The settings of a run."""

    num_draws: int
    num_warmup: int
    num_chains: int
    seed: int
    thin: int
    keep: tuple[str, ...]  # parameters whose draws are kept
    streamed: tuple[str, ...]  # parameters whose moments are kept instead
    dims: Mapping[str, Sequence[str]] | None
    coords: Mapping[str, Any] | None
    most_draws: int  # draws are doubled up to this number, until R-hat and ESS are good


class Record(NamedTuple):
    """Record of one iteration or, with a leading axis, of many iterations."""

    parameters: dict[str, Any]  # by the user's names, chains first; of iterations that are kept
    stats: dict[str, Any]
    learning: dict[str, Any]


class Here(NamedTuple):
    """The place of a run between two chunks: all that it needs to continue."""

    iteration: int  # number of iterations done, warm-up included
    is_frozen: bool
    state: Any  # of the sampler
    moments: Streamed | None  # of the draws; None in warm-up


class Chunk(NamedTuple):
    """A piece of a run: its iterations, beginning with `first`, and their results."""

    first: int
    iterations: int
    record: Record  # a row per iteration; of parameters, a row per iteration that is kept
    learnt: Any
    here: Here
    troubles: Troubles


@runtime_checkable
class Sink(Protocol):
    """The destination of a run's chunks: memory, or a log on disk."""

    is_local: bool  # True: it takes the chains that this process holds; False: all chains
    is_durable: bool  # True: what it has taken outlives an error

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
        """Troubles of warm-up, and troubles of the draws."""
        ...

    def extend(self, chunk: Chunk) -> None:
        """Append a chunk."""
        ...

    def end_phase(self) -> None:
        """Note that warm-up is over. The sampler is frozen at its last state."""
        ...

    def reserve(self, num_draws: int) -> None:
        """Make room for this many draws per chain, more than before."""
        ...

    def trace(self) -> "xarray.DataTree":
        """Return the trace so far."""
        ...

    def close(self) -> None:
        """Keep all chunks, and release files and locks."""
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
    """Return what EM did in a chunk, with one row per M-step."""
    rows = dict(chunk.record.learning)
    is_m_step = rows.pop("is_m_step")
    rows["iteration"] = np.arange(chunk.first, chunk.first + chunk.iterations)
    return {name: values[is_m_step] for name, values in rows.items()}

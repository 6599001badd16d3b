"""A sink that measures the perplexity of samples as they come, and hands everything on."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.run.health import Troubles
from momentem.run.plan import Chunk, Here, Sink
from momentem.topics.evaluation import Perplexity

if TYPE_CHECKING:
    import xarray

__all__ = ["Measured", "Measures"]


class Measures:
    """Perplexities of samples in their order, and when they came.

    Args:
        measure: of perplexity; None measures nothing.
        watch: called with iteration, single and average perplexity after every sample.
        first: iterations before the first draw.
        thin: iterations from one sample to the next.
    """

    def __init__(
        self,
        measure: Perplexity | None,
        watch: Callable[[int, float, float], None] | None,
        first: int,
        thin: int,
    ):
        self.measure, self.watch, self.first, self.thin = measure, watch, first, thin
        self.found: dict[str, list[float]] = {"seconds": [], "single": [], "average": []}

    def __len__(self) -> int:
        return len(self.found["single"])

    def add(self, topics: Any, weights: Any, seconds: Any, is_watched: bool = True) -> None:
        """Measure samples that came after those before.

        Args:
            topics: phi, (sample, V, K).
            weights: r, (sample, K).
            seconds: of the run so far, for each.
            is_watched: whether to report them.
        """
        for phi, r, when in zip(topics, weights, seconds, strict=True):
            single = average = np.nan
            if self.measure is not None:
                single, average = self.measure.add(phi, r)
            for name, value in zip(self.found, (float(when), single, average), strict=True):
                self.found[name].append(value)
            if is_watched and self.watch is not None:
                self.watch(self.first + self.thin * len(self), single, average)


class Measured:
    """A sink whose samples are measured when they are safe.

    Args:
        sink: where everything goes.
        measures: what is found is added to.
        seconds: that the run has taken so far.
    """

    def __init__(self, sink: Sink, measures: Measures, seconds: float):
        self._sink, self._measures = sink, measures
        self.is_local, self.is_durable = sink.is_local, sink.is_durable
        self.seconds, self._since = seconds, time.perf_counter()
        self._paces: tuple[list[float], list[float]] = ([], [])  # of warm-up and of draws

    @property
    def num_draws(self) -> int:
        """Return the number of draws that there is room for."""
        return self._sink.num_draws

    @property
    def here(self) -> Here:
        """Return where the run is."""
        return self._sink.here

    @property
    def troubles(self) -> Sequence[Troubles]:
        """Return those of warm-up, and of the draws."""
        return self._sink.troubles

    @property
    def seconds_per_iteration(self) -> float:
        """Return the median over chunks, but for the first of each phase, which compiles."""
        timed = [pace for paces in self._paces for pace in paces[1:]]
        return float(np.median(timed)) if timed else np.nan

    def extend(self, chunk: Chunk) -> None:
        """Hand a chunk on, and measure its samples."""
        self._sink.extend(chunk)
        spent = time.perf_counter() - self._since
        self.seconds += spent
        self._paces[chunk.here.is_frozen].append(spent / chunk.iterations)
        if chunk.here.is_frozen:
            topics, weights = (
                chunk.record.parameters[name][:, 0] for name in ("topics", "weights")
            )
            self._measures.add(topics, weights, np.full(len(topics), self.seconds))
        self._since = time.perf_counter()

    def end_phase(self) -> None:
        """Hand on that warm-up is over."""
        self._sink.end_phase()

    def reserve(self, num_draws: int) -> None:
        """Make room for more draws."""
        self._sink.reserve(num_draws)

    def trace(self) -> "xarray.DataTree":
        """Return what has come so far."""
        return self._sink.trace()

    def close(self) -> None:
        """Close the sink that everything went to."""
        self._sink.close()

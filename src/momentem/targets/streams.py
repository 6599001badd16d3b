"""Data larger than memory: one window of rows is on the device while the next one is read.

    N rows on disk  -- blocks, in random order -->  window of W rows  -- minibatches -->  gradients

Minibatches are drawn from the window. It is held for `hold` iterations and then replaced as a
whole. Window w of a stream always has the same rows in the same order, and it serves the iterations
from w hold to (w + 1) hold - 1. The iteration therefore determines the rows, and a resumed run uses
the same rows as an uninterrupted one. (docs/streams.md has the effect on the gradient noise.)
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial, register_pytree_node_class
from jaxtyping import Array, Int

from momentem.checks import check_count, check_instance, check_numbers
from momentem.pytrees import Static, find_node, replace_node
from momentem.targets._minibatch import Scheme, draw_starts, read_block
from momentem.targets.sources import Block, Source
from momentem.types import PRNGKey
from momentem.xla.host_memory import empty_rows, on_device

__all__ = [
    "ReadAhead",
    "Stream",
    "Window",
    "check_whole",
    "close_window",
    "in_window",
    "is_stream",
    "set_clock",
    "stream",
    "turn_window",
]


class Piece(NamedTuple):
    """Rows `begin` to `end` of a block."""

    block: Block
    begin: int
    end: int


class Cursor:
    """Position in the sequence of the rows of all epochs."""

    def __init__(self, source: Source, row: int) -> None:
        epoch, skipped = divmod(row, source.num_rows)
        self.row = row - skipped
        self._blocks, self._piece = _blocks(source, epoch), Piece(Block(0, 0, tuple), 0, 0)
        for _ in self.take(skipped):
            pass

    def take(self, number: int) -> Iterator[Piece]:
        """Yield the pieces that make up the next `number` rows. Nothing is read."""
        while number:
            block, begin, end = self._piece
            if begin == end:
                block = next(self._blocks)
                begin, end = 0, block.num_rows
            rows = min(number, end - begin)
            self._piece = Piece(block, begin + rows, end)
            self.row, number = self.row + rows, number - rows
            yield Piece(block, begin, begin + rows)


def _blocks(source: Source, epoch: int) -> Iterator[Block]:
    while True:
        yield from source.blocks(epoch)
        epoch += 1


class ReadAhead:
    """Windows that a thread reads, one ahead of the one in use. A subclass says how to `read`.

    Attributes:
        stalled: seconds that were spent waiting for a window so far.
    """

    def __init__(self) -> None:
        self.stalled = 0.0
        self._reader: ThreadPoolExecutor | None = None
        self._now: tuple[int, Any] | None = None  # number and rows of the window in use
        self._next: tuple[int, Future] | None = None

    def read(self, index: int) -> Any:
        """Return the rows of window `index`, on the host."""
        raise NotImplementedError

    def rows(self, index: int) -> Any:
        """Return the rows of window `index`, and start to read the next window."""
        if self._now is None or self._now[0] != index:
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, "momentem-stream")
            if self._next is None or self._next[0] != index:
                self._next = index, self._reader.submit(self.read, index)
            begun = time.perf_counter()
            rows = self._next[1].result()
            self.stalled += time.perf_counter() - begun
            self._now = index, on_device(rows)
            self._next = index + 1, self._reader.submit(self.read, index + 1)
        return self._now[1]

    def close(self) -> None:
        """End the thread and let go of the windows. Asking for rows starts it again."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        self._reader = self._now = self._next = None


class Stream(ReadAhead):
    """Consecutive windows of a source. Make it with `momentem.stream`.

    Attributes:
        num_rows: rows of the source.
        window_rows: rows of a window.
        stalled: seconds that samplers have waited for windows so far.
    """

    def __init__(self, source: Source, window_rows: int, hold: int | None, seed: int) -> None:
        super().__init__()
        self.num_rows, self.window_rows = source.num_rows, window_rows
        self.source, self._hold, self._seed = source, hold, seed
        self._cursor = Cursor(source, 0)

    def open(self, batch_size: int) -> "Window":
        """Return the first window, for minibatches of `batch_size` rows."""
        hold = max(1, self.window_rows // (40 * batch_size)) if self._hold is None else self._hold
        return Window(self.rows(0), self, hold)

    def read(self, index: int) -> Any:
        """Return the rows of window `index`, on the host."""
        size = self.window_rows
        if self._cursor.row != index * size:
            self._cursor = Cursor(self.source, index * size)
        places = np.random.default_rng((self._seed, index)).permutation(size)
        window, filled = None, 0
        for piece in self._cursor.take(size):
            rows, number = _read_piece(piece), piece.end - piece.begin
            if window is None:
                window = jax.tree.map(lambda leaf: empty_rows(size, leaf), rows)
            jax.tree.map(partial(_put, places[filled : filled + number]), window, rows)
            filled += number
        return window


def _put(places: np.ndarray, window: np.ndarray, rows: np.ndarray) -> None:
    if rows.shape[1:] != window.shape[1:] or rows.dtype != window.dtype:
        raise ValueError(
            "all blocks must have rows of one dtype and shape, got "
            f"{rows.dtype}{rows.shape[1:]} after {window.dtype}{window.shape[1:]}"
        )
    window[places] = rows


def _read_piece(piece: Piece) -> Any:
    """Read and check the rows of a piece. Errors name the leaf and the row."""
    rows = jax.tree.map(lambda leaf: leaf[piece.begin : piece.end], piece.block.read())
    for path, leaf in jax.tree_util.tree_flatten_with_path(rows)[0]:
        name = f"data{jax.tree_util.keystr(path)}"
        check_numbers(name, leaf, first=piece.block.first + piece.begin)
    return rows


@register_pytree_node_class
class Window:
    """The rows in use, their stream, and the iteration. It is a pytree node of its own class, so
    that it can be found and replaced in any sampler or target.

    Args:
        rows: any tree of arrays.
        stream: its method `rows(index)` returns the rows of window `index`, which serves the
            iterations from index hold to (index + 1) hold - 1.
        hold: iterations for which a window is used.
        time: iterations since this window came into use.
    """

    def __init__(self, rows: Any, stream: Any, hold: int, time: Any = 0) -> None:
        self.rows, self.stream, self.hold, self.time = rows, stream, hold, time

    def left(self, iteration: int) -> int:
        """Return how many iterations, starting with `iteration`, its window still serves."""
        return self.hold - iteration % self.hold

    def at(self, iteration: Any) -> "Window":
        """Return a window with the same rows at another iteration that they serve."""
        return Window(self.rows, self.stream, self.hold, iteration % self.hold)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, int]]:
        """Flatten, for JAX."""
        return (self.rows, self.time), (self.stream, self.hold)

    @classmethod
    def tree_unflatten(cls, source: tuple[Any, int], leaves: tuple[Any, Any]) -> "Window":
        """Unflatten, for JAX."""
        rows, time = leaves
        return cls(rows, *source, time)


def stream(
    source: Source, window_rows: int = 2**20, hold: int | None = None, seed: int = 0
) -> Stream:
    """Return data for `dataset(…, data=stream(…), batch_size=…)` that do not fit in memory.

    A thread reads them from `source` in windows while the sampler runs.

    Args:
        source: one of `momentem.sources`.
        window_rows: rows of a window. Two windows are in memory: the one in use and the next.
        hold: iterations for which a window is used. Default: W / (40 batch size) for a window of W
            rows. With 10 gradients per iteration, a chain then uses a quarter as many rows as the
            window has.
        seed: of the order of rows in a window.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, momentem as mt
        >>> x = np.random.default_rng(0).normal(1.0, 1.0, 10_000)
        >>> target = mt.dataset(
        ...     log_prior=lambda mu: -0.5 * mu**2,
        ...     log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        ...     data=mt.stream(mt.sources.from_arrays(x), window_rows=2000),
        ...     initial=0.0,
        ...     batch_size=20,
        ... )
        >>> trace = mt.sample(target, num_warmup=100, num_draws=100)
    """
    check_instance(Source, "build it with momentem.sources", source=source)
    check_count(2, window_rows=window_rows)
    check_count(0, seed=seed)
    if hold is not None:
        check_count(1, hold=hold)
    if window_rows > source.num_rows:
        raise ValueError(
            f"window_rows must be at most the {source.num_rows} rows of the source, got "
            f"{window_rows}; data that fit in memory need no stream"
        )
    return Stream(source, window_rows, hold, seed)


def in_window(window: Window) -> Scheme:
    """Return the scheme whose halves are consecutive rows of the window. The window's rows are in
    random order, so all rows of the source are equally likely."""
    draw = Partial(_draw_in_window, Static(window.stream.window_rows))
    return Scheme(lambda rows, half: rows, draw, _read_in_window)


def _draw_in_window(
    window_rows: Static, key: PRNGKey, shape: tuple[int, ...], num_rows: int, half: int
) -> Int[Array, "..."]:
    del num_rows
    return draw_starts(key, shape, window_rows.value - half + 1, half)


def _read_in_window(window: Window, start: Array, half: int) -> Any:
    return read_block(window.rows, start, half)


def is_stream(target: Any) -> bool:
    """Return whether a target has only a window of its data in memory."""
    return find_node(Window, target) is not None


def check_whole(target: Any) -> None:
    """Refuse a target that has only a window of its data in memory."""
    if is_stream(target):
        raise ValueError(
            "target must have all its data in memory for this, got a stream; find a reference "
            "from a part of the data"
        )


def turn_window(tree: Any, window: Window | None, iteration: int) -> Any:
    """Return the sampler or target with its window's rows replaced by those of `iteration`."""
    if window is None:
        return tree
    rows = window.stream.rows(iteration // window.hold)
    return replace_node(tree, Window(rows, window.stream, window.hold))


def close_window(target: Any) -> None:
    """End the thread that reads a target's windows, if it has any, and let go of their rows."""
    window = find_node(Window, target)
    if window is not None:
        window.stream.close()


def set_clock(tree: Any, iteration: Any) -> Any:
    """Return the sampler with its window, if it has one, set to the iteration."""
    window = find_node(Window, tree)
    return tree if window is None else replace_node(tree, window.at(iteration))

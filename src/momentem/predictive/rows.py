"""Rows of data in pieces of one size, from arrays, streams and sources."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from momentem.targets._dataset import as_rows
from momentem.targets.sources import Source
from momentem.targets.streams import Stream, Window

__all__ = ["Piece", "count_rows", "open_rows", "pieces"]


class Piece(NamedTuple):
    """Rows, padded to the size of all pieces."""

    first: int
    number: int  # without those that pad
    rows: Any


def open_rows(data: Any) -> Any:
    """Return data as checked host arrays, or as the source that they are read from."""
    if isinstance(data, Window):
        data = data.stream
    if isinstance(data, Stream):
        return data.source
    return data if isinstance(data, Source) else as_rows(data)


def count_rows(data: Any) -> int:
    """Return the number of rows."""
    return data.num_rows if isinstance(data, Source) else len(jax.tree.leaves(data)[0])


def pieces(data: Any, size: int) -> Iterator[Piece]:
    """Yield all rows once, `size` at a time. Those of a source come in the order of its epoch 0."""
    size = min(size, count_rows(data))
    if not isinstance(data, Source):
        yield from _cut(data, 0, size)
        return
    for block in data.blocks(0):
        yield from _cut(block.read(), block.first, size)


def _cut(rows: Any, first: int, size: int) -> Iterator[Piece]:
    total = len(jax.tree.leaves(rows)[0])
    for begin in range(0, total, size):
        count = min(size, total - begin)
        places = np.minimum(np.arange(begin, begin + size), begin + count - 1)
        yield Piece(first + begin, count, jax.tree.map(lambda leaf, at=places: leaf[at], rows))

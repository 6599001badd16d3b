"""Sources of rows that do not fit in memory. Rows come in blocks, which are read on demand.

In every epoch a source gives each of its rows once. The order of its blocks changes from epoch to
epoch where the storage allows it. Only `Block.read` reads rows, so skipping a block is free.
"""

import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from momentem.checks import check_callable, check_count

__all__ = ["Block", "Source", "from_arrays", "from_blocks", "from_parquet"]

PAGE_BYTES = 2**18  # read from a disk at once
LEAST_PAGES = 1000  # of a source, so that a window mixes rows from many places


class Block(NamedTuple):
    """Consecutive rows of a source."""

    first: int  # index of its first row
    num_rows: int
    read: Callable[[], Any]  # -> rows, as a pytree of arrays


class Source(NamedTuple):
    """Rows that are read in blocks."""

    num_rows: int
    blocks: Callable[[int], Iterator[Block]]  # epoch -> all rows, each once


def from_arrays(arrays: Any, page_rows: int | None = None, seed: int = 0) -> Source:
    """Return a source of rows from arrays that are read in slices: `numpy.memmap`, Zarr, HDF5.

    Args:
        arrays: an array, or a pytree of arrays, with one shared leading axis and one datum per row.
        page_rows: consecutive rows to read at once. Default: the smaller of 256 kB and a thousandth
            of all rows. Fewer are better where neighbouring rows are similar: see docs/streams.md.
        seed: of the order of pages.

    Examples:
        >>> import numpy as np, momentem as mt
        >>> source = mt.sources.from_arrays({"x": np.zeros((1000, 3)), "y": np.ones(1000)})
        >>> source.num_rows
        1000
    """
    leaves = jax.tree_util.tree_flatten_with_path(arrays)[0]
    if not leaves:
        raise ValueError(f"arrays must hold at least one array, got {arrays!r}")
    for path, leaf in leaves:
        if not getattr(leaf, "shape", ()) or not hasattr(leaf, "dtype"):
            name = f"arrays{jax.tree_util.keystr(path)}"
            raise TypeError(f"{name} must be an array with a row per datum, got {leaf!r:.80}")
    counts = {leaf.shape[0] for _, leaf in leaves}
    if len(counts) > 1 or 0 in counts:
        raise ValueError(f"arrays must share one leading axis of rows, got {sorted(counts)}")
    (num_rows,) = counts
    if page_rows is None:
        row_bytes = sum(leaf.nbytes for _, leaf in leaves) // num_rows
        page_rows = max(1, min(PAGE_BYTES // max(1, row_bytes), num_rows // LEAST_PAGES))
    check_count(1, page_rows=page_rows)
    check_count(0, seed=seed)
    return Source(num_rows, partial(_pages, arrays, num_rows, page_rows, seed))


def _pages(arrays: Any, num_rows: int, page_rows: int, seed: int, epoch: int) -> Iterator[Block]:
    starts = np.arange(0, num_rows, page_rows)
    for first in np.random.default_rng((seed, epoch)).permutation(starts):
        end = min(int(first) + page_rows, num_rows)
        yield Block(int(first), end - int(first), partial(_slice, arrays, int(first), end))


def _slice(arrays: Any, first: int, end: int) -> Any:
    return jax.tree.map(lambda leaf: _rows(leaf, first, end), arrays)


def _rows(leaf: Any, first: int, end: int) -> np.ndarray:
    """Return a slice. A mapped file is read at once, because a page fault per 4 kB is slower."""
    is_whole_file = isinstance(leaf, np.memmap) and isinstance(leaf.base, mmap.mmap)
    if not is_whole_file or leaf.filename is None or not leaf.flags.c_contiguous:
        return np.asarray(leaf[first:end])
    count = math.prod(leaf.shape[1:])
    offset = leaf.offset + first * count * leaf.itemsize
    flat = np.fromfile(leaf.filename, leaf.dtype, (end - first) * count, offset=offset)
    return flat.reshape(end - first, *leaf.shape[1:])


def from_parquet(
    path: str | Path | Sequence[str | Path], columns: Sequence[str], seed: int = 0
) -> Source:
    """Return a source of rows from Parquet files, as {column: array}.

    It reads one row group at a time. It needs pyarrow, which the extra `storage` installs.

    Args:
        path: a file, a folder of `*.parquet` files, or a list of files.
        columns: names of the columns to read. They hold numbers, or lists of numbers that all have
            the same length.
        seed: of the order of row groups.

    Examples:
        >>> import tempfile, momentem as mt, pyarrow, pyarrow.parquet
        >>> folder = tempfile.TemporaryDirectory()
        >>> table = pyarrow.table({"x": [0.5, 1.5, 2.5], "y": [0, 1, 1]})
        >>> pyarrow.parquet.write_table(table, f"{folder.name}/0.parquet")
        >>> mt.sources.from_parquet(folder.name, columns=["x", "y"]).num_rows
        3
        >>> folder.cleanup()
    """
    import pyarrow.parquet as pq

    files = _files(path)
    check_count(0, seed=seed)
    groups: list[tuple[Path, int, int, int]] = []
    num_rows = 0
    for file in files:
        metadata = pq.read_metadata(file)
        if missing := [name for name in columns if name not in pq.read_schema(file).names]:
            raise ValueError(
                f"columns must be columns of {file.name}, got {missing[0]!r}, which it does not "
                "have"
            )
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            groups.append((file, group, num_rows, rows))
            num_rows += rows
    if not num_rows:
        raise ValueError(f"path must hold rows, got none in {len(files)} files")
    return Source(num_rows, partial(_row_groups, groups, list(columns), seed))


def _files(path: Any) -> list[Path]:
    if isinstance(path, str | Path):
        found = Path(path)
        paths = sorted(found.glob("*.parquet")) if found.is_dir() else [found]
    else:
        paths = [Path(one) for one in path]
    if missing := [one for one in paths if not one.is_file()]:
        raise FileNotFoundError(f"path must name files, got {missing[0]}")
    if not paths:
        raise FileNotFoundError(f"path must hold *.parquet files, got none in {path}")
    return paths


def _row_groups(groups: list[Any], columns: list[str], seed: int, epoch: int) -> Iterator[Block]:
    for i in np.random.default_rng((seed, epoch)).permutation(len(groups)):
        file, group, first, rows = groups[i]
        yield Block(first, rows, partial(_read_group, file, group, columns))


def _read_group(file: Path, group: int, columns: list[str]) -> dict[str, np.ndarray]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file).read_row_group(group, columns=columns)
    return {name: _column(table.column(name).combine_chunks()) for name in columns}


def _column(column: Any) -> np.ndarray:
    if not hasattr(column, "flatten") or column.type.num_fields == 0:
        return column.to_numpy(zero_copy_only=False)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1)


def from_blocks(blocks: Callable[[int], Iterable[Any]], num_rows: int) -> Source:
    """Return a source of rows from any iterable of blocks, in their given order.

    Args:
        blocks: maps an epoch to an iterable of pytrees of arrays, which have `num_rows` rows in
            total. The order is not changed: shuffle it by the epoch if you can.
        num_rows: rows of an epoch.

    Examples:
        >>> import numpy as np, momentem as mt
        >>> def blocks(epoch):
        ...     for i in np.random.default_rng(epoch).permutation(10):
        ...         yield np.full(100, float(i))
        >>> source = mt.sources.from_blocks(blocks, num_rows=1000)
        >>> sum(block.num_rows for block in source.blocks(0))
        1000
    """
    check_callable(blocks=blocks)
    check_count(1, num_rows=num_rows)
    return Source(num_rows, partial(_as_blocks, blocks, num_rows))


def _as_blocks(blocks: Callable, num_rows: int, epoch: int) -> Iterator[Block]:
    first = 0
    for rows in blocks(epoch):
        length = len(jax.tree.leaves(rows)[0])
        yield Block(first, length, partial(_as_arrays, rows))
        first += length
    if first != num_rows:
        raise ValueError(f"blocks must give num_rows = {num_rows} rows in an epoch, gave {first}")


def _as_arrays(rows: Any) -> Any:
    return jax.tree.map(np.asarray, rows)

"""Arrays that stay on the disk until they are used."""

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from momentem.run.log.segment import Segment

__all__ = ["StoredArray", "join_chains"]


class StoredArray(BackendArray):
    """The draws of one name over many segments, (chain, draw, …), read segment by segment."""

    def __init__(self, name: str, segments: list[Segment]):
        self._name = name
        self._pieces = [(segment, segment.forms[name][1][0]) for segment in segments]
        dtype, (_, *rest) = segments[0].forms[name]
        num_chains, *rest = rest
        self.shape = (num_chains, sum(rows for _, rows in self._pieces), *rest)
        self.dtype = np.dtype(dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray:
        chains, draws, *rest = key
        is_slice = isinstance(draws, slice)
        wanted = range(self.shape[1])[draws if is_slice else slice(draws, draws + 1)]
        upwards = wanted if wanted.step > 0 else wanted[::-1]
        others = (chains, slice(None), *rest)
        pieces = [np.empty((self.shape[0], 0, *self.shape[2:]), self.dtype)[others]]
        begin = 0
        for segment, rows in self._pieces:
            # number of wanted draws in the segments before this one
            passed = -(-max(0, begin - upwards.start) // upwards.step)
            first = upwards.start + passed * upwards.step - begin
            last = min(upwards.stop - begin, rows)
            if first < last:
                some = range(first, last, upwards.step)
                array = segment.read_rows(self._name, some).swapaxes(0, 1)
                pieces.append(np.array(array[others]))  # a view would keep the whole array alive
            begin += rows
        axis = 1 if isinstance(chains, slice) else 0
        found = np.concatenate(pieces, axis)
        found = found if wanted.step > 0 else np.flip(found, axis)
        return found if is_slice else found.take(0, axis)


class _SideBySide(StoredArray):
    """The chains of several processes, (chain, draw, …), read log by log."""

    def __init__(self, parts: list[StoredArray]):
        self._parts, self.dtype = parts, parts[0].dtype
        self.shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray:
        chains, *rest = key
        found = [part._read((slice(None), *rest)) for part in self._parts]
        return np.concatenate(found)[chains]


def join_chains(parts: list[StoredArray]) -> StoredArray:
    """Return one array with the chains of all parts."""
    return parts[0] if len(parts) == 1 else _SideBySide(parts)

"""Arrays that stay on the disk until they are asked for."""

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from momentem.run.segments import Segment

__all__ = ["StoredArray"]


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
        wanted = range(self.shape[1])[draws]
        if isinstance(wanted, int):
            return self._read((chains, slice(wanted, wanted + 1), *rest)).take(
                0, axis=0 if isinstance(chains, int | np.integer) else 1
            )
        if wanted.step < 0:
            upwards = wanted[::-1]
            key = (chains, slice(upwards.start, upwards.stop, upwards.step), *rest)
            axis = 0 if isinstance(chains, int | np.integer) else 1
            return np.flip(self._read(key), axis)
        pieces, begin = [], 0
        for segment, rows in self._pieces:
            skipped = -(-max(0, begin - wanted.start) // wanted.step)  # rows before this segment
            first = wanted.start + skipped * wanted.step - begin
            last = min(wanted.stop - begin, rows)
            if first < last:
                array = segment.read(self._name)[first : last : wanted.step]
                pieces.append(array.swapaxes(0, 1)[(chains, slice(None), *rest)])
            begin += rows
        if not pieces:
            empty = np.empty((self.shape[0], 0, *self.shape[2:]), self.dtype)
            return empty[(chains, slice(None), *rest)]
        axis = 0 if isinstance(chains, int | np.integer) else 1
        return np.concatenate(pieces, axis)

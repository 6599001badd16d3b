"""Rows of one array in a safetensors file, without the rest of the array.

safetensors parses the header of a file whenever it is opened, which takes longer than to read a
small array. Here a header is parsed once. The file was checked before by `segment.inspect`.
"""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_rows"]

HEADER_BYTES = 10**8  # as safetensors has it
FAR_BYTES = 2**16  # from one row to the next that is wanted; to read on is faster below


def read_rows(
    path: Path, name: str, form: np.dtype, shape: tuple[int, ...], rows: range
) -> np.ndarray:
    """Return rows of an array. Those that are far apart are read one by one.

    Args:
        path: of the file.
        name: of the array.
        form: dtype of the array.
        shape: of one row.
        rows: at least one, upwards.
    """
    width = form.itemsize * math.prod(shape)
    is_far = rows.step * width > FAR_BYTES
    spans = [range(row, row + 1) for row in rows] if is_far else [rows]
    begin = _begins(path)[name]
    with open(path, "rb", buffering=0) as file:
        found = [_read_span(file, begin + span[0] * width, span, form, shape) for span in spans]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _read_span(
    file: Any, begin: int, span: range, form: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """Read rows from the first of a span to its last, and return those of the span."""
    rows = np.empty((span[-1] - span[0] + 1, *shape), form)
    file.seek(begin)
    left = rows.reshape(-1).view(np.uint8).data
    while left:
        if not (count := file.readinto(left)):
            raise ValueError("it was cut")
        left = left[count:]
    return rows[:: span.step]


@lru_cache(maxsize=4096)
def _begins(path: Path) -> dict[str, int]:
    """Return where the arrays of a segment begin in its file. A segment's name has the hash of its
    bytes, so that what is remembered stays right."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > HEADER_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(file.read(length))
    arrays = {name: about for name, about in header.items() if name != "__metadata__"}
    return {name: 8 + length + about["data_offsets"][0] for name, about in arrays.items()}

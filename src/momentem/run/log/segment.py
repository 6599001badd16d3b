"""One segment of a run log: a safetensors file that is either complete or absent.

The name of a segment has its number and the SHA-256 of its bytes, and the segment holds the hash of
the one before it. A file that was cut, changed, or taken from another run is therefore detected.
A segment is published when all of it is on the disk (`momentem.files`). Reading runs no code from
the file, and sizes and shapes are checked before anything is read.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from momentem.files import check_file, digest_of, hash_file, parse_table, publish
from momentem.run.log.rows import read_rows

__all__ = ["Segment", "SegmentError", "inspect", "list_segments", "write_segment"]

FILE_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})\.safetensors")
NAME = re.compile(r"[A-Za-z0-9_.-]+")
MOST_BYTES = 2**32  # of a segment; its hash takes seconds
DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"}
DTYPES |= {"U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"}


class SegmentError(ValueError):
    """Error for a segment that cannot be trusted."""


class Segment(NamedTuple):
    """A segment that was checked. Its arrays stay on the disk."""

    path: Path
    digest: str
    about: dict[str, Any]
    forms: dict[str, tuple[str, tuple[int, ...]]]  # dtype and shape of every array

    def read(self, name: str) -> np.ndarray:
        """Read one of its arrays."""
        # no memory map: mapped pages count as memory, and a mapped file that shrinks kills the
        # process
        try:
            with safe_open(self.path, framework="np", backend="pread") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise SegmentError(f"segment {self.path} can no longer be read: {error}") from error

    def read_rows(self, name: str, rows: range) -> np.ndarray:
        """Read rows of one of its arrays."""
        dtype, (_, *shape) = self.forms[name]
        try:
            return read_rows(self.path, name, np.dtype(dtype), tuple(shape), rows)
        except (KeyError, ValueError, OSError) as error:
            raise SegmentError(f"segment {self.path} can no longer be read: {error}") from error


def write_segment(
    folder: Path, number: int, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> Segment:
    """Write a segment and publish it."""
    about = {"number": number, **about}
    solid = {name: np.array(array, order="C", copy=None) for name, array in arrays.items()}
    for name in solid:
        check_name(name)
    content = save(solid, metadata={"momentem": json.dumps(about, allow_nan=False)})
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"a segment must have at most {MOST_BYTES} bytes, got {len(content)}: the sampler's "
            "state or a draw is too large for a run log"
        )
    digest = digest_of(content)
    path = folder / f"{number:08d}-{digest}.safetensors"
    try:
        publish([content], path)
    except OSError as error:
        raise OSError(
            f"segment {number} could not be written to {folder}: {error}; the segments before it "
            "are whole: free disk space, or make the folder writable, and resume with "
            "momentem.resume"
        ) from error
    # NumPy's names of dtypes, as `inspect` gives them
    return Segment(path, digest, about, {k: (a.dtype.name, a.shape) for k, a in solid.items()})


def check_name(name: str) -> None:
    """Refuse names with characters that are unsafe in file names."""
    if not NAME.fullmatch(name):
        raise ValueError(
            "names in a run log must consist of letters, digits, '_', '.' and '-', got "
            f"{name!r}; rename it"
        )


def list_segments(folder: Path) -> list[Path]:
    """Return the segments' files in order. Files with other names are ignored."""
    return sorted(path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name))


def inspect(folder: Path, path: Path, number: int, previous: str | None) -> Segment:
    """Check the file of segment `number`, and return the segment. Errors say what is wrong. The
    segment must name the hash before it, `previous`, if that is known."""
    try:
        named = FILE_NAME.fullmatch(path.name)
        if named is None or int(named[1]) != number:
            raise SegmentError(f"segment {number} is missing, or there are two of it")
        check_file(path, MOST_BYTES, folder)
        with safe_open(path, framework="np", backend="pread") as file:
            about = _about((file.metadata() or {}).get("momentem", ""))
            forms = {}
            for name in file.keys():  # noqa: SIM118  (a file is no dict)
                check_name(name)
                view = file.get_slice(name)
                forms[name] = (_dtype(view.get_dtype()), tuple(view.get_shape()))
        is_next = previous is None or about.get("previous") == previous
        if number == 0 and not is_next:
            raise SegmentError(
                "it does not follow the manifest, one of the two was changed; `momentem repair "
                f"{folder}` writes the manifest again"
            )
        if about.get("number") != number or not is_next:
            raise SegmentError("it does not follow the segment before it")
        digest = hash_file(path)
        if digest != named[2]:
            raise SegmentError("its bytes do not have the SHA-256 in its name: it was changed")
    except (SafetensorError, OSError, ValueError) as error:
        raise SegmentError(f"segment {path.name} of {folder} is not whole: {error}") from error
    return Segment(path, digest, about, forms)


def _about(text: str) -> dict[str, Any]:
    try:
        return parse_table(text)
    except ValueError as error:
        raise SegmentError(f"its description cannot be read: {error}") from None


def _dtype(code: str) -> str:
    if code == "BF16":
        return "bfloat16"
    if code not in DTYPES:
        raise SegmentError(f"it holds an array of dtype {code}")
    return np.dtype(DTYPES[code]).name

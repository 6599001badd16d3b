"""How much a corpus of a stranger may take: bytes, documents, words, and bytes of a line.

A file of a few bytes can ask for gigabytes: by its header, by what it unpacks to, by a line without
an end. So whatever a file says of itself is compared with limits before memory is taken for it.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from momentem.checks import check_count
from momentem.files import open_file

__all__ = ["Limits"]

RATIO, FREE = 200, 2**24  # bytes unpacked of a byte packed, beyond the first 16 MB; texts reach 20


class Limits(NamedTuple):
    """What a file may hold. A corpus that is larger, and can be trusted, needs larger limits.

    Attributes:
        num_bytes: of a file, or of a folder of texts, after it is unpacked.
        num_documents: rows.
        num_words: columns, which is also the largest id + 1.
        line_bytes: of a line, which is a document or a word.

    Examples:
        >>> from momentem.topics import Limits
        >>> Limits(num_bytes=2**34).num_documents
        20000000
    """

    num_bytes: int = 2**31
    num_documents: int = 20_000_000
    num_words: int = 10_000_000
    line_bytes: int = 2**24

    def check(self, name: str, **found: int) -> None:
        """Refuse what is larger than a limit. `name` is that of the file."""
        for limit, value in found.items():
            if value > getattr(self, limit):
                raise ValueError(
                    f"{name} must stay within {limit} = {getattr(self, limit)}, got {value}; if it "
                    f"can be trusted, read it with limits=Limits({limit}={value})"
                )


def check_limits(limits: Limits) -> None:
    """Refuse limits that are no whole numbers >= 1."""
    check_count(1, **limits._asdict())


def lines_of(path: Path, limits: Limits) -> Iterator[bytes]:
    """Yield the lines of a file, without their ends."""
    check_limits(limits)
    is_packed = path.suffix == ".gz"
    with open_file(path, limits.num_bytes) as raw:
        packed_bytes = path.stat().st_size
        most = max(FREE, RATIO * packed_bytes) if is_packed else limits.num_bytes
        with gzip.GzipFile(fileobj=raw) if is_packed else raw as file:
            yield from _lines(file, path, limits, most)


def _lines(file: Any, path: Path, limits: Limits, most: int) -> Iterator[bytes]:
    number = num_bytes = 0
    try:
        while line := file.readline(limits.line_bytes + 1):
            number, num_bytes = number + 1, num_bytes + len(line)
            limits.check(f"line {number} of {path}", line_bytes=len(line))
            limits.check(str(path), num_bytes=num_bytes)
            if num_bytes > most:
                raise ValueError(
                    f"{path} must not unpack to more than {RATIO} times its size, got {num_bytes} "
                    f"bytes by line {number}; unpack it first if it can be trusted"
                )
            yield line.rstrip(b"\r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} must be a whole gzip file, got one that cannot be unpacked after line "
            f"{number} ({error}); it may be cut short"
        ) from error


def decoded(content: bytes, name: str) -> str:
    """Return the text of a file, or of a line of it."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8, got {error}") from error

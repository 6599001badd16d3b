"""Files: others' are looked at before they are read, and ours are published whole.

A name may lead to a link out of the folder, a pipe that never answers, a device that never ends, or
a sparse file of terabytes. So a file is read only if it is a regular file and not too large.

What is written goes to a temporary file of a known name, which is synced and renamed. A killed
process leaves the old file or the new one, and at most the temporary file beside it.
"""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "TEMPORARY",
    "check_file",
    "digest_of",
    "hash_file",
    "open_file",
    "parse_table",
    "publish",
    "read_table",
]

TEMPORARY = "unfinished.tmp"
PIECE = 2**20  # bytes


def check_file(path: Path, most_bytes: int, folder: Path | None = None) -> None:
    """Refuse what is no regular file, is too large, or lies outside `folder`, if one is given."""
    if folder is not None and path.resolve().parent != folder.resolve():
        raise ValueError(
            f"{path} must be a file in its folder, got a link to {path.resolve()}, a file outside "
            "the folder; copy that file there"
        )
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path} must be a regular file, got a folder, a pipe or a device")
    if about.st_size > most_bytes:
        raise ValueError(f"{path} must have at most {most_bytes} bytes, got {about.st_size}")


def open_file(path: Path, most_bytes: int, folder: Path | None = None) -> BinaryIO:
    """Open a file that `check_file` accepts."""
    check_file(path, most_bytes, folder)
    # a pipe that has taken the file's place since would wait for a writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} must be a regular file, got a pipe or a device")
    return os.fdopen(descriptor, "rb")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(content: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of a text as UTF-8."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def read_table(path: Path, most_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return the table in a JSON file, and the file's bytes."""
    with open_file(path, most_bytes, path.parent) as file:
        content = file.read(most_bytes + 1)
    try:
        return parse_table(content), content
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, and {error}") from None


def parse_table(content: bytes | str) -> dict[str, Any]:
    """Return a table from JSON without NaN and infinities, which are no JSON."""
    try:
        table = json.loads(content, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(table, dict):
        raise ValueError(f"it is not a table, but {table!r:.80}")
    return table


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}")


def publish(pieces: Iterable[Any], path: Path) -> str:
    """Write a file in pieces of bytes, so that it is there whole or not at all. Return its
    SHA-256."""
    temporary, digest = path.with_name(TEMPORARY), hashlib.sha256()
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            for piece in pieces:
                digest.update(piece)
                _write(descriptor, memoryview(piece).cast("B"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return digest.hexdigest()


def _write(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content[:PIECE]) :]


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # other systems cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

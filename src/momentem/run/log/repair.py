"""Write the manifest of a run again. The first segment holds a copy of it."""

import os
from pathlib import Path

from momentem.files import digest_of, publish
from momentem.run.log.folder import MANIFEST, PART, lock
from momentem.run.log.read import Run, open_run
from momentem.run.log.segment import SegmentError, inspect, list_segments

__all__ = ["repair"]


def repair(folder: Path) -> list[Run]:
    """Write every manifest that is missing or damaged again, and return the logs of all processes.

    A damaged manifest is kept beside the new one, under the name manifest.json.damaged.

    Args:
        folder: of a run whose segments are whole.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} must be the folder of a run, and is no folder")
    parts = sorted(path for path in folder.glob(f"{PART}*") if path.is_dir())
    return [_repair(part) for part in parts or [folder]]


def _repair(folder: Path) -> Run:
    descriptor = lock(folder)
    try:
        segments = list_segments(folder)
        if not segments:
            raise FileNotFoundError(f"{folder} must hold the segments of a run, and has none")
        text = _copy(folder, segments[0])
        manifest = folder / MANIFEST
        is_whole = manifest.is_file() and manifest.stat().st_size == len(text.encode())
        if not is_whole or manifest.read_bytes() != text.encode():
            if manifest.exists():
                os.replace(manifest, manifest.with_name(f"{MANIFEST}.damaged"))
            publish([text.encode()], manifest)
    finally:
        os.close(descriptor)
    return open_run(folder)


def _copy(folder: Path, path: Path) -> str:
    """Return the manifest that the first segment holds. The segment names its SHA-256."""
    first = inspect(folder, path, 0, None)
    text = first.about.get("manifest")
    if not isinstance(text, str):
        raise SegmentError(
            f"segment {path.name} must hold a copy of the manifest, and has none: it is of an "
            f"earlier version; put the {MANIFEST} of a backup into {folder}"
        )
    if digest_of(text) != first.about.get("previous"):
        raise SegmentError(f"the copy of the manifest in segment {path.name} was changed")
    return text

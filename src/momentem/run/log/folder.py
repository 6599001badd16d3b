"""The folder of a run log: its files, its lock, and the environment that is recorded in it.

    manifest.json                      settings, hashes of model, data and sampler, and versions; it
                                       is never changed
    00000000-<sha256>.safetensors      the first state of the sampler and a copy of the manifest, no
                                       draws
    00000001-<sha256>.safetensors      draws, statistics, learning, and the state after them
    …

If there are several processes, each has its own log in a folder process-<i>, with the chains that
it holds. All processes publish at the same iterations.

The newest whole segment defines the state of the run. There is no counter that could disagree with
it. (docs/decisions/0009-run-log.md)
"""

import os
import platform
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from momentem._version import __version__
from momentem.files import TEMPORARY
from momentem.run.log.segment import list_segments

__all__ = [
    "FORMAT",
    "MANIFEST",
    "MANIFEST_BYTES",
    "PART",
    "claim",
    "forget_unbegun",
    "forget_unfinished",
    "layout",
    "lock",
    "part_of",
]

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES = 2**26  # a copy of it is in a header, which safetensors limits to 100 MB
PART = "process-"
# settings of JAX that change programs, or the numbers that they draw, and not their text
CONFIG = (
    "jax_disable_most_optimizations",
    "jax_default_matmul_precision",
    "jax_threefry_partitionable",
    "jax_threefry_gpu_kernel_lowering",
    "jax_exec_time_optimization_effort",
    "jax_optimization_level",
    "jax_default_prng_impl",
    "jax_disable_jit",
)
# of our own writes, and of those of safetensors, which earlier versions left to it
UNFINISHED = re.compile(rf"{re.escape(TEMPORARY)}|\.tmp[A-Za-z0-9]{{6}}")


def part_of(folder: Path) -> Path:
    """Return the folder of this process's log: `folder` itself if there is one process only."""
    return folder if jax.process_count() == 1 else folder / f"{PART}{jax.process_index()}"


def forget_unbegun(folder: Path) -> None:
    """Delete the log of a run that ended before its first iteration. Leave any other log alone."""
    if not folder.is_dir():
        return
    descriptor = lock(folder)
    try:
        if len(segments := list_segments(folder)) <= 1:
            forget_unfinished(folder)
            for path in (folder / MANIFEST, *segments):
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def forget_unfinished(folder: Path) -> None:
    """Delete the files that a killed process had not finished. The folder must be locked."""
    for path in list(folder.iterdir()):
        if UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def layout(mesh: Mesh | None) -> dict[str, Any]:
    """Return the environment: all that the bits of draws depend on besides model, data and
    sampler."""
    grid = {} if mesh is None else {"mesh": dict(mesh.shape), "processes": jax.process_count()}
    return {
        "momentem": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "platform": jax.default_backend(),
        "num_devices": jax.device_count(),
        **_compilation(),
        **grid,
    }


def _compilation() -> dict[str, Any]:
    """Return the settings of compilation that may change the bits of draws."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    harmless = ("--xla_force_host_platform_device_count", "--xla_dump", "--xla_hlo_profile")
    return {
        "xla_flags": sorted(flag for flag in flags if not flag.startswith(harmless)),
        "libtpu_args": os.environ.get("LIBTPU_INIT_ARGS", ""),
        **{name: _read_config(name) for name in CONFIG},
    }


def _read_config(name: str) -> str:
    """Return a setting as text. Some can only be read as attributes, and no JAX has them all."""
    try:
        return str(jax.config.read(name))
    except (AttributeError, KeyError):
        return str(getattr(jax.config, name, None))


def claim(folder: Path) -> int:
    """Create the folder and lock it. Refuse a folder that is not empty, except for what a killed
    process left that had drawn nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock(folder)
    except BlockingIOError:
        raise
    except OSError as error:
        raise OSError(f"out must be a folder that can be made, got {folder}: {error}") from error
    try:
        # after the lock: what is seen now, no other process changes
        entries = [path for path in folder.iterdir() if not UNFINISHED.fullmatch(path.name)]
        if [path.name[:9] for path in entries] == ["00000000-"] and entries == list_segments(
            folder
        ):
            entries[0].unlink()  # the first state of a run whose manifest was never written
            entries = []
        if entries:
            raise FileExistsError(
                f"out must be a new or empty folder, got {folder}, which holds "
                f"{entries[0].name!r}: resume it with momentem.resume, or choose another folder"
            )
        forget_unfinished(folder)
        (folder / TEMPORARY).touch()
        (folder / TEMPORARY).unlink()
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, PermissionError):
            raise OSError(
                f"out must be a folder that can be written to, got {folder}: {error}"
            ) from error
        raise
    return descriptor


def lock(folder: Path) -> int:
    """Lock the folder, so that no other process writes to it. The lock ends with the process."""
    if os.name != "posix":
        return os.open(os.devnull, os.O_RDONLY)
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BlockingIOError(
            f"{folder} is being written to by another run; wait for that run to end, or stop it"
        ) from None
    return descriptor

"""Crash at every point: each mkdir, creation, write, sync, rename and deletion has a number.

    python benchmarks/crash_points.py CASE     every point of a case

A run is made once to count its points. Then, for every point, a run crashes there, and the same
script is started again: its draws must be those of a run that nobody touched, bit for bit. A write
crashes with half of its bytes on the disk. After the crash nothing reaches the disk any more,
whatever handlers and destructors do, as after a `kill -9` or a loss of power.

A disk that fails from a point on is tried in the same way: the run must end with an error.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kills
import momentem as mt
from momentem.run import loop
from momentem.run.log import write as store

MAKES = ("mkdir", "open", "replace", "unlink")  # operations on paths
MOVES = ("write", "fsync")  # operations on files that are open


class Crash(BaseException):
    """The process is gone: no handler of errors may see it."""


class Disk:
    """The operations on a folder, counted. From operation `at` on, all of them fail."""

    def __init__(self, folder, at=None, is_full=False):
        self.folder, self.at, self.is_full = str(folder), at, is_full
        self.count, self.names, self._ours = 0, [], set()
        self._real = {name: getattr(os, name) for name in (*MAKES, *MOVES)}

    def __enter__(self):
        for name in self._real:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *details):
        for name, real in self._real.items():
            setattr(os, name, real)

    def _pass(self, name):
        """Count an operation, and fail if it is due."""
        self.count += 1
        self.names.append(name)
        if self.at is not None and self.count > self.at:
            # a full disk still deletes
            if not self.is_full:
                raise Crash(f"{name}, operation {self.at}")
            if name != "unlink":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_inside(self, path):
        return not isinstance(path, int) and os.fspath(path).startswith(self.folder)

    def _open(self, path, flags, *more, **options):
        if self._is_inside(path) and flags & os.O_CREAT:
            self._pass("open")
        descriptor = self._real["open"](path, flags, *more, **options)
        if self._is_inside(path):
            self._ours.add(descriptor)
        return descriptor

    def _write(self, descriptor, content):
        if descriptor in self._ours:
            if self.at is not None and self.count == self.at:
                self._real["write"](descriptor, content[: len(content) // 2])
            self._pass("write")
        return self._real["write"](descriptor, content)

    def _fsync(self, descriptor):
        if descriptor in self._ours:
            self._pass("fsync")
        return self._real["fsync"](descriptor)

    def _mkdir(self, path, *more, **options):
        if self._is_inside(path) and not os.path.isdir(path):
            self._pass("mkdir")
        return self._real["mkdir"](path, *more, **options)

    def _replace(self, source, path, **options):
        if self._is_inside(path):
            self._pass("replace")
        return self._real["replace"](source, path, **options)

    def _unlink(self, path, **options):
        if self._is_inside(path):
            self._pass("unlink")
        return self._real["unlink"](path, **options)


def log_density(p):
    return -0.5 * jnp.sum(p["x"] ** 2) - p["tau"]


def default_run():
    """Return a script of the sampler that tunes itself."""
    constraints = {"tau": mt.constraints.positive}
    target = mt.density(log_density, {"x": jnp.zeros(2), "tau": 1.0}, constraints)
    return lambda out: mt.sample(target, None, 20, 60, 2, out=out, resume=True, progress=False)


def hmc_run():
    target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    sampler = mt.hmc(target, 0.5, 3)
    return lambda out: mt.sample(target, sampler, 8, 3, 2, out=out, resume=True, progress=False)


def longer_run():
    """Return a script that asks for more draws when it has those that it asked for first."""
    target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    sampler = mt.hmc(target, 0.5, 3)

    def script(out):
        if not (Path(out) / "manifest.json").exists():
            mt.sample(target, sampler, 8, 3, 2, out=out, resume=True, progress=False)
        return mt.sample(target, sampler, 16, 3, 2, out=out, resume=True, progress=False)

    return script


def minibatch_run():
    target = kills.regression(20)
    sampler = mt.sgnht_em(target, num_steps=5)
    return lambda out: mt.sample(target, sampler, 20, 50, 2, out=out, resume=True, progress=False)


def stream_run():
    x = np.random.default_rng(0).normal(1.0, 1.0, 4000)

    def log_likelihood(mu, x):
        return -0.5 * (x - mu) ** 2

    def script(out):
        data = mt.stream(mt.sources.from_arrays(x), window_rows=500, hold=7)
        target = mt.dataset(lambda mu: -0.5 * mu**2, log_likelihood, data, 0.0, batch_size=20)
        sampler = mt.sghmc(target, step_size=0.01, friction=1.0, num_steps=3)
        return mt.sample(target, sampler, 20, 20, 2, out=out, resume=True, progress=False)

    return script


def topics_run():
    from momentem.topics import corpus
    from momentem.topics._fit import fit
    from momentem.topics.local import fixed_point
    from momentem.topics.model import make_model

    counts = np.random.default_rng(0).poisson(1.0, size=(40, 12))
    documents = corpus(counts, [f"word{i}" for i in range(12)])
    sizes: dict[str, Any] = {"num_steps": 2, "num_warmup": 20, "num_draws": 20, "thin": 5}
    sizes["batch_size"] = 10
    model, local = make_model(12, 3, frequencies=documents.frequencies()), fixed_point(2)
    return lambda out: fit(
        model, documents, "sghmc", **sizes, local=local, out=out, resume=True, progress=False
    )


CASES = {
    "hmc": hmc_run,
    "more draws": longer_run,
    "default": default_run,
    "minibatches": minibatch_run,
    "stream": stream_run,
    "topics": topics_run,
}


def sha(found):
    """Return the SHA-256 of a trace, or of a run of topics."""
    if hasattr(found, "children"):
        return kills.sha(found)
    arrays = [found.topics, found.weights, found.hyper, found.trace["iteration"]]
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)).hexdigest()


@contextlib.contextmanager
def small_segments():
    """A segment for every few iterations, the same ones in every run."""
    names = {loop: ("CHUNK_ITERATIONS", "CHUNK_SECONDS"), store: ("SEGMENT_SECONDS",)}
    before = {(m, name): getattr(m, name) for m in names for name in names[m]}
    loop.CHUNK_ITERATIONS, loop.CHUNK_SECONDS, store.SEGMENT_SECONDS = 16, 1e9, 0.0
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def points(script, folder):
    """Return the names of a run's operations in order, and the hash of its draws."""
    with Disk(folder) as disk:
        found = sha(script(folder))
    return disk.names, found


def trial(script, folder, at, is_full, expected):
    """Crash at a point and start again. Return what was wrong, or None."""
    with Disk(folder, at, is_full):
        try:
            script(folder)
        except Crash:
            pass
        except OSError:
            if not is_full:
                return "an error instead of a crash"
        else:
            return "nothing was noticed"
    if sha(script(folder)) != expected:
        return "other bits"
    if left := [path.name for path in Path(folder).iterdir() if "tmp" in path.name]:
        return f"left {left[0]}"
    return None


def trials(name, folder, is_full=False, every=1):
    """Crash at every point of a case, or at some of them.

    Returns:
        The number of points tried, and what was wrong by number and name of the point.
    """
    folder, bad = Path(folder), {}
    with small_segments(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = CASES[name]()
        script(folder / "first")  # compiles
        names, expected = points(script, folder / "whole" / "run")
        tried = range(0, len(names), every)
        for at in tried:
            place = folder / "crashed" / "run"
            try:
                wrong = trial(script, place, at, is_full, expected)
            except Exception as error:
                wrong = f"it cannot be started again: {error!r}"
            if wrong is not None:
                bad[f"{at} {names[at]}"] = wrong
            shutil.rmtree(folder / "crashed", ignore_errors=True)
    return len(tried), bad


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for case in sys.argv[1:] or CASES:
        for is_full in (False, True):
            with tempfile.TemporaryDirectory() as where:
                print(case, "disk full" if is_full else "crash", *trials(case, where, is_full))

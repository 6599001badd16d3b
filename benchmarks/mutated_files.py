"""Mutated files: copies of good files with bytes flipped, cut, doubled, moved or swapped, opened.

    python benchmarks/mutated_files.py --tries 2000 --seed 1

A file must be refused with ValueError or OSError, or be told of in a warning or as a run that was
cut off, or hold what it held before. Any other error, other content without a word, more than 10
seconds, and code that runs are failures. Formats without a hash, which people write by hand, may
hold other content.
"""

import argparse
import gzip
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse

import kills
import momentem as mt
from momentem.run.exported import export as write_export
from momentem.topics import TopicModel, corpus, corpus_files, read, runs

MOST_SECONDS = 10.0
ODD = (None, True, -1, 0, 1e308, 2**70, "", "../x", [], {}, [[]], "\ud800", float("inf"))


class Format(NamedTuple):
    """A kind of file: how to make a good one, and how to read it into something to compare."""

    make: Any  # folder -> None
    read: Any  # folder -> hashable content
    has_hash: bool
    errors: tuple = (ValueError, OSError)


def log(folder):
    target = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), {"x": jnp.zeros(2)})
    sampler = mt.hmc_em(target, 0.4, 3, e_step=mt.e_steps.constant(20))
    for num_draws in (10, 20):
        labels: dict[str, Any] = {"dims": {"x": ["side"]}, "coords": {"side": ["a", "b"]}}
        sizes: dict[str, Any] = {"num_warmup": 20, "num_chains": 2, "progress": False}
        mt.sample(target, sampler, num_draws, **sizes, **labels, out=folder, resume=True)


def read_log(folder):
    trace = mt.load(folder)
    if trace.attrs["is_interrupted"]:
        warnings.warn("it says that it is a part", mt.SamplingWarning, stacklevel=1)
    return kills.sha(trace)


def export(name):
    """Return how to write a trace as another library's file, in a folder, and how to read it."""

    def make(folder):
        folder.mkdir(exist_ok=True)
        log(folder / "run")
        write_export(mt.load(folder / "run"), folder / name)
        shutil.rmtree(folder / "run")

    def read_export(folder):
        with mt.load(folder / name) as trace:
            return kills.sha(trace)

    # arrays are read when they are used, by the library itself
    return Format(make, read_export, False, (ValueError, OSError, RuntimeError))


def topics(folder):
    topics = np.full((2, 4, 2), 0.25)
    about = {name: 1 for name in runs.COUNTS} | {"num_words": 4, "num_topics": 2, "thin": 1}
    about |= {"sampler": "sghmc", "topic_shape": 0.05, "vocabulary": ["a", "b", "c", "d"]}
    trace = {name: np.full(2, 7.0) for name in ("iteration", "seconds", "single", "average")}
    runs.save(runs.TopicRun(topics, np.ones((2, 2)), np.ones((2, 3)), trace, about=about), folder)


def read_topics(folder):
    run = TopicModel.load(folder).run_
    return [x.tolist() for x in run[:3]], run.vocabulary, run.trace["single"].tolist()


TABLE = np.random.default_rng(0).poisson(0.5, (20, 8)) + np.eye(20, 8, dtype=int)
WORDS = [f"word{i}" for i in range(8)]


def content(found):
    parts = (found.starts, found.words, found.counts)
    return [np.asarray(x).tolist() for x in parts], found.vocabulary, found.num_words


def npz(folder):
    folder.mkdir(exist_ok=True)
    scipy.sparse.save_npz(folder / "a.npz", scipy.sparse.csr_array(TABLE))


def ldac(folder):
    folder.mkdir(exist_ok=True)
    rows = [[f"{i}:{n}" for i, n in enumerate(row) if n] for row in TABLE]
    (folder / "a.ldac").write_text("".join(f"{len(row)} {' '.join(row)}\n" for row in rows))


def mtx(folder):
    import scipy.io

    folder.mkdir(exist_ok=True)
    scipy.io.mmwrite(folder / "a.mtx", scipy.sparse.coo_array(TABLE), symmetry="general")


def texts():
    return [" ".join(WORDS[i] for i in np.flatnonzero(row)) for row in TABLE]


def text(folder):
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("\n".join(texts()))


def packed(folder):
    folder.mkdir(exist_ok=True)
    (folder / "a.txt.gz").write_bytes(gzip.compress("\n".join(texts()).encode()))


def text_folder(folder):
    folder.mkdir(exist_ok=True)
    for i, line in enumerate(texts()):
        (folder / f"{i}.txt").write_text(line)


FORMATS = {
    "run log": Format(log, read_log, True),
    "topic run": Format(topics, read_topics, True),
    "saved corpus": Format(
        lambda folder: corpus_files.save(corpus(TABLE, WORDS), folder),
        lambda folder: content(read(folder)),
        True,
    ),
    **{
        label: Format(make, lambda folder, name=name: content(read(folder / name)), False)
        for label, make, name in (
            ("npz", npz, "a.npz"),
            ("ldac", ldac, "a.ldac"),
            ("mtx", mtx, "a.mtx"),
            ("text", text, "a.txt"),
            ("packed text", packed, "a.txt.gz"),
            ("folder of texts", text_folder, ""),
        )
    },
    # not NetCDF: HDF5 loops for ever on one mutated file in some hundreds (SECURITY.md)
    "Zarr": export("a.zarr"),
}


def mutated(rng, data):
    """Return other bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3, 20))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 64))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length]
        elif kind == 3:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 4:
            data[at : at + 1] = rng.choice((b"9" * 20, b"-1", b"\0", b"\xff", b"1e999", b"NaN"))
        else:
            del data[at:]
    return bytes(data)


def mutated_json(rng, table):
    """Return a table with one of its values replaced by an odd one, at any depth."""
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    key = rng.choice(keys)
    value = table[key]
    if isinstance(value, dict | list) and value and rng.random() < 0.6:
        mutated_json(rng, value)
    else:
        table[key] = rng.choice(ODD)
    return table


def harm(rng, folder):
    """Change one file of a folder, and return its name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(paths)
    if path.suffix == ".json" and rng.random() < 0.5:
        path.write_text(json.dumps(mutated_json(rng, json.loads(path.read_text()))))
    elif rng.random() < 0.05:
        path.unlink()
    elif rng.random() < 0.05:
        path.write_bytes(rng.choice(paths).read_bytes())
    else:
        path.write_bytes(mutated(rng, path.read_bytes()))
    return path.name


def answer(form, folder, expected):
    """Return what happened: refused, told, the same, or what must not be."""
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = form.read(folder)
        except form.errors:
            found = None
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
    if time.perf_counter() - begun > MOST_SECONDS:
        return "it takes too long"
    if found is None:
        return "refused"
    if any(issubclass(each.category, mt.SamplingWarning) for each in caught):
        return "told"
    if found == expected:
        return "the same"
    return "SILENT" if form.has_hash else "other content"


FINE = ("refused", "told", "the same", "other content")


def trials(num_tries, folder, seed):
    """Yield every format's name, the number of tries by answer, and what must not be."""
    rng, folder = random.Random(seed), Path(folder)
    for name, form in FORMATS.items():
        good, bad, answers = folder / f"good {name}", {}, {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            form.make(good)
            expected = form.read(good)
        for i in range(-(-num_tries // len(FORMATS))):
            copy = shutil.copytree(good, folder / "copy")
            file = harm(rng, copy)
            found = answer(form, copy, expected)
            answers[found if found in FINE else "BAD"] = answers.get(found, 0) + 1
            if found not in FINE:
                bad[f"try {i}, {file}"] = found
            shutil.rmtree(copy)
        yield name, answers, bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_right = True
    with tempfile.TemporaryDirectory() as where:
        for name, answers, bad in trials(given.tries, where, given.seed):
            print(name, answers, *bad.items(), sep="\n  ", flush=True)
            is_right &= not bad
    sys.exit(not is_right)

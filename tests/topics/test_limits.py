"""Corpora of strangers: refused within a second, before they take memory or time."""

import gzip
import io
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from momentem.topics import Limits, read
from momentem.topics.readers import encode, read_ldac, read_npz, read_text

from corpora import TABLE, write_lines

BANNER = "%%MatrixMarket matrix coordinate integer general\n"
MOST = 300e6  # bytes that a refusal may take


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                for piece in content if isinstance(content, list) else [content]:
                    member.write(piece)
    return path


def packed_zeros(folder):
    """4 GB of zeros in an archive of 4 MB."""
    header = npy(np.zeros(2**29, np.int64)[:0]).replace(b"(0,), ", b"(536870912,), ")
    zeros = [header, *[bytes(2**24)] * 256]
    ends = {"indptr": npy(np.array([0, 1])), "shape": npy(np.array([1, 1]))}
    return archive(folder / "a.npz", data=zeros, indices=npy(np.zeros(1, int)), **ends)


def boast(folder):
    """An array that is 10^12 numbers, as its header says."""
    header = npy(np.zeros(1)).replace(b"(1,), ", b"(1000000000000,), ")
    ends = {"indptr": npy(np.array([0, 1])), "shape": npy(np.array([1, 1]))}
    return archive(folder / "a.npz", data=header, indices=npy(np.zeros(1, int)), **ends)


def one_line(folder):
    with gzip.open(folder / "a.txt.gz", "wb", 1) as file:
        for _ in range(64):
            file.write(b"a" * 2**20)
    return folder / "a.txt.gz"


def zeros_as_text(folder):
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").symlink_to("/dev/zero")
    return folder / "texts"


def pipe_as_text(folder):
    (folder / "texts").mkdir()
    os.mkfifo(folder / "texts/a.txt")
    return folder / "texts"


def link_as_text(folder):
    (folder / "texts").mkdir()
    (folder / "secret").write_text("password " * 9)
    (folder / "texts/a.txt").symlink_to(folder / "secret")
    return folder / "texts"


def sparse_file(folder):
    with open(folder / "a.txt", "wb") as file:
        file.truncate(30 * 2**30)
    return folder / "a.txt"


HOSTILE = {
    "70 bytes, 400 million documents": (
        lambda folder: write_lines(folder / "a.mtx", BANNER + "400000000 1 1\n1 1 1\n"),
        "within num_documents = 20000000, got 400000000",
    ),
    "70 bytes, 4 billion words": (
        lambda folder: write_lines(folder / "a.mtx", BANNER + "1 4000000000 1\n1 1 1\n"),
        "within num_words = 10000000, got 4000000000",
    ),
    "an id of 4 billion": (
        lambda folder: write_lines(folder / "a.ldac", "1 4294967293:1\n"),
        "within num_words = 10000000, got 4294967294",
    ),
    "an archive that boasts": (boast, "has 20 bytes for an array of shape"),
    "a line without an end": (one_line, "line 1 of .* within line_bytes = 16777216"),
    "zeros without an end": (zeros_as_text, "a file outside the folder"),
    "a pipe": (pipe_as_text, "must be a regular file"),
    "a link out of the folder": (link_as_text, "a file outside the folder"),
    "a pipe that was named": (
        lambda folder: os.mkfifo(folder / "a.ldac") or folder / "a.ldac",
        "must be a regular file",
    ),
    "a sparse file": (sparse_file, "at most 2147483648 bytes, got 32212254720"),
}


@pytest.mark.skipif(os.name != "posix", reason="has no such files")
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_before_it_takes_memory(tmp_path, name):
    make, message = HOSTILE[name]
    path = make(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@pytest.mark.validate
def test_an_archive_of_zeros_is_refused(tmp_path):
    with pytest.raises(ValueError, match="within num_bytes = 2147483648, got 42949"):
        read(packed_zeros(tmp_path))


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path):
    """Its directory says that a member is small; unpacking stops there, and the bytes differ."""
    path = archive(
        tmp_path / "a.npz",
        data=npy(np.zeros(10**6)),
        indices=npy(np.zeros(1, int)),
        indptr=npy(np.array([0, 1])),
        shape=npy(np.array([1, 1])),
    )
    size = len(npy(np.zeros(10**6)))
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<Q", size), struct.pack("<Q", 136)))
    with pytest.raises(ValueError, match="cannot be read"):
        read_npz(path, limits=Limits(num_bytes=10**5))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(num_documents=3), "within num_documents = 3, got 4.*limits=Limits"),
        (Limits(num_words=3), "within num_words = 3, got 4"),
        (Limits(num_bytes=20), "20"),
        (Limits(line_bytes=5), "within line_bytes = 5"),
        (Limits(line_bytes=0), "line_bytes must be a whole number >= 1, got 0"),
    ],
)
def test_limits_are_arguments(tmp_path, limits, message):
    lines = [" ".join([str(np.count_nonzero(row)), *(f"{i}:{n}" for i, n in enumerate(row) if n)])
             for row in TABLE]  # fmt: skip
    path = write_lines(tmp_path / "a.ldac", "".join(f"{line}\n" for line in lines))
    assert read(path).num_documents == 4
    with pytest.raises(ValueError, match=message):
        read(path, limits)


def test_texts_have_limits_too(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("ape bee cat " * 10)
    assert read_text(tmp_path).num_documents == 3
    for limits in (Limits(num_bytes=300), Limits(num_documents=2)):
        with pytest.raises(ValueError, match=r"at most|within num_documents"):
            read_text(tmp_path, limits=limits)
        with pytest.raises(ValueError, match=r"at most|within num_documents"):
            encode(tmp_path, ["ape"], limits=limits)


def test_a_file_that_unpacks_to_much_more_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.ldac.gz", "wb") as file:
        file.write(b"0" + b" " * 10**6 + b"\n")
        for _ in range(30):
            file.write(b"1 0:1" + b" " * 10**6 + b"\n")
    with pytest.raises(ValueError, match="must not unpack to more than 200 times"):
        read_ldac(tmp_path / "a.ldac.gz")


@pytest.mark.validate
def test_nothing_takes_more_memory_than_it_may(tmp_path):
    """The whole process, which tracemalloc does not see, with a limit of address space."""
    path = HOSTILE["70 bytes, 400 million documents"][0](tmp_path)
    script = f"""
import resource
import momentem.topics as topics
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    topics.read({str(path)!r})
except ValueError:
    pass
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 3e5
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""Data of the paper's experiments: synthetic data, and public files checked by their SHA-256.

    australian()              690 x 14, the Statlog Australian credit approvals
    heart()                   270 x 13, the Statlog heart disease data
    synthetic_logistic(seed)  two normals at [1, -1] and [-1, 1], synthetic
    twenty_news(words)        18,846 documents over 2,000 words, by date, with two vocabularies
    reuters()                 21,578 documents over 10,000 stems, by date

A file is searched for in the folder MOMENTEM_DATA, then in the cache (MOMENTEM_CACHE, or the
system's cache folder). If it is in neither, it is downloaded, but never on import. Only the named
member of an archive is extracted, and the download stops at a maximum size. The UCI repository's
files are CC BY 4.0 (doi:10.24432/C59012 and doi:10.24432/C57303). The corpora are prepared files
that cannot be downloaded, and are read from MOMENTEM_DATA only.
"""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pooch
import requests

from momentem.files import digest_of, hash_file, publish
from momentem.topics._corpus import Corpus
from momentem.topics.readers import read_npz

__all__ = [
    "Classification",
    "Original",
    "SplitCorpus",
    "australian",
    "fetch",
    "heart",
    "reuters",
    "synthetic_logistic",
    "twenty_news",
]


DATA, CACHE = "MOMENTEM_DATA", "MOMENTEM_CACHE"


class Original(NamedTuple):
    """A public file: a member of an archive, with its hash and maximum size."""

    path: str  # below MOMENTEM_DATA, and below the cache
    url: str  # of the archive
    member: str
    sha256: str  # of the member
    most_bytes: int  # maximum size of the archive and of the member


AUSTRALIAN = Original(
    "australian/australian.dat",
    "https://archive.ics.uci.edu/static/public/143/statlog+australian+credit+approval.zip",
    "australian.dat",
    "3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c",
    200_000,
)
HEART = Original(
    "heart_statlog/heart.dat",
    "https://archive.ics.uci.edu/static/public/145/statlog+heart.zip",
    "heart.dat",
    "f5f3b4204c285bafadd85cb735f38b47689f2be7047feb172dcbeab648110bf9",
    200_000,
)


CORPORA = {
    "20news/20news_nvdm2000": "d9586a57b220ab33e012df4d452e0fcf03142156e5033462ffdb660047cf7e5d",
    "20news/20news_stem2000": "4358a7dc0234aff089c8728bf0cabb943c6c8855c084d4bec0307a482ff1b8e4",
    "reuters21578/reuters21578_stem10000": (
        "1f52ee60b4b0ee53541d34fb0b9268b05d37a4e0f70f90bdfbe7c2896f5d5643"
    ),
}


class SplitCorpus(NamedTuple):
    """Training documents, and later documents for testing."""

    train: Corpus
    test: Corpus


class Classification(NamedTuple):
    """Covariates with one row per datum, and labels 0 or 1."""

    x: np.ndarray
    y: np.ndarray

    def standardised(self) -> "Classification":
        """Return the data with every column scaled to mean 0 and standard deviation 1."""
        return self._replace(x=(self.x - self.x.mean(axis=0)) / self.x.std(axis=0))


def australian() -> Classification:
    """Return the Australian credit approvals, with categories as numbers. A14 reaches 100,001.

    Examples:
        With a network connection, or with the file in the folder MOMENTEM_DATA:

            from momentem.reproduce import datasets

            data = datasets.australian().standardised()
            data.x.shape  # (690, 14)
    """
    table = np.loadtxt(fetch(AUSTRALIAN))
    return Classification(table[:, :-1], table[:, -1])


def heart() -> Classification:
    """Return the Statlog heart data. Label 1 means disease.

    Examples:
        With a network connection, or with the file in the folder MOMENTEM_DATA:

            from momentem.reproduce import datasets

            data = datasets.heart().standardised()
            data.x.shape  # (270, 13)
    """
    table = np.loadtxt(fetch(HEART))
    return Classification(table[:, :-1], table[:, -1] - 1)


def synthetic_logistic(num: int = 2000, seed: int = 0, is_noisy: bool = True) -> Classification:
    """Draw half the data from N([1, -1], I) and half from N([-1, 1], I), with weights [1, -1].

    Args:
        num: number of data.
        seed: of the draw.
        is_noisy: draw labels with their logistic probabilities. If False, every datum has its
            likelier label.

    Examples:
        >>> data = synthetic_logistic(num=100, seed=1)
        >>> data.x.shape, data.y.shape
        ((100, 2), (100,))
    """
    rng = np.random.default_rng(seed)
    centres = np.where(np.arange(num)[:, None] % 2 == 0, [[1.0, -1.0]], [[-1.0, 1.0]])
    x = centres + rng.normal(size=(num, 2))
    chance = 1 / (1 + np.exp(-x @ np.array([1.0, -1.0])))
    threshold = rng.uniform(size=num) if is_noisy else 0.5
    return Classification(x, (threshold < chance).astype(float))


def twenty_news(words: str = "nvdm") -> SplitCorpus:
    """Return 20-Newsgroups by date. The first 60 % are for training.

    Args:
        words: "nvdm" for unstemmed words, or "stem" for Porter stems without stop words. Both have
            the 2,000 most common words.
    """
    if words not in ("nvdm", "stem"):
        raise ValueError(f'words must be "nvdm" or "stem", got {words!r}')
    return _split_corpus(f"20news/20news_{words}2000", "is_test")


def reuters() -> SplitCorpus:
    """Return Reuters-21578 by date, in place of RCV1. The first 60 % are for training."""
    return _split_corpus("reuters21578/reuters21578_stem10000", "is_test_60_40")


def _split_corpus(name: str, mask: str) -> SplitCorpus:
    path = _find_given(f"{name}.npz")
    if path is None:
        raise FileNotFoundError(
            f"{name}.npz must be in the folder MOMENTEM_DATA, got "
            f"{os.environ.get(DATA) or 'no such variable'}; it is a prepared file that cannot be "
            "downloaded"
        )
    _check(path, CORPORA[name], "the prepared file")
    words = path.with_suffix(".vocab.txt")
    whole = read_npz(path, words if words.is_file() else None)
    with np.load(path, allow_pickle=False) as arrays:
        is_test = arrays[mask].astype(bool)
    return SplitCorpus(whole.take(np.flatnonzero(~is_test)), whole.take(np.flatnonzero(is_test)))


def fetch(original: Original) -> Path:
    """Return the path of a file, and download the file if necessary.

    Args:
        original: the file.

    Examples:
        With a network connection, or with the file in the folder MOMENTEM_DATA:

            from momentem.reproduce import datasets

            path = datasets.fetch(datasets.HEART)
    """
    path = _find_given(original.path)
    if path is None:
        path = Path(os.environ.get(CACHE) or pooch.os_cache("momentem")) / original.path
        if not path.is_file() or hash_file(path) != original.sha256:
            _download(original, path)
    else:
        _check(path, original.sha256, f"{original.member} of {original.url}")
    return path


def _find_given(name: str) -> Path | None:
    """Return the path of a file in the folder MOMENTEM_DATA, or None if it is not there."""
    folder = os.environ.get(DATA)
    path = Path(folder or ".") / name
    return path if folder and path.is_file() else None


def _check(path: Path, sha256: str, original: str) -> None:
    found = hash_file(path)
    if found != sha256:
        raise ValueError(
            f"{path} must have the SHA-256 {sha256}, got {found}; delete it, or replace it with "
            f"{original}"
        )


def _download(original: Original, path: Path) -> None:
    """Download the archive, extract its member, and keep it in the cache if it is the right one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    capped: Any = _Capped(original.most_bytes)
    try:
        archive = pooch.retrieve(
            original.url,
            known_hash=None,  # archives are sometimes packed again; the member's hash is checked
            fname=f"{path.name}.zip",
            path=path.parent,
            downloader=capped,
        )
    except (OSError, requests.RequestException) as error:
        raise FileNotFoundError(
            f"{original.path} is neither in the folder MOMENTEM_DATA nor in the cache, and "
            f"{original.url} cannot be downloaded ({error}); put the file at {original.path} in "
            "some folder and set MOMENTEM_DATA to that folder"
        ) from error
    try:
        with zipfile.ZipFile(archive) as members:
            size = members.getinfo(original.member).file_size
            if size > original.most_bytes:
                raise ValueError(
                    f"{original.member} of {original.url} must have at most "
                    f"{original.most_bytes} bytes, got {size}; it has changed since this release"
                )
            content = members.read(original.member)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{original.url} must be an archive with {original.member}, got one that cannot be "
            f"read ({error}); try again later"
        ) from error
    finally:
        Path(archive).unlink()
    if (found := digest_of(content)) != original.sha256:
        raise ValueError(
            f"{original.member} of {original.url} must have the SHA-256 {original.sha256}, got "
            f"{found}; nothing was kept, try again later"
        )
    publish([content], path)


class _Capped:
    """Downloader that stops at a maximum size."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Download a file, as pooch calls it."""
        del pooch
        with (
            requests.get(url, stream=True, timeout=30) as response,
            open(output_file, "wb") as file,
        ):
            response.raise_for_status()
            for chunk in response.iter_content(chunk_size=1 << 16):
                file.write(chunk)
                if file.tell() > self.most_bytes:
                    raise OSError(f"more than {self.most_bytes} bytes")

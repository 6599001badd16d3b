"""Data of the paper's experiments: made, or the public originals, checked by their SHA-256.

    australian()              690 x 14, the Statlog Australian credit approvals
    heart()                   270 x 13, the Statlog heart disease data
    synthetic_logistic(seed)  two normals at [1, -1] and [-1, 1], made, not read
    twenty_news(words)        18,846 documents over 2,000 words, by date: two vocabularies
    reuters()                 21,578 documents over 10,000 stems, by date

A file is looked for in the folder that MOMENTEM_DATA names, then in the cache (MOMENTEM_CACHE, or
the system's own), and is downloaded if it is in neither: never on import, of an archive the named
member alone, and no more bytes than it should have. The UCI repository's files are CC BY 4.0
(doi:10.24432/C59012 and doi:10.24432/C57303). The corpora are prepared files without a public
original: they are read from MOMENTEM_DATA alone.
"""

import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pooch
import requests

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
    """A public file: a member of an archive, and what it must be."""

    path: str  # below MOMENTEM_DATA, and below the cache
    url: str  # of the archive
    member: str
    sha256: str  # of the member
    most_bytes: int  # of archive and member


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
    """Documents to learn from, and later ones to predict."""

    train: Corpus
    test: Corpus


class Classification(NamedTuple):
    """Covariates, one row a datum, and labels 0 or 1."""

    x: np.ndarray
    y: np.ndarray

    def standardised(self) -> "Classification":
        """Every column with mean 0 and standard deviation 1."""
        return self._replace(x=(self.x - self.x.mean(axis=0)) / self.x.std(axis=0))


def australian() -> Classification:
    """The Australian credit approvals, categories as numbers; A14 reaches 100,001."""
    table = np.loadtxt(fetch(AUSTRALIAN))
    return Classification(table[:, :-1], table[:, -1])


def heart() -> Classification:
    """The Statlog heart data; 1 is disease."""
    table = np.loadtxt(fetch(HEART))
    return Classification(table[:, :-1], table[:, -1] - 1)


def synthetic_logistic(num: int = 2000, seed: int = 0, is_noisy: bool = True) -> Classification:
    """Half the data from N([1, -1], I) and half from N([-1, 1], I), labels by the weights [1, -1].

    Args:
        num: of data.
        seed: of the draw.
        is_noisy: labels are drawn with the logistic chances; False: the likelier label always.
    """
    rng = np.random.default_rng(seed)
    centres = np.where(np.arange(num)[:, None] % 2 == 0, [[1.0, -1.0]], [[-1.0, 1.0]])
    x = centres + rng.normal(size=(num, 2))
    chance = 1 / (1 + np.exp(-x @ np.array([1.0, -1.0])))
    threshold = rng.uniform(size=num) if is_noisy else 0.5
    return Classification(x, (threshold < chance).astype(float))


def twenty_news(words: str = "nvdm") -> SplitCorpus:
    """20-Newsgroups by date, the first 60 % to learn from.

    Args:
        words: "nvdm", unstemmed, or "stem", Porter stems without stop words: the 2,000 commonest.
    """
    if words not in ("nvdm", "stem"):
        raise ValueError(f'words must be "nvdm" or "stem", got {words!r}')
    return _split_corpus(f"20news/20news_{words}2000", "is_test")


def reuters() -> SplitCorpus:
    """Reuters-21578 by date, the first 60 % to learn from: it stands in for RCV1."""
    return _split_corpus("reuters21578/reuters21578_stem10000", "is_test_60_40")


def _split_corpus(name: str, mask: str) -> SplitCorpus:
    path = _given(f"{name}.npz")
    if path is None:
        raise FileNotFoundError(
            f"{name}.npz must be in the folder that MOMENTEM_DATA names, got "
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
    """Where the file is, after downloading it if need be.

    Args:
        original: which file.
    """
    path = _given(original.path)
    if path is None:
        path = Path(os.environ.get(CACHE) or pooch.os_cache("momentem")) / original.path
        if not path.is_file():
            _download(original, path)
    _check(path, original.sha256, f"{original.member} of {original.url}")
    return path


def _given(name: str) -> Path | None:
    """The file below MOMENTEM_DATA, if it is there."""
    folder = os.environ.get(DATA)
    path = Path(folder or ".") / name
    return path if folder and path.is_file() else None


def _check(path: Path, sha256: str, original: str) -> None:
    found = pooch.file_hash(str(path), alg="sha256")
    if found != sha256:
        raise ValueError(
            f"{path} must have the SHA-256 {sha256}, got {found}; delete it, or replace it by "
            f"{original}"
        )


def _download(original: Original, path: Path) -> None:
    """The archive into the cache, its one member beside it, the archive away again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    capped: Any = _Capped(original.most_bytes)
    try:
        archive = pooch.retrieve(
            original.url,
            known_hash=None,  # archives are packed anew at times; the member's hash is what counts
            fname=f"{path.name}.zip",
            path=path.parent,
            downloader=capped,
        )
    except (OSError, requests.RequestException) as error:
        raise FileNotFoundError(
            f"{original.path} is neither in the folder that MOMENTEM_DATA names nor in the cache, "
            f"and {original.url} cannot be downloaded ({error}); put the file at "
            f"{original.path} below a folder and set MOMENTEM_DATA to that folder"
        ) from error
    try:
        with zipfile.ZipFile(archive) as members:
            size = members.getinfo(original.member).file_size
            if size > original.most_bytes:
                raise ValueError(
                    f"{original.member} of {original.url} must have at most "
                    f"{original.most_bytes} bytes, got {size}; it is not the file it was"
                )
            content = members.read(original.member)
    finally:
        Path(archive).unlink()
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


class _Capped:
    """A downloader that stops at a size: what is larger is not the file it was."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """As pooch calls it."""
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

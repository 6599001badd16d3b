"""A corpus on disk: a folder of arrays that are mapped into memory when it is loaded.

    meta.json                          sizes, and the SHA-256 of every other file; written last
    starts.npy, words.npy, counts.npy  the arrays of a `Corpus`
    vocabulary.txt                     a word per line, if they are known

A file that was changed or cut, or that is of another corpus, is refused: its SHA-256 differs.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from momentem.checks import check_instance
from momentem.files import check_file, digest_of, hash_file, publish, read_table
from momentem.topics._corpus import REMEDY, AnyPath, Corpus, check_starts, known_words

__all__ = ["load", "save"]

FORMAT, VERSION = "momentem corpus", 2
ARRAYS, WORDS = ("starts", "words", "counts"), "vocabulary.txt"
META_BYTES, MOST_BYTES = 2**16, 2**50
BLOCK = 2**20  # entries that are checked at once


def save(corpus: Corpus, folder: AnyPath) -> None:
    """Write a corpus for `load`. A corpus that was in the folder is replaced.

    Args:
        corpus: what to save.
        folder: where to; made if need be.
    """
    check_instance(Corpus, REMEDY, corpus=corpus)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # first away and last written: a folder with meta.json is complete, whenever a save was cut off
    (folder / "meta.json").unlink(missing_ok=True)
    digests = {}
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        digests[path.name] = publish(_npy_pieces(getattr(corpus, name)), path)
    if corpus.vocabulary is None:
        (folder / WORDS).unlink(missing_ok=True)
    else:
        lines = "".join(f"{word}\n" for word in corpus.vocabulary)
        digests[WORDS] = publish([lines.encode()], folder / WORDS)
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "num_documents": corpus.num_documents,
        "num_words": corpus.num_words,
        "num_entries": len(corpus.words),
        "has_vocabulary": corpus.vocabulary is not None,
        "files": digests,
    }
    whole = {"sha256": digest_of(json.dumps(meta)), **meta}
    publish([(json.dumps(whole, indent=1) + "\n").encode()], folder / "meta.json")


def _npy_pieces(array: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of an .npy file. The array, which may be mapped, is read in blocks."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    yield header.getvalue()
    for first in range(0, len(array), BLOCK):
        yield np.ascontiguousarray(array[first : first + BLOCK]).tobytes()


def load(folder: AnyPath) -> Corpus:
    """Return the corpus that `save` wrote, its arrays mapped into memory. Every file is read once
    and compared with its SHA-256, and sizes and ranges are checked.

    Args:
        folder: where it is.
    """
    folder = Path(folder)
    meta = _meta(folder / "meta.json")
    starts = _mapped(folder / "starts.npy", ("int64",), meta["num_documents"] + 1)
    words = _mapped(folder / "words.npy", ("uint16", "uint32"), meta["num_entries"])
    counts = _mapped(folder / "counts.npy", ("uint16", "uint32"), meta["num_entries"])
    check_starts(starts, meta["num_documents"], meta["num_entries"], str(folder / "starts.npy"))
    num_words, vocabulary = meta["num_words"], folder / WORDS if meta["has_vocabulary"] else None
    if vocabulary is not None:
        check_file(vocabulary, MOST_BYTES, folder)
    for name, digest in meta["files"].items():
        if hash_file(folder / name) != digest:
            raise ValueError(
                f"{folder / name} must have the SHA-256 that meta.json names, and has another: it "
                "was changed, or is of another corpus; save the corpus again"
            )
    _check_entries(starts, words, counts, num_words, folder)
    return Corpus(starts, words, counts, known_words(vocabulary, num_words), num_words)


def _check_entries(
    starts: np.ndarray, words: np.ndarray, counts: np.ndarray, num_words: int, folder: Path
) -> None:
    """Refuse words outside the vocabulary or not in ascending order, and counts of 0."""
    rises = np.ones(len(words), bool)  # one byte an entry, for as long as it is checked
    for first in range(0, len(words), BLOCK):
        block = np.asarray(words[max(0, first - 1) : first + BLOCK])
        if block.max() >= num_words or not np.asarray(counts[first : first + BLOCK]).all():
            raise ValueError(
                f"{folder} must have words below {num_words}, and counts of at least 1, and has "
                f"others in entries {first} to {first + BLOCK - 1}"
            )
        rises[max(1, first) : first + BLOCK] = block[1:] > block[:-1]
    rises[starts[:-1][np.diff(starts) > 0]] = True
    if not rises.all():
        raise ValueError(
            f"words in {folder / 'words.npy'} must ascend within a document, and do not at entry "
            f"{int(np.argmin(rises))}"
        )


def _meta(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} must hold a corpus, and has no {path.name}")
    meta = read_table(path, META_BYTES)[0]
    found = {name: meta.get(name) for name in ("format", "version")}
    if found == {"format": FORMAT, "version": 1}:
        raise ValueError(
            f"{path} is of version 1, which had no SHA-256 of its files; save the corpus again"
        )
    if found != {"format": FORMAT, "version": VERSION}:
        raise ValueError(f"{path} must be of {FORMAT!r}, version {VERSION}, got {found}")
    if meta.pop("sha256", None) != digest_of(json.dumps(meta)):
        raise ValueError(f"{path} must have the SHA-256 that it names: it was changed")
    least = {"num_documents": 1, "num_words": 1, "num_entries": 0, "has_vocabulary": False}
    for name, value in least.items():
        if type(meta.get(name)) is not type(value) or meta[name] < value:
            raise ValueError(
                f"{name} in {path} must be a {type(value).__name__} >= {value}, got "
                f"{meta.get(name)!r:.80}"
            )
    names = [*(f"{name}.npy" for name in ARRAYS), *([WORDS] if meta["has_vocabulary"] else [])]
    if not isinstance(meta.get("files"), dict) or list(meta["files"]) != names:
        raise ValueError(f"files in {path} must name {', '.join(names)}")
    return meta


def _mapped(path: Path, kinds: tuple[str, ...], length: int) -> np.ndarray:
    try:
        check_file(path, MOST_BYTES, path.parent)
        array = np.lib.format.open_memmap(path, mode="r")  # refuses what np.load might unpickle
    except FileNotFoundError as error:
        raise ValueError(f"{path} must be in the folder of a corpus, got none") from error
    except OSError:
        raise
    except Exception as error:  # NumPy reads the header as Python's literals, and checks little
        raise ValueError(
            f"{path} must be a whole .npy file, got one that cannot be read ({error}); it may be "
            "cut short"
        ) from error
    is_whole = array.offset + array.nbytes == path.stat().st_size
    if not is_whole or array.shape != (length,) or array.dtype.name not in kinds:
        raise ValueError(
            f"{path} must have {length} numbers of type {' or '.join(kinds)}, as meta.json says, "
            f"and nothing after them, got type {array.dtype} and shape {array.shape}"
        )
    return array

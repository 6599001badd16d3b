"""A corpus on disk: a folder of arrays that are mapped into memory when it is loaded."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from momentem.checks import check_instance
from momentem.topics._corpus import REMEDY, AnyPath, Corpus, check_starts, known_words

__all__ = ["load", "save"]

FORMAT, VERSION = "momentem corpus", 1


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
    for name in ("starts", "words", "counts"):
        part = folder / f"{name}.npy.part"
        with part.open("wb") as file:
            np.save(file, getattr(corpus, name), allow_pickle=False)
        part.replace(folder / f"{name}.npy")
    if corpus.vocabulary is None:
        (folder / "vocabulary.txt").unlink(missing_ok=True)
    else:
        lines = "".join(f"{word}\n" for word in corpus.vocabulary)
        _write(folder / "vocabulary.txt", lines)
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "num_documents": corpus.num_documents,
        "num_words": corpus.num_words,
        "num_entries": len(corpus.words),
        "has_vocabulary": corpus.vocabulary is not None,
    }
    _write(folder / "meta.json", json.dumps(meta, indent=1) + "\n")


def load(folder: AnyPath) -> Corpus:
    """Return the corpus that `save` wrote, its arrays mapped into memory: sizes and starts are
    checked, words and counts are read when they are used.

    Args:
        folder: where it is.
    """
    folder = Path(folder)
    meta = _meta(folder / "meta.json")
    starts = _mapped(folder / "starts.npy", ("int64",), meta["num_documents"] + 1)
    words = _mapped(folder / "words.npy", ("uint16", "uint32"), meta["num_entries"])
    counts = _mapped(folder / "counts.npy", ("uint16", "uint32"), meta["num_entries"])
    check_starts(starts, meta["num_documents"], meta["num_entries"], str(folder / "starts.npy"))
    vocabulary = folder / "vocabulary.txt" if meta["has_vocabulary"] else None
    num_words = meta["num_words"]
    return Corpus(starts, words, counts, known_words(vocabulary, num_words), num_words)


def _write(path: Path, content: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(content, encoding="utf-8", newline="\n")
    part.replace(path)


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} must be JSON as save writes it, got {error}") from error
    found = {name: meta.get(name) for name in ("format", "version")} if type(meta) is dict else meta
    if found != {"format": FORMAT, "version": VERSION}:
        raise ValueError(f"{path} must be of {FORMAT!r}, version {VERSION}, got {found}")
    least = {"num_documents": 1, "num_words": 1, "num_entries": 0, "has_vocabulary": False}
    for name, value in least.items():
        if type(meta.get(name)) is not type(value) or meta[name] < value:
            raise ValueError(
                f"{name} in {path} must be a {type(value).__name__} >= {value}, got "
                f"{meta.get(name)!r}"
            )
    return meta


def _mapped(path: Path, kinds: tuple[str, ...], length: int) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # refuses what np.load might unpickle
    except FileNotFoundError as error:
        raise ValueError(f"{path} must be in the folder of a corpus, got none") from error
    except (EOFError, ValueError, TypeError) as error:
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

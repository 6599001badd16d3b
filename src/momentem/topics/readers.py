"""Corpora from files and from texts.

Tables are read from .npz, LDA-C and Matrix Market files. Texts are cut into words, and the
commonest words are the vocabulary; new texts are written in the words of a given vocabulary. What
cannot be a corpus is refused: the error names the file and the place in it.
"""

import math
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from momentem.checks import check_count
from momentem.files import open_file
from momentem.topics._corpus import (
    LARGEST,
    AnyPath,
    Corpus,
    Vocabulary,
    check_starts,
    corpus,
    from_entries,
    from_rows,
    imported,
    known_words,
    offsets,
    words_of,
)
from momentem.topics.corpus_files import load
from momentem.topics.limits import Limits, check_limits, decoded, lines_of

__all__ = ["encode", "read", "read_ldac", "read_matrix_market", "read_npz", "read_text"]


def read_npz(
    path: AnyPath, vocabulary: Vocabulary | None = None, limits: Limits | None = None
) -> Corpus:
    """Read a corpus from an .npz file: the arrays data, indices, indptr and shape of a CSR matrix.

    What `scipy.sparse.save_npz` writes of a CSR matrix is such a file. Other arrays are not read.

    Args:
        path: of the file.
        vocabulary: a word for each column, or the path of a file with one word per line.
        limits: what the file may take. Default: `Limits()`.
    """
    path, limits = Path(path), _or_default(limits)
    arrays = _npz_arrays(path, limits)
    kind = arrays.pop("format", np.array("csr")).ravel().astype(str).tolist()
    if kind != ["csr"]:
        raise ValueError(
            f"format in {path} must be csr, got {', '.join(kind)}; save matrix.tocsr() instead"
        )
    for name, array in arrays.items():
        kinds = "biuf" if name == "data" else "iu"
        if array.ndim != 1 or array.dtype.kind not in kinds:
            wanted = "numbers" if name == "data" else "whole numbers"
            raise ValueError(
                f"{name} in {path} must be a list of {wanted}, got an array of type {array.dtype} "
                f"and shape {array.shape}"
            )
    data, words, starts, shape = (arrays[name] for name in ("data", "indices", "indptr", "shape"))
    if shape.size != 2 or shape.min() < 1 or shape[1] > LARGEST:
        raise ValueError(
            f"shape in {path} must be at least one document by one word, and at most {LARGEST} "
            f"words, got {shape.tolist()}"
        )
    num_documents, num_words = shape.tolist()
    limits.check(str(path), num_documents=num_documents, num_words=num_words)
    check_starts(starts, num_documents, len(words), f"indptr in {path}")
    if len(data) != len(words):
        raise ValueError(
            f"data and indices in {path} must have the same length, got {len(data)} and "
            f"{len(words)}"
        )
    outside = np.flatnonzero((words < 0) | (words >= num_words))
    if outside.size:
        raise ValueError(
            f"indices in {path} must lie in [0, {num_words}), got {words[outside[0]]} at entry "
            f"{outside[0]}"
        )
    known = known_words(vocabulary, num_words, limits)
    return from_rows(starts.astype(np.int64), words, data, num_words, known, f"data in {path}")


def read_ldac(
    path: AnyPath,
    num_words: int | None = None,
    vocabulary: Vocabulary | None = None,
    limits: Limits | None = None,
) -> Corpus:
    """Read a corpus from a file of LDA-C: a document is a line "M id:count id:count ...", M pairs.

    Args:
        path: of the file; one that ends in .gz is unpacked.
        num_words: V; if None, that of the vocabulary, or the largest id + 1. Ids start at 0.
        vocabulary: a word for each id, or the path of a file with one word per line.
        limits: what the file may take. Default: `Limits()`.
    """
    path, limits = Path(path), _or_default(limits)
    if num_words is not None:
        check_count(1, num_words=num_words)
    if vocabulary is not None:
        vocabulary = words_of(vocabulary, limits)
        num_words = len(vocabulary) if num_words is None else num_words
    lengths: list[int] = []
    pairs: list[np.ndarray] = []
    for number, line in enumerate(lines_of(path, limits), start=1):
        limits.check(str(path), num_documents=number)
        found = _ldac_pairs(line, f"line {number} of {path}")
        if num_words is not None and len(found) and found[:, 0].max() >= num_words:
            raise ValueError(
                f"line {number} of {path} must have ids below num_words = {num_words}, got "
                f"{found[:, 0].max()}; give the number of words, or the vocabulary, of this file"
            )
        lengths.append(len(found))
        pairs.append(found)
    if not lengths:
        raise ValueError(f"{path} must have at least one line, a document, got none")
    words, values = np.concatenate(pairs).T
    if num_words is None:
        num_words = int(words.max(initial=-1)) + 1
        if not 1 <= num_words <= LARGEST:
            raise ValueError(
                f"{path} must have ids from 0 to {LARGEST - 1}, got {num_words} as the largest id "
                "+ 1; if its documents have no words, give num_words"
            )
        limits.check(f"the largest id + 1 of {path}", num_words=num_words)
    starts = offsets(lengths)
    return from_rows(starts, words, values, num_words, vocabulary, f"counts in {path}")


def read_matrix_market(
    path: AnyPath, vocabulary: Vocabulary | None = None, limits: Limits | None = None
) -> Corpus:
    """Read a corpus from a Matrix Market file, documents as rows: coordinate, integer or real,
    general.

    Args:
        path: of the file; one that ends in .gz is unpacked.
        vocabulary: a word for each column, or the path of a file with one word per line.
        limits: what the file may take. Default: `Limits()`.
    """
    path, limits = Path(path), _or_default(limits)
    lines = lines_of(path, limits)
    banner = next(lines, b"").decode("latin-1")
    kinds = [f"%%matrixmarket matrix coordinate {field} general" for field in ("integer", "real")]
    if " ".join(banner.lower().split()) not in kinds:
        raise ValueError(
            f"line 1 of {path} must be {kinds[0]!r}, or with real, got {banner[:80]!r}; write "
            "the matrix as coordinates, all of them"
        )
    size = next((line for line in lines if line.strip() and not line.startswith(b"%")), b"")
    if not re.fullmatch(rb"\s*\d{1,18}(\s+\d{1,18}){2}\s*", size):
        raise ValueError(
            f"the first line of {path} after the comments must be the numbers of documents, words "
            f"and entries, got {size[:80].decode('latin-1')!r}"
        )
    num_documents, num_words, num_entries = map(int, size.split())
    if num_documents < 1 or not 1 <= num_words <= LARGEST:
        raise ValueError(
            f"{path} must have at least one document by one word, and at most {LARGEST} words, "
            f"got {num_documents} by {num_words}"
        )
    limits.check(str(path), num_documents=num_documents, num_words=num_words)
    entries = _matrix_entries(lines, path)
    if len(entries) != num_entries:
        raise ValueError(
            f"{path} must have the {num_entries} entries of its header, got {len(entries)}; it may "
            "be cut short"
        )
    for name, most in (("document", num_documents), ("word", num_words)):
        outside = np.flatnonzero((entries[name] < 1) | (entries[name] > most))
        if outside.size:
            raise ValueError(
                f"entry {outside[0] + 1} of {path} must have a {name} from 1 to {most}, got "
                f"{entries[name][outside[0]]}"
            )
    return from_entries(
        entries["document"] - 1,
        entries["word"] - 1,
        entries["count"],
        num_documents,
        num_words,
        known_words(vocabulary, num_words, limits),
        f"counts in {path}",
    )


def read_text(
    path_or_lines: AnyPath | Iterable[str],
    max_words: int = 10_000,
    min_documents: int = 2,
    stop_words: str | Sequence[str] | None = "english",
    tokenizer: Callable[[str], Sequence[str]] | None = None,
    limits: Limits | None = None,
) -> Corpus:
    """Make a corpus of texts, in lower case; the vocabulary is what is left of their words, sorted.

    Args:
        path_or_lines: a folder, whose .txt files are the documents in the order of their names; a
            file, whose lines are; or the texts themselves. Files are UTF-8.
        max_words: the vocabulary has this many at most, the commonest.
        min_documents: it has words of this many documents or more.
        stop_words: words to leave out; "english" is scikit-learn's list, None leaves out none.
        tokenizer: from a text to its words; None: sequences of two or more letters or digits.
        limits: what a file or folder may take. Default: `Limits()`.
    """
    check_count(1, max_words=max_words, min_documents=min_documents)
    vectorizer = _vectorizer(
        stop_words, tokenizer, max_features=max_words, min_df=min_documents, dtype=np.int64
    )
    texts = _texts(path_or_lines, _or_default(limits))
    if len(texts) < min_documents:
        raise ValueError(
            f"there must be at least min_documents = {min_documents} texts, got {len(texts)}"
        )
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise ValueError(
            f"the {len(texts)} texts must have words in {min_documents} documents or more that are "
            f"not stop words ({error}); lower min_documents, or give stop_words=None"
        ) from error
    return corpus(counts, tuple(vectorizer.get_feature_names_out()))


def encode(
    texts: AnyPath | Iterable[str],
    vocabulary: Vocabulary,
    stop_words: str | Sequence[str] | None = "english",
    tokenizer: Callable[[str], Sequence[str]] | None = None,
    limits: Limits | None = None,
) -> tuple[Corpus, int]:
    """Return new texts in the words of a vocabulary, and the number of their tokens outside it.

    Stop words that the vocabulary has are kept. The others are left out as `read_text` leaves them
    out, and are not among the tokens outside; stop_words=None counts them there.

    Args:
        texts: a folder, a file or texts, as for `read_text`.
        vocabulary: of another corpus, or the path of a file with one word per line.
        stop_words: as for `read_text`; what was given there.
        tokenizer: as for `read_text`; what was given there.
        limits: as for `read_text`.
    """
    limits = _or_default(limits)
    vocabulary = words_of(vocabulary, limits)
    ids = {word: n for n, word in enumerate(vocabulary)}
    if len(ids) < max(len(vocabulary), 1):
        word, times = (Counter(vocabulary).most_common(1) or [("", 0)])[0]
        raise ValueError(
            f"vocabulary must have at least one word, and none twice, got {word!r} {times} times"
        )
    stopped = _vectorizer(stop_words, tokenizer).get_stop_words()
    analyse = _vectorizer(None, tokenizer).build_analyzer()
    skipped = frozenset() if stopped is None else frozenset(stopped)
    documents, outside = [], 0
    for text in _texts(texts, limits):
        tokens = Counter(analyse(text))
        documents.append({ids[word]: times for word, times in tokens.items() if word in ids})
        outside += sum(
            times for word, times in tokens.items() if word not in ids and word not in skipped
        )
    words = np.array([word for each in documents for word in each], np.int64)
    counts = np.array([times for each in documents for times in each.values()], np.int64)
    starts = offsets([len(each) for each in documents])
    return from_rows(starts, words, counts, len(vocabulary), vocabulary, "texts"), outside


def read(path: AnyPath, limits: Limits | None = None) -> Corpus:
    """Read a corpus from a file or folder, by the reader that its name asks for, with its defaults.

    The file may be a stranger's: it runs no code, and takes no more than the limits.

    Args:
        path: ends in .npz, .ldac, .lda-c, .mtx or .txt, the latter four perhaps with .gz; or is a
            folder, of `corpus_files.save` or of .txt files.
        limits: what a file may take. Default: `Limits()`.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from momentem.topics import read
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "documents.ldac"
        ...     _ = path.write_text("2 0:3 2:1\\n1 1:4\\n")
        ...     read(path).num_tokens
        8
    """
    path = Path(path)
    if path.is_dir():
        return load(path) if (path / "meta.json").exists() else read_text(path, limits=limits)
    readers: dict[str, Callable[..., Corpus]] = {
        ".npz": read_npz,
        ".ldac": read_ldac,
        ".lda-c": read_ldac,
        ".mtx": read_matrix_market,
        ".txt": read_text,
    }
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in readers:
        raise ValueError(
            f"path must be a folder or end in {', '.join(readers)}, got {path}; for other formats "
            "make a table and give it to corpus(counts)"
        )
    return readers[suffix](path, limits=limits)


def _or_default(limits: Limits | None) -> Limits:
    limits = Limits() if limits is None else limits
    check_limits(limits)
    return limits


def _texts(path_or_lines: AnyPath | Iterable[str], limits: Limits) -> list[str]:
    if isinstance(path_or_lines, str | os.PathLike):
        if not os.path.exists(path_or_lines):
            raise FileNotFoundError(
                f"texts must be in a file or folder that exists, got {str(path_or_lines)[:200]!r}; "
                "for one text, give a list of it"
            )
        path = Path(path_or_lines)
        texts = _folder_texts(path, limits) if path.is_dir() else _line_texts(path, limits)
        name = f"{path}, a {'folder of .txt files' if path.is_dir() else 'file of lines'},"
    else:
        texts, name = list(path_or_lines), "texts"
    if not texts:
        raise ValueError(f"{name} must have at least one document, got none")
    for n, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts must be strings, got {text!r:.80} for document {n}")
    return texts


def _folder_texts(folder: Path, limits: Limits) -> list[str]:
    paths, texts, left = sorted(folder.glob("*.txt")), [], limits.num_bytes
    limits.check(str(folder), num_documents=len(paths))
    for path in paths:
        with open_file(path, left, folder) as file:
            content = file.read(left + 1)
        left -= len(content)
        texts.append(decoded(content, str(path)))
    return texts


def _line_texts(path: Path, limits: Limits) -> list[str]:
    texts = []
    for n, line in enumerate(lines_of(path, limits), 1):
        limits.check(str(path), num_documents=n)
        texts.append(decoded(line, f"line {n} of {path}"))
    return texts


def _vectorizer(stop_words: Any, tokenizer: Any, **options: Any) -> Any:
    if tokenizer is not None:
        options["token_pattern"] = None  # it would not be used, and scikit-learn warns of that
    text = imported("sklearn.feature_extraction.text")
    return text.CountVectorizer(stop_words=stop_words, tokenizer=tokenizer, **options)


def _npz_arrays(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    names = ("data", "indices", "indptr", "shape")
    try:
        with open_file(path, limits.num_bytes) as opened, zipfile.ZipFile(opened) as file:
            found = [name.removesuffix(".npy") for name in file.namelist()]
            missing = [name for name in names if name not in found]
            wanted = [name for name in (*names, "format") if name in found and not missing]
            sizes = [file.getinfo(f"{name}.npy").file_size for name in wanted]
            limits.check(str(path), num_bytes=sum(sizes))
            arrays = {name: _npy(file, f"{name}.npy") for name in wanted}
    except FileNotFoundError:
        raise
    except Exception as error:  # of zipfile, five ways to unpack, and NumPy's headers
        raise ValueError(
            f"{path} must be an .npz file of numbers, got one that cannot be read ({error}); it "
            "may be cut short"
        ) from error
    if missing:
        raise ValueError(
            f"{path} must have the arrays {', '.join(names)}, got {', '.join(found)}; "
            "save the table with scipy.sparse.save_npz(path, table.tocsr())"
        )
    return arrays


def _npy(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array of an archive. Its header may not ask for more memory than there are
    bytes."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in read_header:
            raise ValueError(f"{name} has version {version}")
        shape, _, kind = read_header[version](file)
        left = archive.getinfo(name).file_size - file.tell()
    if kind.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    if math.prod(shape) * kind.itemsize != left:
        raise ValueError(f"{name} has {left} bytes for an array of shape {shape}")
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _ldac_pairs(line: bytes, name: str) -> np.ndarray:
    """Return the pairs of id and count of one document."""
    if not re.fullmatch(rb"\s*\d{1,18}(\s+\d{1,18}:\d{1,18})*\s*", line):
        tokens = line.split()[:1] + [
            token for token in line.split()[1:] if not re.fullmatch(rb"\d{1,18}:\d{1,18}", token)
        ]
        raise ValueError(
            f"{name} must be a number of pairs and then id:count pairs of whole numbers, got "
            f"{b' ... '.join(tokens[:2])[:80].decode('latin-1')!r}"
        )
    num, *numbers = map(int, line.replace(b":", b" ").split())
    if 2 * num != len(numbers):
        raise ValueError(
            f"{name} must have as many pairs as its first number says, {num}, got "
            f"{len(numbers) // 2}; it may be cut short"
        )
    return np.array(numbers, np.int64).reshape(num, 2)


def _matrix_entries(lines: Iterator[bytes], path: Path) -> np.ndarray:
    kind = np.dtype([("document", np.int64), ("word", np.int64), ("count", np.float64)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        # NumPy before 2.3 reads 1.5 as the integer 1 and only warns; as an error it is a ValueError
        warnings.filterwarnings("error", category=DeprecationWarning)
        try:
            return np.loadtxt(lines, kind, comments=None, ndmin=1)
        except ValueError as error:
            raise ValueError(
                f"the entries of {path} must be lines of document, word and count, counted from "
                f"the line after the sizes: {error}"
            ) from error

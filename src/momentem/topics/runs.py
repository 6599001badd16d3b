"""A fitted topic model on disk: a folder of arrays, words and numbers, nothing executable."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from momentem.topics.corpus import known_words

__all__ = ["TopicRun", "load", "save"]

FORMAT = "momentem-topics-1"
ARRAYS = ("topics", "weights", "hyper", "iteration", "seconds", "single", "average")


class TopicRun(NamedTuple):
    """Samples of topics and weights, with the words they are about."""

    topics: np.ndarray  # phi, (S, V, K)
    weights: np.ndarray  # r, (S, K)
    hyper: np.ndarray  # (S, 3)
    trace: dict[str, np.ndarray]
    vocabulary: tuple[str, ...] | None
    about: dict[str, Any]  # sampler, seed, numbers of documents and iterations

    @property
    def mean_topics(self) -> np.ndarray:
        """The posterior mean of phi, (V, K). Topics keep their places within one run."""
        return self.topics.mean(axis=0)


def save(run: TopicRun, folder: str | Path) -> None:
    """Writes a run; about.json last, so that a folder with it is whole.

    Args:
        run: what to write.
        folder: made if need be.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"topics": run.topics, "weights": run.weights, "hyper": run.hyper, **run.trace}
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", arrays[name], allow_pickle=False)
    if run.vocabulary is not None:
        (folder / "vocabulary.txt").write_text("\n".join(run.vocabulary) + "\n", encoding="utf-8")
    about = {"format": FORMAT, "shape": list(run.topics.shape), **run.about}
    (folder / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def load(folder: str | Path) -> TopicRun:
    """Reads what `save` wrote.

    Args:
        folder: of a run.
    """
    folder = Path(folder)
    if not (folder / "about.json").is_file():
        raise FileNotFoundError(
            f"{folder} must be a folder with about.json, as written by `momentem topics fit`"
        )
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    if about.get("format") != FORMAT:
        raise ValueError(f"{folder} must have the format {FORMAT}, got {about.get('format')!r}")
    found = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in ARRAYS}
    num, num_words, num_topics = about["shape"]
    expected = {
        "topics": (num, num_words, num_topics),
        "weights": (num, num_topics),
        "hyper": (num, 3),
    }
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise ValueError(
                f"{folder / name}.npy must have shape {shape}, got {found[name].shape}"
            )
    words = folder / "vocabulary.txt"
    vocabulary = known_words(words if words.is_file() else None, num_words)
    topics, weights, hyper = (found.pop(name) for name in expected)
    return TopicRun(topics, weights, hyper, found, vocabulary, about)

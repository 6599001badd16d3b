"""Samples of topics, and the folder that they are kept in.

    topics.json       what the run log does not know: the words, the sampler's name, the sizes of
                      the corpus; written before the first iteration
    manifest.json …   the run log of `momentem.sample(out=…)`
    result.json       perplexity of every sample, and how long the run took; written at the end

No file holds code. A folder without result.json is of a run that was cut off, and can be read.
"""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from momentem.run.health import Troubles
from momentem.run.log.folder import MANIFEST
from momentem.run.log.segment import publish
from momentem.run.log.write import create
from momentem.run.plan import Chunk, Here, Plan, Record
from momentem.sampling import load as load_trace

__all__ = ["PARAMETERS", "TopicRun", "check_about", "join", "load", "make_run", "save", "write"]

FORMAT, OLD_FORMAT = "momentem-topics-2", "momentem-topics-1"
ABOUT, RESULT = "topics.json", "result.json"
PARAMETERS = ("topics", "weights", "hyper")
MEASURES = ("seconds", "single", "average")
COUNTS = ("num_topics", "num_words", "num_documents", "num_tokens", "batch_size", "num_steps")
COUNTS = (*COUNTS, "num_start", "num_warmup", "thin", "seed")


class TopicRun(NamedTuple):
    """Samples of topics and weights, and how they came about."""

    topics: np.ndarray  # phi, (S, V, K)
    weights: np.ndarray  # r, (S, K)
    hyper: np.ndarray  # alpha, gamma, c, (S, 3)
    trace: dict[str, np.ndarray]  # iteration, seconds, single and average perplexity
    num_divergences: int = 0
    seconds_per_iteration: float = math.nan  # compilation and evaluation excepted
    about: dict[str, Any] = {}  # what topics.json holds  # noqa: RUF012
    is_whole: bool = True  # whether all iterations were made

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """Return the words, if they are known."""
        words = self.about.get("vocabulary")
        return None if words is None else tuple(words)

    @property
    def mean_topics(self) -> np.ndarray:
        """Return the posterior mean of phi, (V, K). Topics keep their places within one run."""
        return self.topics.mean(axis=0)


def make_run(
    trace: Any, about: dict[str, Any], measures: dict[str, Any], seconds_per_iteration: float
) -> TopicRun:
    """Return the run that a trace is of.

    Args:
        trace: of one chain.
        about: what topics.json holds.
        measures: seconds, single and average perplexity of its samples, or of the first of them.
        seconds_per_iteration: compilation and evaluation excepted.
    """
    if "posterior" not in trace.children:
        raise ValueError("the run has no samples yet: it was cut off before the first; resume it")
    samples = {name: trace["posterior"][name].values[0] for name in PARAMETERS}
    num, K = len(samples["weights"]), about["num_topics"]
    expected = {"topics": (num, about["num_words"], K), "weights": (num, K), "hyper": (num, 3)}
    for name, shape in expected.items():
        if samples[name].shape != shape:
            raise ValueError(
                f"samples of {name} must have shape {shape}, as {ABOUT} says, got "
                f"{samples[name].shape}"
            )
    found = {"iteration": _iterations(about, num)}
    for name in MEASURES:
        values = np.full(num, np.nan)
        known = np.asarray(measures.get(name, []), np.float64)
        if known.ndim != 1 or len(known) > num:
            raise ValueError(f"{name} must have a number for each of {num} samples, got {known!r}")
        values[: len(known)] = known
        found[name] = values
    attrs = trace.attrs
    num_divergences = attrs["num_divergences"] + attrs["num_warmup_divergences"]
    return TopicRun(
        **samples,
        trace=found,
        num_divergences=int(num_divergences),
        seconds_per_iteration=seconds_per_iteration,
        about=about,
        is_whole=not attrs["is_interrupted"],
    )


def _iterations(about: dict[str, Any], num: int) -> np.ndarray:
    """Return the iterations of samples, the search for a start included."""
    first = about["num_start"] + about["num_warmup"]
    return first + about["thin"] * np.arange(1, num + 1)


def write(folder: Path, about: dict[str, Any], run: TopicRun | None = None) -> None:
    """Write what the log does not know, and at the end what came of the run."""
    _write_json(folder / ABOUT, {"format": FORMAT, **about})
    if run is not None:
        measures: dict[str, Any] = {name: run.trace[name].tolist() for name in MEASURES}
        measures["seconds_per_iteration"] = run.seconds_per_iteration
        _write_json(folder / RESULT, measures)


def save(run: TopicRun, folder: str | os.PathLike[str]) -> None:
    """Write a run that was kept in memory, in the form of one that was written as it went.

    Args:
        run: what to write.
        folder: new or empty.
    """
    folder, about, num = Path(folder), run.about, len(run.weights)
    draws = {name: np.asarray(getattr(run, name)) for name in PARAMETERS}
    forms = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in draws.items()}
    num_draws, num_warmup, thin = num * about["thin"], about["num_warmup"], about["thin"]
    sizes = {"num_draws": num_draws, "num_warmup": num_warmup, "most_draws": num_draws}
    none: dict[str, Any] = {"streamed": (), "dims": None, "coords": None}
    plan = Plan(**sizes, num_chains=1, seed=about["seed"], thin=thin, keep=PARAMETERS, **none)
    log = create(folder, plan, forms, {}, Here(0, False, {}, None), None)
    try:
        stats = {"diverging": np.zeros((num_draws, 1), bool)}
        record = Record({name: x[:, None] for name, x in draws.items()}, stats, {})
        end = Here(num_warmup + num_draws, True, {}, None)
        diverging = Troubles().diverging._replace(times=run.num_divergences)
        troubles = Troubles(diverging=diverging)
        log.extend(Chunk(num_warmup, num_draws, record, None, end, troubles))
    finally:
        log.close()
    write(folder, about, run)


def load(folder: str | os.PathLike[str]) -> TopicRun:
    """Read a run: while it is going, after it, or after a crash.

    Args:
        folder: of a run.
    """
    folder = Path(folder)
    about = _read_about(folder)
    result = _read_json(folder / RESULT) if (folder / RESULT).is_file() else {}
    if not all(isinstance(result.get(name, []), list) for name in MEASURES):
        raise ValueError(f"{folder / RESULT} must hold lists of numbers")
    pace = result.get("seconds_per_iteration", math.nan)
    try:
        return make_run(load_trace(folder), about, result, float(pace))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder} cannot be read as a run of topics: {error}") from error


def check_about(folder: Path, about: dict[str, Any]) -> None:
    """Refuse to go on with a run of other words, sizes or sampler. A run that was cut off before
    its topics.json was there has none to compare."""
    if not (folder / ABOUT).is_file():
        return
    then = _read_about(folder)
    for name, value in about.items():
        if then[name] != value:
            raise ValueError(
                f"{name} must be {then[name]!r:.80}, as in the run that {folder} holds, got "
                f"{value!r:.80}; give the same, or another folder"
            )


def join(runs: Sequence[TopicRun], num_iterations: int) -> TopicRun:
    """Return the samples of several chains, one after the other.

    Args:
        runs: of the same corpus, from other seeds, measured by one Perplexity.
        num_iterations: of each.
    """
    topics, weights, hyper = (
        np.concatenate(each) for each in zip(*(one[:3] for one in runs), strict=True)
    )
    trace = {name: np.concatenate([one.trace[name] for one in runs]) for name in runs[0].trace}
    num_samples = [len(one.weights) for one in runs]
    before = np.cumsum([0.0, *(one.trace["seconds"][-1] for one in runs[:-1])])
    trace["iteration"] += np.repeat(num_iterations * np.arange(len(runs)), num_samples)
    trace["seconds"] += np.repeat(before, num_samples)
    num_divergences = sum(one.num_divergences for one in runs)
    pace = float(np.median([one.seconds_per_iteration for one in runs]))
    return TopicRun(topics, weights, hyper, trace, num_divergences, pace, runs[0].about)


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    if not path.is_file():
        old = folder / "about.json"
        if old.is_file() and _read_json(old).get("format") == OLD_FORMAT:
            raise ValueError(
                f"{folder} has the format {OLD_FORMAT}, which is no longer read; fit again"
            )
        begun = "; its run was cut off before it began: resume it"
        raise FileNotFoundError(
            f"{folder} must be a folder with {ABOUT}, as `momentem topics fit --out` writes it"
            + (begun if (folder / MANIFEST).is_file() else "")
        )
    about = _read_json(path)
    if (found := about.pop("format", None)) != FORMAT:
        raise ValueError(f"{path} must have the format {FORMAT}, got {found!r:.80}")
    for name in COUNTS:
        if type(about.get(name)) is not int or about[name] < 0:
            raise ValueError(f"{name} in {path} must be a whole number, got {about.get(name)!r}")
    if type(about.get("topic_shape")) is not float or type(about.get("sampler")) is not str:
        raise ValueError(f"{path} must have a topic_shape and a sampler")
    words = about.get("vocabulary")
    is_right = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if words is not None and not (is_right and len(words) == about["num_words"]):
        raise ValueError(f"vocabulary in {path} must have {about['num_words']} words")
    return about


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON, got {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a table, got {found!r:.80}")
    return found


def _write_json(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content, indent=1), encoding="utf-8")
    publish(part, path)

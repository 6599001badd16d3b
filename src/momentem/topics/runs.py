"""Samples of topics, and the folder that they are kept in.

    manifest.json …   the run log of `momentem.sample(out=…)`; its manifest has also what the log
                      does not know: the words, the sampler's name, the sizes of the corpus
    result.json       perplexity of every sample, and how long the run took; written at the end

No file holds code. Segments name the SHA-256 of the manifest, so words and samples belong together;
result.json names it too, and has a SHA-256 of its own. A folder without result.json is of a run
that was cut off, and can be read.
"""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from momentem.files import digest_of, publish, read_table
from momentem.run.health import Troubles, warn
from momentem.run.log.folder import MANIFEST
from momentem.run.log.read import Run, open_run
from momentem.run.log.write import create
from momentem.run.plan import Chunk, Here, Plan, Record
from momentem.sampling import load as load_trace

__all__ = [
    "PARAMETERS",
    "TopicRun",
    "check_about",
    "describe",
    "join",
    "load",
    "make_run",
    "save",
    "write",
]

ABOUT, FORMAT = "topics", 3  # of the part of the manifest
RESULT, RESULT_BYTES = "result.json", 2**26
OLD_FILES = {"about.json": "momentem-topics-1", "topics.json": "momentem-topics-2"}
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
    about: dict[str, Any] = {}  # what the manifest holds  # noqa: RUF012
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
        about: what the manifest holds.
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
                f"samples of {name} must have shape {shape}, as {MANIFEST} says, got "
                f"{samples[name].shape}"
            )
    found = {"iteration": _iterations(about, num)}
    for name in MEASURES:
        values = np.full(num, np.nan)
        known = np.asarray(measures.get(name, []), np.float64)  # None is NaN
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


def describe(about: dict[str, Any]) -> dict[str, Any]:
    """Return what a run of topics adds to the manifest of its log."""
    return {ABOUT: {"format": FORMAT, **about}}


def write(folder: Path, run: TopicRun) -> None:
    """Write what came of a run."""
    measures = {name: [_or_none(x) for x in run.trace[name].tolist()] for name in MEASURES}
    pace = _or_none(run.seconds_per_iteration)
    found = {"manifest": open_run(folder).digest, **measures, "seconds_per_iteration": pace}
    text = json.dumps(found, allow_nan=False)
    publish([json.dumps({"sha256": digest_of(text), **found}).encode()], folder / RESULT)


def _or_none(number: float) -> float | None:
    """Return the number if it is finite. JSON has neither NaN nor infinities."""
    return number if math.isfinite(number) else None


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
    log = create(folder, plan, forms, {}, Here(0, False, {}, None), None, describe(about))
    try:
        stats = {"diverging": np.zeros((num_draws, 1), bool)}
        record = Record({name: x[:, None] for name, x in draws.items()}, stats, {})
        end = Here(num_warmup + num_draws, True, {}, None)
        diverging = Troubles().diverging._replace(times=run.num_divergences)
        troubles = Troubles(diverging=diverging)
        log.extend(Chunk(num_warmup, num_draws, record, None, end, troubles))
    finally:
        log.close()
    write(folder, run)


def load(folder: str | os.PathLike[str]) -> TopicRun:
    """Read a run: while it is going, after it, or after a crash.

    Args:
        folder: of a run.
    """
    folder = Path(folder)
    log = _open(folder)
    about = _about(log)
    result = _result(log)
    try:
        run = make_run(load_trace(folder), about, result, result["seconds_per_iteration"])
        _check_samples(run)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder} cannot be read as a run of topics: {error}") from error
    if run.is_whole and "single" not in result:
        warn(
            f"{folder} has all samples, and no {RESULT}: perplexities are not known; fit again "
            "with resume=True, or --resume, which measures the samples and draws none"
        )
    return run


def check_about(folder: Path, about: dict[str, Any]) -> None:
    """Refuse to go on with a run of other words, sizes or sampler."""
    then = _about(_open(folder))
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


def _open(folder: Path) -> Run:
    for name, form in OLD_FILES.items():
        if (folder / name).is_file():
            raise ValueError(f"{folder} has the format {form}, which is no longer read; fit again")
    if not (folder / MANIFEST).exists():
        raise FileNotFoundError(
            f"{folder} must be a folder with {MANIFEST}, as `momentem topics fit --out` writes it"
        )
    return open_run(folder)


def _about(log: Run) -> dict[str, Any]:
    """Return what the manifest says of a run of topics, checked."""
    path, about = log.folder / MANIFEST, log.manifest.get(ABOUT)
    if not isinstance(about, dict):
        raise ValueError(f"{log.folder} must hold a run of topics, and holds another run")
    about = dict(about)
    if (found := about.pop("format", None)) != FORMAT:
        raise ValueError(f"topics in {path} must have the format {FORMAT}, got {found!r:.80}")
    for name in COUNTS:
        if type(about.get(name)) is not int or about[name] < 0:
            raise ValueError(
                f"{name} in {path} must be a whole number, got {about.get(name)!r:.80}"
            )
    if type(about.get("topic_shape")) is not float or type(about.get("sampler")) is not str:
        raise ValueError(f"{path} must have a topic_shape and a sampler")
    words = about.setdefault("vocabulary", None)
    is_right = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if words is not None and not (is_right and len(words) == about["num_words"]):
        raise ValueError(f"vocabulary in {path} must have {about['num_words']} words")
    return about


def _result(log: Run) -> dict[str, Any]:
    """Return what came of a run, or nothing of a run that was cut off."""
    path = log.folder / RESULT
    if not path.exists():
        return {"seconds_per_iteration": math.nan}
    found = read_table(path, RESULT_BYTES)[0]
    digest = found.pop("sha256", None)
    if digest != digest_of(json.dumps(found)):
        raise ValueError(f"{path} does not have the SHA-256 that it names: it was changed")
    if found.get("manifest") != log.digest:
        raise ValueError(f"{path} is of another run than {log.folder / MANIFEST}")
    for name in (*MEASURES, "seconds_per_iteration"):
        numbers = found.get(name, []) if name in MEASURES else [found.get(name)]
        if not isinstance(numbers, list) or any(
            type(x) not in (float, type(None)) for x in numbers
        ):
            raise ValueError(f"{name} in {path} must be numbers")
    pace = found["seconds_per_iteration"]
    return found | {"seconds_per_iteration": math.nan if pace is None else pace}


def _check_samples(run: TopicRun) -> None:
    """Refuse samples that are no topics: each column of phi sums to 1."""
    for name in PARAMETERS:
        values = getattr(run, name)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"samples of {name} must be finite and >= 0, and are not")
    if not np.allclose(run.topics.sum(axis=1), 1, atol=1e-3):
        raise ValueError("the words of every topic must have probabilities that sum to 1")

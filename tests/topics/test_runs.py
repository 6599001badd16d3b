"""A run of topics on disk: written as it goes, resumed to the same bits, never overwritten."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostile_files
import momentem
from momentem import files
from momentem.pytrees import Static, find_node
from momentem.run import loop
from momentem.run.log import write as log
from momentem.run.log.segment import write_segment
from momentem.targets.streams import Window, set_clock, turn_window
from momentem.topics import TopicModel, corpus, runs, split_words
from momentem.topics._fit import fit
from momentem.topics.documents import DocumentStream
from momentem.topics.evaluation import Perplexity
from momentem.topics.local import fixed_point
from momentem.topics.minibatches import layout
from momentem.topics.model import make_model, minibatch_target

from corpora import random_corpus

pytestmark = pytest.mark.usefixtures("quick_compilation")

WORDS = tuple(f"word{i}" for i in range(12))
SIZES = {"num_steps": 2, "num_warmup": 30, "num_draws": 30, "thin": 5, "batch_size": 10}


def documents(num=40, seed=0):
    counts = np.random.default_rng(seed).poisson(1.0, size=(num, 12))
    return corpus(counts, WORDS)


def run(out=None, resume=False, seed=0, sampler="sghmc", watch=None, **sizes):
    """A short run, by the local step that compiles soonest."""
    train = documents()
    measure = Perplexity(*split_words(documents(seed=1)))
    options = SIZES | sizes
    model = make_model(12, 3, frequencies=train.frequencies())
    return fit(
        model,
        train,
        sampler,
        **options,
        seed=seed,
        local=fixed_point(2),
        measure=measure,
        watch=watch,
        out=out,
        resume=resume,
    )


def assert_same(found, wanted):
    for name in ("topics", "weights", "hyper"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    for name in ("iteration", "single", "average"):
        np.testing.assert_array_equal(found.trace[name], wanted.trace[name])


# --- windows -----------------------------------------------------------------------------------


class Forgetful(DocumentStream):
    """A stream whose windows follow from what was read before, not from their number."""

    def __init__(self, *given):
        super().__init__(*given, hold=4)
        self.rng = np.random.default_rng(0)

    def read(self, index):
        return super().read(int(self.rng.integers(1000)))


def make_stream(kind=DocumentStream, seed=0):
    train = random_corpus()
    return kind(train, layout(train, 5), 3, (seed,), 4)


def test_a_window_is_the_same_whenever_it_is_read():
    forth, back = make_stream(), make_stream()
    windows = {index: forth.rows(index) for index in (0, 1, 2)}
    for index in (2, 0):
        jax.tree.map(np.testing.assert_array_equal, back.rows(index), windows[index])
    assert np.any(windows[0].words != windows[1].words)
    assert np.any(make_stream(seed=1).rows(0).words != windows[0].words)
    forth.close()
    jax.tree.map(np.testing.assert_array_equal, forth.rows(1), windows[1])
    forth.close()
    back.close()
    assert forth._reader is None


def test_every_iteration_has_its_own_minibatches():
    """Those of its window and its place in it, for the target and for whatever holds it."""
    stream = make_stream()
    model = make_model(60, 2)
    start = jnp.zeros(model.dim)
    target = minibatch_target(model, fixed_point(1), stream.open(), jnp.ones(10), start, 0.1)
    window = find_node(Window, target)
    for iteration in range(10):
        turned = set_clock(turn_window(target, window, iteration), iteration)
        found, keys = turned.batches(jax.random.key(0), Static(3))
        expected = jax.tree.map(lambda leaf, i=iteration: leaf[i % 4], stream.rows(iteration // 4))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert len(keys) == 3
    stream.close()


# --- thinning ----------------------------------------------------------------------------------


@pytest.fixture
def thinned_on_the_device(monkeypatch):
    """As only large positions are; programs that were compiled for small ones do not fit."""

    def thin():
        monkeypatch.setattr(loop, "LARGE", 1)
        jax.clear_caches()

    yield thin
    jax.clear_caches()


@pytest.mark.validate
def test_samples_are_the_same_if_they_are_thinned_on_the_device(thinned_on_the_device):
    on_the_host = run()
    thinned_on_the_device()
    assert_same(run(), on_the_host)


def test_statistics_and_troubles_are_of_all_iterations(thinned_on_the_device):
    target = momentem.density(lambda x: -jnp.cosh(3 * x), 0.0)
    sampler = momentem.hmc(target, 1.0, 5)

    def sample():
        return momentem.sample(target, sampler, 64, 22, thin=7, progress=False)

    on_the_host = sample()
    thinned_on_the_device()
    found = sample()
    assert found.attrs["num_divergences"] == on_the_host.attrs["num_divergences"] > 10
    for group in on_the_host.children:
        for name, array in on_the_host[group].data_vars.items():
            np.testing.assert_array_equal(found[group][name].values, array.values)


# --- resuming ----------------------------------------------------------------------------------


@pytest.fixture
def small_segments(monkeypatch):
    """A segment for every few iterations."""
    monkeypatch.setattr(loop, "CHUNK_ITERATIONS", 4)
    monkeypatch.setattr(log, "SEGMENT_SECONDS", 0.0)


def cut(folder, num_segments, to):
    """A copy of a run that was lost after so many segments."""
    shutil.copytree(folder, to)
    (to / "result.json").unlink()
    segments = sorted(to.glob("*.safetensors"))
    assert len(segments) > num_segments
    for path in segments[num_segments:]:
        path.unlink()
    return to


def test_a_run_that_was_cut_off_is_resumed_to_the_same_bits(small_segments, tmp_path):
    """At its start, in warm-up, and after some samples, whose perplexities are computed again."""
    whole, written, seen = run(), run(tmp_path / "run"), []
    assert_same(written, whole)
    for kept in (1, 4, 12):
        folder = cut(tmp_path / "run", kept, tmp_path / f"cut{kept}")
        seen.clear()
        found = run(folder, resume=True, watch=lambda *what: seen.append(what))
        assert_same(found, whole)
        assert_same(runs.load(folder), whole)
    assert 0 < len(seen) < 6


def test_a_stream_that_ignores_its_place_is_noticed(small_segments, monkeypatch, tmp_path):
    monkeypatch.setattr("momentem.topics._fit.DocumentStream", Forgetful)
    whole = run(tmp_path / "run")
    found = run(cut(tmp_path / "run", 12, tmp_path / "cut"), resume=True)
    assert np.any(found.topics != whole.topics)


def test_another_run_is_not_gone_on_with(tmp_path):
    run(tmp_path / "run")
    with pytest.raises(ValueError, match="sampler must be 'sghmc', as in the run"):
        run(tmp_path / "run", resume=True, sampler="sgnht")
    with pytest.raises(ValueError, match="seed must be 0, as in the run"):
        run(tmp_path / "run", resume=True, seed=1)
    more = run(tmp_path / "run", resume=True, num_draws=40)
    assert len(more.weights) == 8
    assert np.isfinite(more.trace["average"]).all()


def test_a_run_is_never_overwritten(tmp_path):
    run(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(FileExistsError, match="new or empty folder"):
        run(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


COMMAND = """
import sys, jax
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
from momentem import cli
from momentem.run import loop
from momentem.run.log import write
loop.CHUNK_ITERATIONS, write.SEGMENT_SECONDS = 4, 0.0
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.validate
def test_kill_9(tmp_path):
    """The same command with --resume goes on to the bits of a run that nobody touched."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (40, 12)) + 1
    lines = [" ".join(f"{i}:{n}" for i, n in enumerate(row)) for row in counts]
    (tmp_path / "documents.ldac").write_text("".join(f"12 {line}\n" for line in lines))
    options = ["--topics", "3", "--sampler", "sghmc", "--warmup", "40", "--draws", "400"]
    options += ["--thin", "20", "--steps", "2", "--batch", "10", "--held-out", "0.2"]

    def start(name, *more):
        given = ["topics", "fit", str(tmp_path / "documents.ldac"), *options]
        given += ["--out", str(tmp_path / name), *more]
        environment = os.environ | {"JAX_ENABLE_X64": "1"}
        script = [sys.executable, "-W", "ignore", "-c", COMMAND, str(tmp_path / "programs"), *given]
        return subprocess.Popen(
            script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(process):
        said = process.communicate()
        assert process.returncode == 0, said[1]

    finish(start("whole"))
    process = start("killed")
    while len(list((tmp_path / "killed").glob("0000*"))) < 30:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    left = momentem.load(tmp_path / "killed")
    assert left.attrs["is_interrupted"]
    refused = start("killed")
    assert "new or empty folder" in refused.communicate()[1]
    assert refused.returncode == 1
    finish(start("killed", "--resume"))
    whole, resumed = (momentem.load(tmp_path / name) for name in ("whole", "killed"))
    for group in whole.children:
        for name, array in whole[group].data_vars.items():
            np.testing.assert_array_equal(resumed[group][name].values, array.values)
    assert_same(runs.load(tmp_path / "killed"), runs.load(tmp_path / "whole"))
    assert (tmp_path / "killed" / "perplexity.png").is_file()


# --- saving and loading ------------------------------------------------------------------------


@pytest.mark.validate
def test_saved_and_loaded(tmp_path):
    fitted = TopicModel(3, "sghmc", 20, 20, 10, num_steps=2, batch_size=10).fit(documents())
    fitted.save(tmp_path / "run")
    loaded = TopicModel.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.components_, fitted.components_)
    assert loaded.run_.vocabulary[3] == "word3"
    assert (loaded.num_warmup, loaded.num_draws, loaded.thin) == (20, 20, 10)
    np.testing.assert_array_equal(loaded.run_.trace["iteration"], [30, 40])
    with pytest.raises(FileExistsError, match="new or empty folder"):
        fitted.save(tmp_path / "run")


def with_about(folder, **changes):
    """Change what the manifest says of topics, and whatever names its hash, as an attacker can."""
    path = Path(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["topics"] |= changes
    path.write_text(json.dumps(manifest))
    previous = files.hash_file(path)
    for segment in hostile_files.segments(Path(folder)):
        arrays, about = hostile_files.opened(segment)
        segment.unlink()
        about = {name: about[name] for name in about if name != "number"} | {"previous": previous}
        previous = write_segment(Path(folder), int(segment.name[:8]), arrays, about).digest
    (Path(folder) / "result.json").unlink()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_topics": 4}, "must have shape"),
        ({"num_words": 11, "vocabulary": None}, "must have shape"),
        ({"vocabulary": ["one"]}, "must have 12 words"),
        ({"thin": "5"}, "thin in .* must be a whole number"),
        ({"format": 9}, "must have the format 3"),
    ],
)
def test_what_does_not_fit_is_refused(small_run, changes, message):
    with_about(small_run)
    TopicModel.load(small_run)
    (small_run / "result.json").write_text("{}")
    with_about(small_run, **changes)
    with pytest.raises(ValueError, match=message):
        TopicModel.load(small_run)


def test_words_belong_to_their_samples(small_run):
    """A changed word, and the words of another run: neither is taken in silence."""
    path = small_run / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"word3", b"ward3"))
    with pytest.raises(ValueError, match="is of another run than"):
        TopicModel.load(small_run)
    (small_run / "result.json").unlink()
    with (
        pytest.warns(momentem.SamplingWarning, match="does not follow the manifest"),
        pytest.raises(ValueError, match="no samples"),
    ):
        TopicModel.load(small_run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("[", "[1", 1), "JSON|SHA-256"),
        (lambda text: text.replace("null", "0.5", 1).replace("0.", "1.", 3), "SHA-256"),
        (lambda text: text.replace('"manifest": "', '"manifest": "0', 1), "SHA-256"),
        (lambda text: "[]", "table"),
        (lambda text: "[" * 10**5, "too deep"),
        (lambda text: '{"single": Infinity}', "Infinity"),
    ],
)
def test_a_changed_result_is_refused(small_run, change, message):
    path = small_run / "result.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        TopicModel.load(small_run)


def test_the_result_of_another_run_is_refused(small_run, tmp_path):
    run(tmp_path / "other", num_draws=10, seed=3)
    shutil.copy(tmp_path / "other/result.json", small_run)
    with pytest.raises(ValueError, match="is of another run"):
        TopicModel.load(small_run)


@pytest.mark.parametrize("bad", [np.nan, -1.0, 2.0])
def test_samples_that_are_no_topics_are_refused(small_run, tmp_path, bad):
    found = TopicModel.load(small_run).run_
    topics = found.topics.copy()
    topics[0, 0, 0] = bad
    runs.save(found._replace(topics=topics), tmp_path / "bad")
    with pytest.raises(ValueError, match="cannot be read as a run of topics"):
        TopicModel.load(tmp_path / "bad")


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_search(tmp_path, monkeypatch):
    def searched(*arguments):
        raise AssertionError("it searched for a start first")

    def read_only(path, *arguments, **options):
        raise PermissionError(13, "Permission denied")  # whoever runs the tests may be root

    monkeypatch.setattr("momentem.topics._fit._find_start", searched)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="out must be a folder"):
        run(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(Path, "touch", read_only)
    with pytest.raises(OSError, match="out must be a folder that can be written to"):
        run(tmp_path / "folder")


def test_ctrl_c_keeps_the_samples_so_far(tmp_path, small_segments, monkeypatch):
    whole, advance, calls = run(), loop._advance, []

    def interrupted(*arguments, **options):
        calls.append(0)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return advance(*arguments, **options)

    monkeypatch.setattr(loop, "_advance", interrupted)
    found = run(tmp_path / "run")
    assert not found.is_whole
    num = len(found.weights)
    assert 0 < num < len(whole.weights)
    np.testing.assert_array_equal(found.topics, whole.topics[:num])
    monkeypatch.undo()
    assert_same(run(tmp_path / "run", resume=True), whole)


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(folder, num_draws=10)
    return folder


@pytest.fixture
def small_run(one_run, tmp_path):
    """A copy that may be spoilt."""
    (tmp_path / "copy").mkdir()
    for path in one_run.iterdir():
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "copy"


def test_an_unfinished_run_is_read(small_run):
    (small_run / "result.json").unlink()
    with pytest.warns(momentem.SamplingWarning, match=r"has all samples, and no result.json"):
        found = TopicModel.load(small_run).run_
    assert np.isnan(found.trace["single"]).all()
    assert found.topics.shape == (2, 12, 3)


def test_no_run_and_an_old_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"manifest\.json"):
        TopicModel.load(tmp_path)
    (tmp_path / "topics.json").write_text('{"format": "momentem-topics-2"}')
    with pytest.raises(ValueError, match="momentem-topics-2, which is no longer read"):
        TopicModel.load(tmp_path)


def test_another_kind_of_run_is_refused(tmp_path):
    target = momentem.density(lambda x: -0.5 * x**2, 0.0)
    momentem.sample(target, momentem.hmc(target, 1.0, 2), 10, 0, 2, out=tmp_path / "run")
    with pytest.raises(ValueError, match="must hold a run of topics, and holds another run"):
        TopicModel.load(tmp_path / "run")

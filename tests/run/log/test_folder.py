"""The folder of a run: what killed processes leave in it, who may write to it, what is lost."""

import json
import os
import shutil
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import crash_points
import hostile_files
import momentem as mt
from momentem import files
from momentem.cli import main
from momentem.run.log import folder as folders
from momentem.run.log import segment as segments

pytestmark = pytest.mark.usefixtures("quick_compilation")

TARGET = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), {"x": jnp.zeros(2)})
SAMPLER = mt.hmc(TARGET, 0.5, 3)


def run(out, num_draws=20, resume=False):
    return mt.sample(TARGET, SAMPLER, num_draws, 10, 2, out=out, resume=resume)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A first state, warm-up, and two segments of draws."""
    folder = tmp_path_factory.mktemp("runs") / "good"
    run(folder, 10)
    mt.resume(folder, TARGET, SAMPLER, 20)
    return folder


@pytest.fixture
def copy(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "copy"))


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_full", [False, True], ids=["crash", "full disk"])
def test_a_run_goes_on_from_every_point(tmp_path, is_full):
    num_points, bad = crash_points.trials("hmc", tmp_path, is_full)
    assert num_points > 35
    assert not bad


@pytest.mark.validate
@pytest.mark.parametrize("name", ["default", "minibatches", "stream", "topics"])
def test_every_kind_of_run_goes_on_from_its_points(tmp_path, name):
    num_points, bad = crash_points.trials(name, tmp_path, every=5)
    assert num_points > 10
    assert not bad


def test_a_file_that_is_written_in_place_would_be_noticed(tmp_path, monkeypatch):
    def in_place(pieces, path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        for piece in pieces:
            os.write(descriptor, piece)
        os.close(descriptor)

    monkeypatch.setattr(segments, "publish", in_place)
    _, bad = crash_points.trials("hmc", tmp_path)
    assert any("write" in point for point in bad)


@pytest.mark.parametrize("name", [files.TEMPORARY, ".tmpAbC123"])
def test_what_a_killed_process_left_is_cleared(tmp_path, good, name):
    """The second name is one of safetensors, which wrote the files of earlier versions."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_bytes(b"half of a segment")
    trace = run(tmp_path / "run", resume=True)
    assert trace["posterior"].equals(mt.load(good)["posterior"])
    (tmp_path / "run" / name).write_bytes(b"half of a segment")
    run(tmp_path / "run", 30, resume=True)
    assert not (tmp_path / "run" / name).exists()


def test_other_files_are_never_cleared(tmp_path):
    for name in (files.TEMPORARY, "thesis.tex"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match="new or empty folder"):
        run(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["thesis.tex", files.TEMPORARY]


# --- two processes -----------------------------------------------------------------------------


def paused(monkeypatch, other):
    """Another process does its work between this one's first look and its lock."""
    lock = folders.lock

    def late(folder):
        monkeypatch.setattr(folders, "lock", lock)
        other()
        return lock(folder)

    monkeypatch.setattr(folders, "lock", late)


def test_a_process_that_was_paused_does_not_write_over_another_run(tmp_path, monkeypatch, good):
    paused(monkeypatch, lambda: run(tmp_path / "run"))
    with pytest.raises(FileExistsError, match="new or empty folder"):
        mt.sample(TARGET, SAMPLER, 20, 10, 2, seed=1, out=tmp_path / "run")
    assert mt.load(tmp_path / "run")["posterior"].equals(mt.load(good)["posterior"])


def test_a_process_that_was_paused_deletes_no_run_that_began_since(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    paused(monkeypatch, lambda: run(tmp_path / "run"))
    folders.forget_unbegun(tmp_path / "run")
    assert mt.load(tmp_path / "run")["posterior"].sizes["draw"] == 20


# --- a manifest that is lost -------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["lost", "cut", "changed"])
def test_a_manifest_is_written_again(copy, good, harm, capsys):
    path = copy / "manifest.json"
    content = path.read_bytes()
    harms = {"lost": path.unlink, "cut": lambda: path.write_bytes(content[:100])}
    harms["changed"] = lambda: path.write_bytes(content.replace(b'"seed": 0', b'"seed": 1'))
    harms[harm]()
    if harm != "changed":
        with pytest.raises((FileNotFoundError, ValueError), match=f"momentem repair {copy}"):
            mt.load(copy)
    else:
        with pytest.warns(mt.SamplingWarning, match="momentem repair"):
            mt.load(copy)
    assert main(["repair", str(copy)]) == 0
    assert "5 whole segments" in capsys.readouterr().out
    assert path.read_bytes() == content
    assert mt.load(copy)["posterior"].equals(mt.load(good)["posterior"])
    mt.resume(copy, TARGET, SAMPLER, 30)


def test_what_cannot_be_repaired(copy, tmp_path, capsys):
    shutil.copytree(Path(__file__).parent / "previous/run-1", tmp_path / "old")
    (tmp_path / "old/manifest.json").unlink()
    assert main(["repair", str(tmp_path / "old")]) == 1
    assert "it is of an earlier version" in capsys.readouterr().err
    hostile_files.segments(copy)[0].unlink()
    assert main(["repair", str(copy)]) == 1
    assert "segment 0 is missing" in capsys.readouterr().err
    assert main(["repair", str(tmp_path / "none")]) == 1


# --- odd files ---------------------------------------------------------------------------------


def told_by_load(folder):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mt.load(folder)
    return " ".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400])
def test_numbers_that_are_none_are_refused(copy, number):
    def change(arrays, about):
        about["troubles"] = [["@", 0, 0, ""]] * 3

    real = json.dumps
    hostile_files.json.dumps = lambda about: real(about).replace('"@"', number)
    try:
        hostile_files.rewritten(change)(copy, None)
    finally:
        hostile_files.json.dumps = real
    assert "is not whole" in told_by_load(copy)


def test_a_sparse_file_is_not_read(copy):
    with open(hostile_files.segments(copy)[-1], "r+b") as file:
        file.truncate(30 * 2**30)
    assert "at most 4294967296 bytes" in told_by_load(copy)


def test_a_segment_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "MOST_BYTES", 500)
    with pytest.raises(ValueError, match="a segment must have at most 500 bytes"):
        run(tmp_path / "run")


def test_labels_that_json_has_not_are_refused(tmp_path):
    labels = {"dims": {"x": ["t"]}, "coords": {"t": [0.0, np.inf]}}
    with pytest.raises(TypeError, match="coords must be finite numbers or strings"):
        mt.sample(TARGET, SAMPLER, 20, 10, 2, out=tmp_path / "run", **labels)


# --- earlier versions --------------------------------------------------------------------------


def test_a_log_of_the_version_before_is_read():
    """Written with thin=2, keep=["x"] and labels, before segments held a copy of the manifest."""
    trace = mt.load(Path(__file__).parent / "previous/run-1")
    assert trace["posterior"]["x"].sizes == {"chain": 2, "draw": 20, "side": 2}
    assert list(trace["posterior"]["side"].values) == ["left", "right"]
    assert float(trace["posterior"]["x"].sum()) == pytest.approx(-10.506570816040039)
    assert float(trace["posterior_mean"]["tau"].sum()) == pytest.approx(2.278949499130249)
    assert list(trace["em"]["iteration"].values) == [19, 39]
    assert not trace.attrs["is_interrupted"]

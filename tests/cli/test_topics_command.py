"""`momentem topics`: from a corpus on disk to topics, and shares of new documents."""

import numpy as np
import pytest

from momentem import cli, load
from momentem.topics import runs

pytest.importorskip("sklearn")
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on texts about ships and about bread."""
    folder = tmp_path_factory.mktemp("topics")
    rng = np.random.default_rng(0)
    subjects = [["ship", "sail", "harbour", "anchor"], ["bread", "flour", "oven", "yeast"]]
    lines = [" ".join(rng.choice(subjects[i % 2], size=12)) for i in range(40)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = folder / "run"
    arguments = ["topics", "fit", str(folder / "texts.txt"), "--topics", "2", "--out", str(out)]
    arguments += ["--warmup", "120", "--draws", "40", "--thin", "20", "--steps", "3"]
    assert cli.main([*arguments, "--batch", "10", "--held-out", "0.2"]) == 0
    return folder, out


def test_fit_leaves_samples_and_a_picture(run):
    _, out = run
    assert (out / "result.json").is_file()
    assert (out / "perplexity.png").stat().st_size > 5_000
    assert load(out)["posterior"]["topics"].shape == (1, 2, 8, 2)


def test_a_run_is_not_overwritten(run, capsys):
    folder, out = run
    before = {path: path.read_bytes() for path in out.iterdir()}
    arguments = ["topics", "fit", str(folder / "texts.txt"), "--topics", "2", "--out", str(out)]
    assert cli.main(arguments) == 1
    assert "new or empty folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_an_explicit_zero_is_refused(run, tmp_path, capsys):
    folder, _ = run
    arguments = ["topics", "fit", str(folder / "texts.txt"), "--out", str(tmp_path / "run")]
    assert cli.main([*arguments, "--batch", "0"]) == 1
    assert "batch_size must be a whole number >= 2, got 0" in capsys.readouterr().err


def test_show(run, capsys):
    _, out = run
    assert cli.main(["topics", "show", str(out), "--words", "4"]) == 0
    printed = capsys.readouterr().out
    assert "bread" in printed
    assert "perplexity" in printed


def test_words_with_markup_and_control_characters_are_shown_as_they_are(tmp_path, capsys):
    words = ["[/nope]", "[red]", "\x1b]0;title\x07", "plain"]
    topics = np.full((2, 4, 2), 0.25)
    about = {name: 1 for name in runs.COUNTS} | {"num_words": 4, "num_topics": 2, "thin": 1}
    about |= {"sampler": "[bold]", "topic_shape": 0.05, "vocabulary": words}
    trace = {name: np.full(2, np.nan) for name in ("iteration", "seconds", "single", "average")}
    run = runs.TopicRun(topics, np.ones((2, 2)), np.ones((2, 3)), trace, about=about)
    runs.save(run, tmp_path / "run")
    assert cli.main(["topics", "show", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert all(word in printed for word in ("[/nope]", "[red]", "[bold]", "title"))


def test_transform_tells_words_it_does_not_know(run, capsys):
    folder, out = run
    (folder / "new.txt").write_text("bread oven flour zeppelin\nship anchor\n", encoding="utf-8")
    assert cli.main(["topics", "transform", str(out), str(folder / "new.txt")]) == 0
    told = capsys.readouterr()
    rows = [[float(x) for x in line.split(",")] for line in told.out.splitlines()[1:]]
    np.testing.assert_allclose(np.sum(rows, axis=1), 1, rtol=1e-4)
    assert "1 words are outside the vocabulary" in told.err
    shares = np.array(rows)
    assert np.argmax(shares[0]) != np.argmax(shares[1])


def test_bad_input_is_an_exit_code(run, tmp_path, capsys):
    assert cli.main(["topics", "show", str(tmp_path)]) == 1
    assert "manifest.json" in capsys.readouterr().err
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    assert cli.main(["topics", "fit", str(tmp_path / "cut.npz"), "--out", str(tmp_path)]) == 1
    assert "cut.npz" in capsys.readouterr().err

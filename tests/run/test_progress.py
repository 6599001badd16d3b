"""Progress: what it says, and where."""

import json
import sys

import numpy as np
import pytest

from momentem.run import progress
from momentem.run.progress import Progress, describe_progress


def test_what_is_left_is_a_bound_in_warm_up():
    text = describe_progress("warm-up", 100, 2000, 10.0, 3)
    assert text == "warm-up: 100 of 2,000 iterations, at most 3:10 left, 3 divergences"
    assert ", 0:10 left" in describe_progress("draws", 1900, 2000, 10.0, 0)
    assert "left" not in describe_progress("draws", 2000, 2000, 10.0, 0)


def test_compilation_says_nothing_of_the_speed(monkeypatch):
    """100 iterations with compilation in 60 s, then 100 in 1 s: 18 s are left for 1,800."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = Progress(2000, False)
    now[0] = 60.0
    bar.advance(100, "warm-up", 0)
    now[0] = 61.0
    bar.advance(100, "warm-up", 0)
    assert "at most 0:18 left" in bar._text()


def test_a_line_now_and_then_where_output_is_piped(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(1000, True) as bar:
        for second in range(100):
            now[0] = float(second)
            bar.advance(10, "draws", 0)
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_how_it_goes_so_far(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PIPE_SECONDS", -1.0)
    rng = np.random.default_rng(0)
    with Progress(1000, True) as bar:
        bar.observe({"x": rng.normal(size=(500, 4))}, {"acceptance_rate": np.full((500, 4), 0.8)})
        bar.advance(500, "draws", 2)
    line = capsys.readouterr().err
    assert "2 divergences, acceptance 0.80, R-hat 1.0" in line
    assert "ESS " in line


def test_silence_if_it_is_not_wanted(capsys):
    with Progress(10, False) as bar:
        bar.advance(10, "draws", 0)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_progress_and_ends_clean(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = """
import jax.numpy as jnp, momentem as mt
target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(2))
trace = mt.sample(target, mt.hmc(target, 0.8, 2), num_draws=2000, num_warmup=10)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    spec = tmp_path / "kernels" / "here"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.joinpath("kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "here", "language": "python"})
    )
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="here")
    client.create_kernel_manager()
    client.km.kernel_spec_manager.kernel_dirs.insert(0, str(spec.parent))
    client.execute()
    shown = str(notebook.cells[0].outputs)
    assert "draws: 2,010 of 2,010 iterations" in shown
    assert not [out for out in notebook.cells[0].outputs if out["output_type"] == "stream"]

"""`momentem ls | show | export | report | watch | sample | resume | completion`."""

import subprocess
import urllib.error
import urllib.request
from threading import Thread

import numpy as np
import pytest

from momentem import __version__, cli, load
from momentem.cli.watch import open_server

from browser import look_at, visit

MODEL = """
import jax.numpy as jnp
import momentem as mt

target = mt.density(log_density, {"x": jnp.zeros(2)})
sampler = mt.hmc(target, step_size=0.8, num_steps=2)
"""
DENSITY = "def log_density(p):\n    return -0.5 * (p['x'] @ p['x'])\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "model.py").write_text(DENSITY + MODEL)
    arguments = ["sample", str(folder / "model.py"), "--out", str(folder / "first")]
    assert cli.main([*arguments, "--draws", "300", "--warmup", "10", "--seed", "3"]) == 0
    return folder


def test_sample_and_resume(run, capsys):
    assert load(run / "first").attrs["seed"] == 3
    assert load(run / "first")["posterior"].sizes["draw"] == 300
    arguments = ["resume", str(run / "first"), str(run / "model.py"), "--draws", "400"]
    assert cli.main(arguments) == 0
    assert load(run / "first")["posterior"].sizes["draw"] == 400
    assert "ESS at least" in capsys.readouterr().out


def test_ls_and_show(run, capsys):
    assert cli.main(["ls", str(run)]) == 0
    assert "first" in capsys.readouterr().out
    assert cli.main(["show", str(run / "first"), "--rows", "1"]) == 0
    shown = capsys.readouterr().out
    assert "x[0]" in shown
    assert "x[1]" not in shown
    assert "R-hat is at most" in shown


def test_export_and_report(run, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["export", str(run / "first"), str(run / "first.nc")]) == 0
    expected = load(run / "first")["posterior"]["x"].values
    np.testing.assert_array_equal(load(run / "first.nc")["posterior"]["x"], expected)
    assert cli.main(["report", str(run / "first.nc"), "--out", str(run / "page.html")]) == 0
    assert "<html" in (run / "page.html").read_text()


def test_watch_ends_with_the_run(run, capsys):
    assert cli.main(["watch", str(run / "first")]) == 0
    line = capsys.readouterr().out
    assert "R-hat" in line
    assert "acceptance" in line
    assert line.rstrip().endswith("whole")


def test_the_page_is_for_this_machine_only(run):
    pytest.importorskip("matplotlib")
    with open_server(run / "first", 0, 5.0) as server:
        assert server.server_address[0] == "127.0.0.1"
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert b"momentem report" in urllib.request.urlopen(address, timeout=60).read()
        other = urllib.request.Request(address, headers={"Host": "example.org"})
        for request, code in ((other, 403), (f"{address}/etc/passwd", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            assert caught.value.code == code
            caught.value.close()
        server.shutdown()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_browser_reads_the_page_of_a_run(run, is_whole, tmp_path, monkeypatch):
    """One that is going loads itself again."""
    pytest.importorskip("matplotlib")
    trace = load(run / "first")
    trace.attrs["is_interrupted"] = int(not is_whole)
    monkeypatch.setattr("momentem.cli.watch.load_quietly", lambda folder: trace)
    with open_server(run / "first", 0, 5.0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        text = urllib.request.urlopen(address, timeout=60).read().decode()
        shown = visit(address, tmp_path) if is_whole else ""
        server.shutdown()
    assert ('http-equiv="refresh"' in text) != is_whole
    assert ("4 chains of" in shown) == is_whole
    for found in look_at(text, tmp_path):
        assert found["errors"] == []
        assert found["drawn"] == found["pictures"] > 0
        assert found["width"] <= found["asked"]


CASES = {
    "no run": (["show", "none"], "holds no run"),
    "no folder": (["ls", "none"], "folder with runs"),
    "no model": (["sample", "none.py", "--out", "x"], "must be a Python file"),
    "another end": (["export", "first", "first.txt"], "must end in"),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_messages(case, run, capsys, monkeypatch):
    monkeypatch.chdir(run)
    arguments, message = CASES[case]
    assert cli.main(arguments) == 1
    assert message in capsys.readouterr().err


def test_a_file_without_target(tmp_path, capsys):
    (tmp_path / "model.py").write_text("x = 1")
    assert cli.main(["sample", str(tmp_path / "model.py"), "--out", str(tmp_path / "r")]) == 1
    assert "must define `target`" in capsys.readouterr().err


def test_version_help_and_completion(capsys):
    for arguments, wanted in ((["--version"], __version__), (["--help"], "momentem show runs/f")):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert wanted in capsys.readouterr().out
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "\nCOMP_WORDS=(momentem sh); COMP_CWORD=1; _momentem; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", script + asked], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["show"]


def test_reproduce_asks_for_matplotlib_first(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setattr("momentem.cli.reproduce.reproduce", lambda *args: 1 / 0)
    assert cli.main(["reproduce", "table1", "--out", "tables"]) == 1
    assert "momentem[plots]" in capsys.readouterr().err

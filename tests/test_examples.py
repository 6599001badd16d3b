"""The four users' examples do the whole workflow, in at most 30 lines of code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
USERS = {
    "numpyro_user": "line",
    "pymc_user": "line",
    "own_density": "line",
    "blackjax_user": "line",
    "many_rows": "inputs",
    "network": "network",
    "topics": "topics",
}
ARGUMENTS = {"many_rows": ["20000"]}
NEEDS = {"pymc_user": "pymc", "blackjax_user": "blackjax"}


def lines_of_code(name):
    """Lines with a statement or a part of one, without the docstring and the imports."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    found = set()
    for node in tree.body[1:]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            inner = (n for n in ast.walk(node) if hasattr(n, "lineno"))
            found |= {n.lineno for n in inner}
    return len(found)


@pytest.mark.parametrize("name", USERS)
def test_an_example_is_short(name):
    assert lines_of_code(name) <= 30


@pytest.mark.validate
@pytest.mark.parametrize("name", USERS)
def test_an_example_runs(name, tmp_path):
    for package in ("matplotlib", NEEDS.get(name, "jax")):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *ARGUMENTS.get(name, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout
    stem = USERS[name]
    if "mt.plot" in (EXAMPLES / f"{name}.py").read_text():
        assert (tmp_path / f"{stem}.png").stat().st_size > 10_000
    if "mt.report" in (EXAMPLES / f"{name}.py").read_text():
        assert (tmp_path / f"{stem}.html").stat().st_size < 5_000_000
    assert [path for path in tmp_path.rglob("manifest.json")]


def test_every_script_is_on_the_page():
    """With what it printed, which benchmarks/start_page.py writes."""
    page = (EXAMPLES.parent / "docs/start.md").read_text()
    for name in USERS:
        assert f"examples/{name}.py" in page
        assert f"docs/output/{name}.txt" in page
        assert (EXAMPLES.parent / f"docs/output/{name}.txt").stat().st_size

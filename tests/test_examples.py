"""The four users' examples do the whole workflow, in at most 30 lines of code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
USERS = {"numpyro_user": [], "pymc_user": [], "own_density": [], "many_rows": ["20000"]}
PICTURES = {"many_rows": "inputs"}


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
    for package in (
        "matplotlib",
        {"pymc_user": "pymc", "own_density": "blackjax"}.get(name, "jax"),
    ):
        pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *USERS[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    stem = PICTURES.get(name, "line")
    assert (tmp_path / f"{stem}.png").stat().st_size > 10_000
    assert (tmp_path / f"{stem}.html").stat().st_size < 5_000_000

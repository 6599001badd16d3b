"""The README's example runs, and every public name has its place in the API page."""

import re
from pathlib import Path

import pytest

import momentem as mt

from processes import run_alone

ROOT = Path(__file__).parent.parent
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # examples compile for longer than they run


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def test_the_readme_s_example_runs():
    (example,) = blocks("README.md")
    assert "weights[2]" in run_alone(example, **QUICK)


@pytest.mark.validate
@pytest.mark.parametrize("page", ["guide", "durable", "index"])
def test_a_page_s_examples_run(page, tmp_path):
    begin = f"import os; os.chdir({str(tmp_path)!r})\n"
    run_alone(begin + "\n".join(blocks(f"docs/{page}.md")), **QUICK)


def test_every_public_name_is_on_the_api_page():
    page = (ROOT / "docs/api.md").read_text()
    modules = {"m_steps", "e_steps", "schedules", "kernels", "testing", "constraints"}
    modules |= {"metrics", "fixed_points", "riemannian"}
    names = [name for name in mt.__all__ if name not in modules]
    names += [name for m in modules - {"constraints"} for name in getattr(mt, m).__all__]
    missing = [name for name in names if not re.search(rf"\b{name}\b", page)]
    assert not missing


def test_the_scripts_on_the_pages_are_there():
    """As blocks: on one line, Ruff would take the mark for Python and format it away."""
    pages = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    files = re.findall(r"^--8<--\n(.+)\n--8<--$", "\n".join(pages.values()), re.MULTILINE)
    assert len(files) >= 4
    assert all((ROOT / name).is_file() for name in files)
    assert not [path for path, text in pages.items() if "8 < --" in text]

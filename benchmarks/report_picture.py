"""Makes docs/report.png: the report of examples/numpyro_user.py, as a browser shows it."""

import runpy
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
from browser import photograph  # noqa: E402  # pyright: ignore[reportMissingImports]

with tempfile.TemporaryDirectory() as folder, chdir(folder):
    runpy.run_path(str(ROOT / "examples/numpyro_user.py"))
    photograph(Path("line.html").read_text(), Path("picture.png").resolve(), 1200, 1000)
    (ROOT / "docs/report.png").write_bytes(Path("picture.png").read_bytes())

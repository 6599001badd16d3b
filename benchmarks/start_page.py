"""Runs the scripts in examples/ and keeps what they print, for the page Get started: docs/output/.

python benchmarks/start_page.py [NAME …]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARGUMENTS = {"many_rows": ["100000"]}
PICTURES = {"numpyro_user": "line.png"}
NAMES = ["numpyro_user", "pymc_user", "own_density", "blackjax_user"]
NAMES += ["many_rows", "network", "topics"]

for name in sys.argv[1:] or NAMES:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / f"examples/{name}.py"), *ARGUMENTS.get(name, [])]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"COLUMNS": "120"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        (ROOT / f"docs/output/{name}.txt").write_text(done.stdout)
        if name in PICTURES:
            picture = Path(folder) / PICTURES[name]
            (ROOT / f"docs/output/{name}.png").write_bytes(picture.read_bytes())

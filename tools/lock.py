"""Write the lock of the development environment: every distribution, its version and SHA-256.

    python tools/lock.py                     keeps the versions of the lock where it can
    python tools/lock.py --upgrade ruff      takes the newest version of some
    python tools/lock.py --upgrade all       takes the newest versions of all

pip chooses the versions, of wheels alone, and reports the SHA-256 that the index names. The hashes
are of the wheels for the platform and Python that this runs on. No index is written down: pip's own
settings say where it looks.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import canonicalize_name

from pins import LOCK, declared, read_lock

HEADER = """\
# The development environment, for {system} and Python {python}: all that .[dev] needs, with the
# SHA-256 of each wheel. pip installs nothing else. Written by `make lock`; do not edit.
"""


def resolve(kept: list[str]) -> list[dict]:
    """Return what pip would install into an empty environment, given versions to keep."""
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder) / "kept.txt", Path(folder) / "report.json"
        constraints.write_text("\n".join(kept))
        options = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "install", *options, "--report", str(report)]
        wanted = sorted({str(requirement) for requirement in declared(["dev"])})
        subprocess.run([*command, "--constraint", str(constraints), *wanted], check=True)
        return json.loads(report.read_text())["install"]


def main() -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="append", default=[], metavar="NAME")
    upgraded = parser.parse_args().upgrade
    old = {} if "all" in upgraded else read_lock()
    kept = [f"{name}=={pin.version}" for name, pin in old.items() if name not in upgraded]
    lines = []
    for item in resolve(kept):
        name = canonicalize_name(item["metadata"]["name"])
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        version = item["metadata"]["version"]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest}\n")
    system = f"{platform.system()} {platform.machine()}"
    python = ".".join(platform.python_version_tuple()[:2])
    LOCK.write_text(HEADER.format(system=system, python=python) + "".join(sorted(lines)))
    print(f"{len(lines)} distributions in {LOCK.name}")


if __name__ == "__main__":
    main()

"""Check that the lock, pyproject.toml and this environment agree. It needs no network.

    python tools/check_lock.py

Every line of the lock is a version with a SHA-256, and names no index. All that the project
declares is pinned to a version that it allows, with all that those need. Nothing else is pinned.
What is installed has the versions of the lock.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from pins import LOCK, Pin, closure, declared, read_lock


def disagreements(pins: dict[str, Pin]) -> Iterator[str]:
    """Yield where the pins and what the project declares disagree."""
    wanted = closure(declared(["dev"]))
    for name, requirements in sorted(wanted.items()):
        if name not in pins:
            yield f"{requirements[0]} is needed, and is not pinned"
            continue
        for requirement in requirements:
            if not requirement.specifier.contains(pins[name].version, prereleases=True):
                yield f"{name} is pinned to {pins[name].version}, and {requirement} is needed"
    for name in pins:
        if name not in wanted:
            yield f"{name} is pinned, and nothing needs it"


def differences(pins: dict[str, Pin]) -> Iterator[str]:
    """Yield what is installed in another version than the pinned one, or not at all."""
    for name, pin in pins.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            yield f"{name} is pinned, and not installed: run `make clean` once"
            continue
        if Version(found) != Version(pin.version):
            yield f"{name} is pinned to {pin.version}, and {found} is installed: run `make clean`"


if __name__ == "__main__":
    pins = read_lock()
    found = list(disagreements(pins))
    for problem in [*found, *differences(pins)]:
        print(f"{LOCK.name}: {problem}", file=sys.stderr)
    if found:
        print("Write it again with `make lock`.", file=sys.stderr)
    sys.exit(bool(found) or any(differences(pins)))

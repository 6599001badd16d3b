"""Read the lock of the development environment, and what the project declares."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"([a-z0-9-]+)==([A-Za-z0-9.!+_-]+)((?: --hash=sha256:[0-9a-f]{64})+)")


class Pin(NamedTuple):
    """One version of a distribution, and the SHA-256 of its files."""

    version: str
    hashes: tuple[str, ...]


def read_lock(text: str | None = None) -> dict[str, Pin]:
    """Return the pins by name. Refuse lines that are anything else, such as the address of an
    index."""
    pins = {}
    text = LOCK.read_text() if text is None else text
    for line in re.sub(r" *\\\n *", " ", text).splitlines():
        if line.startswith("#") or not line.strip():
            continue
        found = PIN.fullmatch(line.strip())
        if found is None or found[1] in pins:
            raise ValueError(
                f"{LOCK.name} must have one line name==version --hash=sha256:… per distribution, "
                f"got {line!r:.80}; write it again with `make lock`"
            )
        hashes = tuple(each.removeprefix("--hash=sha256:") for each in found[3].split())
        pins[found[1]] = Pin(found[2], hashes)
    return pins


def declared(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what the project needs with some extras, and with the extras that these name."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            yield from declared(requirement.extras)
        else:
            yield requirement


def needed(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what an installed distribution needs here, with the extras that are asked for."""
    try:
        lines = distribution(requirement.name).requires or []
    except PackageNotFoundError:
        return
    for each in map(Requirement, lines):
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        if each.marker is None or any(map(each.marker.evaluate, environments)):
            yield each


def closure(requirements: Iterable[Requirement]) -> dict[str, list[Requirement]]:
    """Return all that is needed, by name, with the requirements on each."""
    found: dict[str, list[Requirement]] = {}
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) not in seen:
            seen.add(str(requirement))
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
            waiting += needed(requirement)
    return found

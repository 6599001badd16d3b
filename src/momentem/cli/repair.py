"""`momentem repair`: write the manifest of a run again from its segments."""

import argparse
from pathlib import Path
from typing import Any

from momentem.run.log.repair import repair

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    parser = commands.add_parser("repair", help="write a run's lost manifest again")
    parser.add_argument("folder", help="of a run whose manifest.json is missing or damaged")
    parser.set_defaults(run=_repair)


def _repair(given: argparse.Namespace) -> None:
    for run in repair(Path(given.folder)):
        fault = "" if run.fault is None else f"; {run.fault}"
        print(f"{run.folder}: {len(run.segments)} whole segments{fault}")

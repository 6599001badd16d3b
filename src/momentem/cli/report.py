"""`momentem report`: a run as one HTML file.

momentem report runs/first                      writes runs/first.html
momentem report runs/first --out page.html
"""

import argparse
from pathlib import Path
from typing import Any

from momentem.cli.runs import load_quietly
from momentem.predictive import report

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    parser = commands.add_parser("report", help="write a run as one HTML file, with pictures")
    parser.add_argument("folder", metavar="RUN", help="written by sample(out=…), or a .nc file")
    parser.add_argument("--out", metavar="FILE", help="default: beside the run, with .html")
    parser.set_defaults(run=_report)


def _report(given: argparse.Namespace) -> None:
    folder = Path(given.folder)
    file = Path(given.out) if given.out else folder.with_name(f"{folder.resolve().name}.html")
    print(report(load_quietly(folder), file))

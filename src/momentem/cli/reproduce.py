"""`momentem reproduce`: make the paper's tables again."""

import argparse
from typing import Any

from momentem.reproduce.tables import TABLES, reproduce
from momentem.run.figures import new_figure

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    tables = commands.add_parser("reproduce", help="make the paper's tables again")
    tables.add_argument("table", choices=[*TABLES, "all"], help="all is the first three")
    tables.add_argument(
        "--quick", action="store_true", help="three seeds and a tenth of the iterations"
    )
    tables.add_argument("--out", metavar="DIR", help="write Markdown, CSV and pictures there")
    tables.add_argument("--seed", type=int, default=0)
    tables.set_defaults(run=_reproduce)


def _reproduce(given: argparse.Namespace) -> None:
    if given.out is not None:
        new_figure()  # what is missing is said now, and not after hours
    names = [name for name in TABLES if name != "table4"]
    for name in names if given.table == "all" else [given.table]:
        reproduce(name, given.quick, given.out, given.seed)

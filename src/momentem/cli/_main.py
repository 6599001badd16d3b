"""The command line.

momentem reproduce table1 --quick --out tables
momentem topics fit corpus.npz --topics 100 --out run
momentem launch --processes 2 -- script.py
"""

import argparse
import sys
from collections.abc import Sequence

import jax

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code.

    Args:
        arguments: as typed after `momentem`; None is those of the process.
    """
    from momentem.devices import launch
    from momentem.reproduce.tables import TABLES
    from momentem.topics import commands as topics

    parser = argparse.ArgumentParser("momentem", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    tables = commands.add_parser("reproduce", help="make the paper's tables again")
    tables.add_argument("table", choices=[*TABLES, "all"], help="all is the first three")
    tables.add_argument(
        "--quick", action="store_true", help="three seeds and a tenth of the iterations"
    )
    tables.add_argument("--out", metavar="DIR", help="write Markdown, CSV and pictures there")
    tables.add_argument("--seed", type=int, default=0)
    tables.set_defaults(run=_reproduce)
    topics.add_parser(commands)
    launch.add_parser(commands)
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        given.run(given)
    except (ValueError, OSError, ImportError) as error:
        print(f"momentem: {error}", file=sys.stderr)
        return 1
    return 0


def _reproduce(given: argparse.Namespace) -> None:
    from momentem.reproduce.tables import reproduce

    for name in ("table1", "table2", "table3") if given.table == "all" else [given.table]:
        reproduce(name, given.quick, given.out, given.seed)

"""The command line.

momentem sample model.py --out runs/first       a Python file that defines `target`
momentem ls runs                                the runs below a folder
momentem show runs/first                        summary, and whether to trust it
momentem report runs/first                      a page with pictures, as one HTML file
momentem watch runs/first                       progress of a run that is going
momentem resume runs/first model.py             go on after a crash, or for more draws
momentem export runs/first first.nc             NetCDF, Zarr or Parquet
momentem topics fit corpus.npz --topics 100 --out run
momentem reproduce table1 --quick --out tables
momentem launch --processes 2 -- script.py
momentem repair runs/first                      a run log that has lost its manifest
"""

import argparse
import sys
from collections.abc import Sequence

import jax

from momentem._version import __version__
from momentem.cli import (
    completion,
    launch,
    repair,
    report,
    reproduce,
    runs,
    sampling,
    topics,
    watch,
)

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    Args:
        arguments: as typed after `momentem`. Default: those of the process.
    """
    parser = argparse.ArgumentParser(
        "momentem",
        description="Bayesian sampling with Hamiltonian dynamics whose masses are learnt.",
        epilog=f"examples:\n\n{(__doc__ or '').partition('.')[2].strip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"momentem {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in (
        sampling,
        runs,
        report,
        watch,
        repair,
        reproduce,
        topics,
        launch,
        completion,
    ):
        command.add_parser(commands)
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        given.run(given)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"momentem: {error}", file=sys.stderr)
        return 1
    return 0

"""The command line.

momentem reproduce table1 --quick --out tables
momentem topics fit corpus.npz --topics 100 --out run
momentem launch --processes 2 -- script.py
momentem repair run
"""

import argparse
import sys
from collections.abc import Sequence

import jax

from momentem.cli import launch, repair, reproduce, topics

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    Args:
        arguments: as typed after `momentem`. Default: those of the process.
    """
    parser = argparse.ArgumentParser("momentem", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in (reproduce, topics, launch, repair):
        command.add_parser(commands)
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        given.run(given)
    except (ValueError, OSError, ImportError) as error:
        print(f"momentem: {error}", file=sys.stderr)
        return 1
    return 0

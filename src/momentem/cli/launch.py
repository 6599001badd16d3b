"""`momentem launch`: run a script in several processes.

momentem launch --processes 2 -- script.py          starts two, and watches over them
srun momentem launch -- script.py                   is one of those that Slurm has started
"""

import argparse
import os
from typing import Any

from momentem.checks import check_positive
from momentem.devices.agreement import TIMEOUT
from momentem.devices.launch import join_cluster, launch_processes

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to those of `momentem`."""
    parser = commands.add_parser("launch", help="run a script in several processes")
    parser.add_argument(
        "--processes", type=int, help="how many to start here; without it, join those of a cluster"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        help=f"seconds that a process may wait for the others ({TIMEOUT:g})",
    )
    parser.add_argument("script", help="a Python file, which every process runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parser.set_defaults(run=_launch)


def _launch(given: argparse.Namespace) -> None:
    check_positive(timeout=given.timeout)
    if not os.path.isfile(given.script):
        raise FileNotFoundError(f"script must be a Python file, got {given.script}")
    script = [given.script, *given.arguments]
    if given.processes is None:
        join_cluster(script, given.timeout)
    else:
        launch_processes(script, given.processes, given.timeout)

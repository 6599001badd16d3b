"""Run a script in several processes of this machine, or as one of a cluster's processes.

    momentem launch --processes 2 -- script.py          starts two processes and watches them
    srun momentem launch -- script.py                   is one of the processes started by Slurm

The first command starts `python -m momentem.devices.worker` for every process. If a process fails,
the others cannot continue, and are ended, too. The same command then resumes from the newest
segments if the script samples with `resume=True`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from momentem.checks import check_count
from momentem.devices.agreement import STALLED, TIMEOUT, TIMEOUT_VARIABLE

__all__ = ["join_cluster", "launch_processes"]

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LOOKS = 0.05  # seconds between checks of the processes
LOOPBACK = "127.0.0.1"
WORKER = "momentem.devices.worker"


def launch_processes(script: Sequence[str], processes: int, timeout: float = TIMEOUT) -> None:
    """Run a script in several processes of this machine, and wait until all have ended.

    Args:
        script: a Python file and its arguments.
        processes: number of processes.
        timeout: seconds that a process may wait for the others: to start, in a collective, to end.

    Raises:
        ChildProcessError: if a process failed. The others are then ended.
    """
    check_count(1, processes=processes)
    address, children = f"{LOOPBACK}:{_free_port()}", []
    with _signals_raise():
        try:
            for i in range(processes):
                member = [
                    sys.executable,
                    "-m",
                    "momentem.devices.worker",
                    f"{address}/{i}/{processes}",
                ]
                # the pipe closes when this process ends for any reason, and then the children end
                child = subprocess.Popen(
                    [*member, *script],
                    stdin=subprocess.PIPE,
                    env=_environment(timeout),
                    process_group=0,  # Ctrl-C goes to this process only
                )
                children.append(child)
            while not _is_over(children):
                time.sleep(LOOKS)
        finally:
            _end(children)


def join_cluster(script: Sequence[str], timeout: float = TIMEOUT) -> None:
    """Replace this process by one of a cluster's processes, and run a script in it.

    Args:
        script: a Python file and its arguments.
        timeout: as for `launch_processes`.
    """
    command = [sys.executable, "-m", WORKER, "cluster", *script]
    os.execve(sys.executable, command, _environment(timeout))


def _environment(timeout: float) -> dict[str, str]:
    return os.environ | {TIMEOUT_VARIABLE: str(timeout)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Raise an exception at SIGTERM and SIGINT, so that the children are ended first."""

    def leave(number: int, frame: object) -> None:
        raise ChildProcessError(f"ended by {signal.Signals(number).name}, with all processes")

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_over(children: list[subprocess.Popen]) -> bool:
    """Return whether all processes have ended. Raise an error if one has failed."""
    codes = {i: child.poll() for i, child in enumerate(children)}
    if bad := {i: code for i, code in codes.items() if code}:
        ends = ", ".join(f"process {i} {_describe_exit(code)}" for i, code in bad.items())
        stuck = [str(i) for i, code in codes.items() if code is None]
        if set(bad.values()) == {STALLED} and stuck:
            ends = f"process {', '.join(stuck)} did not answer in time: {ends}"
        raise ChildProcessError(
            f"{ends}, and the others were ended; the same command resumes from the newest segments "
            "if the script samples with out=… and resume=True"
        )
    return all(code == 0 for code in codes.values())


def _describe_exit(code: int) -> str:
    return f"ended with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


def _end(children: list[subprocess.Popen]) -> None:
    """Terminate the processes that still run, and kill those that do not end: stopped and stuck
    processes do not react to SIGTERM."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + GRACE
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for child in children:
        if child.stdin is not None:
            child.stdin.close()

"""One process of several: joins the others, then runs a script as Python would.

    python -m momentem.devices.worker 127.0.0.1:4711/0/2 script.py …   process 0 of 2 here
    python -m momentem.devices.worker cluster script.py …              as Slurm has set it up

A process that fails ends at once: at an ordinary exit JAX would wait for the others, who wait for
this one.
"""

import math
import os
import runpy
import sys
import threading
import traceback
from typing import Any

import jax

from momentem.devices.agreement import TIMEOUT, TIMEOUT_VARIABLE

__all__ = ["main"]


def main(place: str, script: str, arguments: list[str]) -> None:
    """Joins, runs the script, and leaves with the others.

    Args:
        place: "address:port/process/processes", or "cluster".
        script: a Python file.
        arguments: of the script.
    """
    try:
        _join(place)
        sys.argv = [script, *arguments]
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        if leaving.code not in (None, 0):
            _leave(leaving.code if isinstance(leaving.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        _leave(1)
    jax.distributed.shutdown()


def _join(place: str) -> None:
    # SIGTERM is to end a process: JAX would take it for a notice, and go on
    jax.config.update("jax_enable_preemption_service", False)
    seconds = math.ceil(float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT)))
    limits: dict[str, Any] = {
        "initialization_timeout": seconds,
        "heartbeat_timeout_seconds": seconds,
        "shutdown_timeout_seconds": seconds,
    }
    if place == "cluster":
        jax.distributed.initialize(**limits)
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    address, process, processes = place.split("/")
    jax.distributed.initialize(
        address,
        int(processes),
        int(process),
        coordinator_bind_address=address,  # JAX's own choice is every interface of the machine
        cluster_detection_method="deactivate",
        **limits,
    )


def _end_with_parent() -> None:
    """`momentem launch` holds the other end of standard input for as long as it lives."""
    while os.read(0, 1):  # not by Python's buffer, whose lock would be held when Python ends
        pass
    os._exit(1)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

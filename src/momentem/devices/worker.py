"""One of several processes: it joins the others, then runs a script as Python would.

    python -m momentem.devices.worker 127.0.0.1:4711/0/2 script.py …   process 0 of 2, this machine
    python -m momentem.devices.worker cluster script.py …              as set up by Slurm

A process that fails ends at once. At an ordinary exit JAX would wait for the other processes, which
wait for this one.
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
    """Join the other processes, run the script, and exit with them.

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
    # SIGTERM must end the process: JAX would treat it as a notice of preemption and continue
    jax.config.update("jax_enable_preemption_service", False)
    seconds = math.ceil(float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT)))
    limits: dict[str, Any] = {
        "initialization_timeout": seconds,
        # JAX would end the healthy processes by SIGABRT at the moment when they end themselves
        "heartbeat_timeout_seconds": 2 * seconds + 30,
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
        coordinator_bind_address=address,  # JAX would bind all interfaces of the machine
        cluster_detection_method="deactivate",
        **limits,
    )


def _end_with_parent() -> None:
    """End this process when standard input closes: `momentem launch` holds its other end."""
    while os.read(0, 1):  # unbuffered, because the lock of Python's buffer would be held at exit
        pass
    os._exit(1)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

"""Scripts in a process with a main thread, a memory and a JAX configuration of its own."""

import os
import subprocess
import sys


def run_alone(script, *, timeout=600, **environment):
    """What the script prints; fails with what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        timeout=timeout,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

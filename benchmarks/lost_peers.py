"""Runs of several processes that lose one: a script that samples, and functions that harm it.

    momentem launch --processes 2 -- benchmarks/lost_peers.py FOLDER      begins, or resumes

There are two processes of two virtual devices each, as a mesh of two by two. A segment is published
for every chunk, so that the processes are often at different segments when one is lost.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import momentem as mt
from kills import log_likelihood, log_prior, prepare, sha
from momentem.run.log import write as store

NUM_WARMUP, NUM_DRAWS, NUM_CHAINS = 60, 100, 4
STUCK = "LOST_PEERS_STUCK"  # seconds that process 1 sleeps for at a draw


def regression(mesh, **options):
    data = np.random.default_rng(0).normal(size=(201, 4))  # odd: rows must be filled up
    initial = {"w": jnp.zeros(3), "tau": 1.0}
    constraints = {"tau": mt.constraints.positive}
    return mt.dataset(log_prior, log_likelihood, data, initial, constraints, mesh=mesh, **options)


def gradients(target):
    """Return gradients of the log density at some places, as every process computes them."""
    positions = np.random.default_rng(1).normal(size=(NUM_CHAINS, 4))
    everywhere = jax.NamedSharding(mt.mesh(), jax.P())
    gradient = jax.jit(lambda t, x: jax.vmap(jax.grad(t.logdensity))(x), out_shardings=everywhere)
    return np.asarray(gradient(target, positions))


def worker(folder):
    prepare(folder)
    here, extend = jax.process_index(), store.RunLog.extend

    def told(self, chunk):
        print(f"at {here} {os.getpid()} {chunk.here.iteration}", flush=True)
        if here and chunk.here.is_frozen:
            time.sleep(float(os.environ.get(STUCK, 0)))
        extend(self, chunk)

    store.RunLog.extend = told
    mesh = mt.mesh(data=min(2, jax.device_count()))
    target = regression(mesh)
    found = gradients(regression(mt.mesh(data=jax.device_count())))  # rows in both processes
    np.save(Path(folder).parent / f"gradients-{here}.npy", found)
    sampler = mt.hmc_em(target, 0.1, 5, e_step=mt.e_steps.constant(60))
    sizes = (NUM_DRAWS, NUM_WARMUP, NUM_CHAINS)
    trace = mt.sample(target, sampler, *sizes, mesh=mesh, out=folder, resume=True)
    print(f"sha {here} {sha(trace)}", flush=True)


class Ended(NamedTuple):
    """How a launch went."""

    code: int
    seconds: float  # from the harm to its end
    text: str

    def shas(self):
        """Return the hashes of what each process drew, as each reports it."""
        return dict(re.findall(r"^sha (\d) (\w+)", self.text, re.MULTILINE))


def launched(folder, harm=None, timeout=30.0, at=NUM_WARMUP + 20, stuck=0.0):
    """Launch the script, and call `harm(pids)` when the processes have reached iteration `at`.
    `pids` has the ids of the processes, and that of the launcher last."""
    command = "import sys; from momentem.cli import main; sys.exit(main(sys.argv[1:]))"
    flags = "--xla_force_host_platform_device_count=2"
    options = ["--processes", "2", "--timeout", str(timeout), "--", __file__, str(folder)]
    process: Any = subprocess.Popen(
        [sys.executable, "-c", command, "launch", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", STUCK: str(stuck)},
    )
    guard = threading.Timer(600, process.kill)
    guard.start()
    pids: dict[int, int] = {}
    lines, begun = [], time.perf_counter()
    for line in process.stdout:
        lines.append(line)
        if found := re.match(r"at (\d) (\d+) (\d+)", line):
            index, pid, iteration = map(int, found.groups())
            pids[index] = pid
            if harm is not None and iteration >= at and len(pids) == 2:
                begun = time.perf_counter()
                harm([pids[0], pids[1], process.pid])
                harm = None
    process.stdout.close()
    code = process.wait()
    guard.cancel()
    return Ended(code, time.perf_counter() - begun, "".join(lines))


def are_gone(pids):
    """Return whether none of the processes is left."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


HARMS = {
    "worker killed": lambda pids: os.kill(pids[1], signal.SIGKILL),
    "coordinator killed": lambda pids: os.kill(pids[0], signal.SIGKILL),
    "worker stopped": lambda pids: os.kill(pids[1], signal.SIGSTOP),
    "coordinator stopped": lambda pids: os.kill(pids[0], signal.SIGSTOP),
    "launcher asked to end": lambda pids: os.kill(pids[2], signal.SIGTERM),
    "launcher killed": lambda pids: os.kill(pids[2], signal.SIGKILL),
}


class Trial(NamedTuple):
    """The result of a harm."""

    code: int  # of the launch that was harmed
    seconds: float  # from the harm until all processes were gone
    is_gone: bool
    shas: dict[str, str]  # of the launch after it


def trial(name, folder, timeout):
    """Do a harm, and launch again."""
    pids: list[int] = []

    def harm(found):
        pids.extend(found)
        if name in HARMS:
            HARMS[name](found)

    if name in HARMS:
        ended = launched(folder, harm, timeout)
    else:
        ended = launched(folder, harm, timeout, at=NUM_WARMUP + 1, stuck=60.0)
    assert pids, f"it ended before the harm: {ended.text}"
    begun = time.perf_counter()
    while not are_gone(pids) and time.perf_counter() - begun < 60:
        time.sleep(0.05)
    seconds = ended.seconds + time.perf_counter() - begun
    return Trial(ended.code, seconds, are_gone(pids), launched(folder).shas())


if __name__ == "__main__":
    worker(sys.argv[1])

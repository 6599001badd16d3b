"""A process that hangs is named, and the healthy ones end by their own clock."""

import subprocess

import jax
import pytest

from momentem.devices import launch, worker


class Child(subprocess.Popen):
    """A process that was never started."""

    _child_created = False

    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([75, None], r"process 1 did not answer in time: process 0 ended with code 75"),
        ([None, 75, 75], r"process 0 did not answer in time"),
        ([None, -6], r"^process 1 was ended by SIGABRT"),
        ([75, 75], r"^process 0 ended with code 75, process 1 ended with code 75"),
    ],
)
def test_the_process_that_hangs_is_named(codes, message):
    with pytest.raises(ChildProcessError, match=message):
        launch._is_over([Child(code) for code in codes])


def test_healthy_processes_end_before_jax_would_abort_them(monkeypatch):
    given = {}
    monkeypatch.setenv("MOMENTEM_TIMEOUT", "20")
    monkeypatch.setattr(jax.distributed, "initialize", lambda **limits: given.update(limits))
    before = jax.config.jax_enable_preemption_service
    try:
        worker._join("cluster")
    finally:
        jax.config.update("jax_enable_preemption_service", before)
    assert given["initialization_timeout"] == 20
    assert given["heartbeat_timeout_seconds"] > 20 + 30

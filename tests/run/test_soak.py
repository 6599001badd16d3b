"""A thousand calls: memory is flat after the first fifty, and no thread is left."""

import subprocess
import sys

import pytest

import soak


@pytest.mark.validate
@pytest.mark.parametrize(("kind", "num"), [("same", 950), ("new", 100), ("stream", 50)])
def test_memory_is_flat(kind, num):
    command = [sys.executable, soak.__file__, kind, str(num)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    grown, num_threads = map(int, found.split())
    assert grown < soak.MOST_GROWTH
    assert num_threads == 1

"""kill -9, and on: the draws are those of a run that nobody touched."""

import pytest

import kills


@pytest.mark.validate
def test_killed_runs_are_resumed_to_the_same_bits(tmp_path):
    found = kills.trials("hmc_em", 2, tmp_path, seed=1)
    assert found["kills"] == 2
    assert found["right"] == found["runs"]
    assert found["torn"] == 0
    assert found["lost"] <= 1

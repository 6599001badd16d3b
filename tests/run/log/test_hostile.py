"""Files that were cut, changed or made to harm: refused by name, and the rest is read."""

import shutil
import warnings

import jax.numpy as jnp
import pytest

import momentem as mt
from hostile_files import HOSTILE, segments
from momentem.run.log.segment import SegmentError

TARGET = mt.density(
    lambda p: -0.5 * jnp.sum(p["x"] ** 2) - p["y"] ** 2, {"x": jnp.zeros(3), "y": 0.0}
)
SAMPLER = mt.hmc(TARGET, 0.5, 3)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Start, warm-up, and four segments of draws, before each of the last three one that says how
    many were asked for."""
    folder = tmp_path_factory.mktemp("runs") / "good"
    mt.sample(TARGET, SAMPLER, num_draws=10, num_warmup=10, num_chains=2, out=folder)
    for num_draws in (20, 30, 40):
        mt.resume(folder, TARGET, SAMPLER, num_draws)
    assert len(segments(folder)) == 9
    return folder


def told_by_load(folder):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mt.load(folder)
        except (ValueError, OSError) as error:
            return str(error)
    return " ".join(str(warning.message) for warning in caught)


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_and_runs_no_code(name, good, tmp_path):
    folder, marker = tmp_path / "run", tmp_path / "marker"
    shutil.copytree(good, folder)
    HOSTILE[name](folder, marker)
    told = told_by_load(folder)
    is_state = name.startswith("state")  # which only resuming reads
    assert ("manifest" in told or "segment" in told) != is_state
    with pytest.raises((ValueError, OSError), match=r"segment|manifest"):
        mt.resume(folder, TARGET, SAMPLER, num_draws=50)
    assert not marker.exists()


def test_the_good_one_is_not_refused(good, tmp_path):
    shutil.copytree(good, tmp_path / "run")
    assert told_by_load(tmp_path / "run") == ""
    assert mt.resume(tmp_path / "run", TARGET, SAMPLER)["posterior"].sizes["draw"] == 40


def test_what_comes_before_a_bad_segment_is_read(good, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    bad = segments(folder)[-3]
    bad.write_bytes(bad.read_bytes()[:-7])
    with pytest.warns(mt.SamplingWarning, match=f"{bad.name} .* is not whole.*it is returned"):
        trace = mt.load(folder)
    assert trace["posterior"].sizes["draw"] == 20
    assert trace.attrs["is_interrupted"]
    assert (trace["posterior"]["x"].values == mt.load(good)["posterior"]["x"][:, :20]).all()
    with pytest.raises(ValueError, match=f"{bad.name}.*move this segment and those after it"):
        mt.resume(folder, TARGET, SAMPLER)


def test_nothing_in_the_package_unpickles():
    from pathlib import Path

    for path in Path(mt.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


def test_a_stored_array_that_vanished_says_so(good, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(good, folder)
    trace = mt.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(SegmentError, match="can no longer be read"):
        trace["posterior"]["x"].values  # noqa: B018

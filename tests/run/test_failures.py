"""NaN and infinities: an error, or a counted divergence that says where. Disks that fail, too."""

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from injections import answer, cases, fixed_samplers, run
from momentem.run import loop
from momentem.run.in_memory import Memory
from momentem.run.log import folder
from momentem.run.log import segment as segments
from momentem.run.log import write as store

pytestmark = pytest.mark.usefixtures("quick_compilation")

# the self-tuning samplers of minibatches compile for long: `make reliability` has them
CASES = {
    name: case for name, case in cases().items() if not re.search("sgnht_em|sg_nphmc_em", name)
}
TARGET = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
SAMPLER = mt.hmc(TARGET, 0.5, 3)


@pytest.mark.parametrize("name", CASES)
def test_it_is_answered(name):
    inject, pattern = CASES[name]
    assert re.search(pattern, answer(inject))


@pytest.mark.parametrize("name", ["hmc", "sgnht", "sg_nphmc"])
def test_nothing_is_answered_where_nothing_is_bad(name):
    assert answer(lambda: run(fixed_samplers, name, "value", 0, 0.5, 0, 400)) == ""


def test_a_parameter_that_overflows_is_named():
    target = mt.density(
        lambda p: jnp.where(jnp.isfinite(p["tau"]), 0.0, 0.0) - 1e-9 * p["x"] ** 2,
        {"tau": 1.0, "x": 0.0},
        {"tau": mt.constraints.positive},
    )
    sampler = mt.hmc(target, 200.0, 3)
    with pytest.warns(mt.SamplingWarning, match=r"not finite, the first in chain \d .*near tau ="):
        mt.sample(target, sampler, num_draws=50, num_warmup=0)


def test_divergences_of_draws_that_are_thinned_away_are_counted():
    target = mt.density(lambda x: -jnp.cosh(3 * x), 0.0)

    def diverge(thin):
        return mt.sample(target, mt.hmc(target, 1.0, 5), num_draws=60, num_warmup=0, thin=thin)

    whole, thinned = diverge(1), diverge(30)
    assert int(whole["sample_stats"]["diverging"].sum()) == whole.attrs["num_divergences"] > 10
    assert thinned.attrs["num_divergences"] == whole.attrs["num_divergences"]
    assert thinned.attrs["first_divergence"] == whole.attrs["first_divergence"]


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes.txt.*momentem.resume, or choose another"):
        mt.sample(TARGET, SAMPLER, out=tmp_path)
    with pytest.raises(OSError, match="out must be a folder that can be made"):
        mt.sample(TARGET, SAMPLER, out=tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    mt.sample(TARGET, SAMPLER, num_draws=10, num_warmup=0, out=tmp_path / "run")
    held = folder.lock(tmp_path / "run")
    with pytest.raises(BlockingIOError, match="being written to by another run"):
        mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=20)
    os.close(held)
    mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=20)


def test_a_full_disk_loses_no_segment(tmp_path, monkeypatch):
    """The third segment does not fit: the error says so, what was before is read, and a resumed run
    has the same draws."""
    write, written = os.write, []

    def full(descriptor, content):
        written.append(content)
        if len(written) == 4:  # the first state, the manifest, and a segment are there
            write(descriptor, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr(store, "SEGMENT_SECONDS", 0.0)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"segment 2 could not be written.*No space.*momentem.resume"):
        mt.sample(TARGET, SAMPLER, num_draws=100, num_warmup=0, out=tmp_path / "run")
    assert len(os.listdir(tmp_path / "run")) == 3  # with the manifest
    monkeypatch.undo()
    assert mt.load(tmp_path / "run")["posterior"].sizes["draw"] == 1
    resumed = mt.resume(tmp_path / "run", TARGET, SAMPLER)
    whole = mt.sample(TARGET, SAMPLER, num_draws=100, num_warmup=0)
    np.testing.assert_array_equal(resumed["posterior"]["position"], whole["posterior"]["position"])


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")  # whoever runs the tests may be root

    monkeypatch.setattr(segments, "publish", read_only)
    with pytest.raises(OSError, match=r"out must be a folder that can be written to.*denied"):
        mt.sample(TARGET, SAMPLER, out=tmp_path / "run")


def test_an_error_in_mid_run_keeps_what_was_drawn(tmp_path, monkeypatch):
    advance, calls = loop._advance, []

    def failing(*args, **options):
        calls.append(0)
        if len(calls) == 4:
            raise RuntimeError("the device is gone")
        return advance(*args, **options)

    monkeypatch.setattr(loop, "_advance", failing)
    with pytest.raises(RuntimeError, match="the device is gone"):
        mt.sample(TARGET, SAMPLER, num_draws=100, num_warmup=0, out=tmp_path / "run")
    assert mt.load(tmp_path / "run")["posterior"].sizes["draw"] >= 3


def test_a_trace_that_does_not_fit_in_memory_is_refused_before_it_is_drawn():
    with pytest.raises(ValueError, match=r"trace must fit in memory.* GB; draw to a folder"):
        mt.sample(TARGET, SAMPLER, num_draws=10**13)


def test_more_draws_than_fit_end_the_run_and_lose_nothing(monkeypatch):
    def full(self, num_draws):
        raise MemoryError

    monkeypatch.setattr(Memory, "reserve", full)
    monkeypatch.setattr("momentem.run.diagnostics.is_short", lambda found: True)
    with pytest.warns(mt.SamplingWarning, match="2000 draws do not fit in memory"):
        trace = mt.sample(TARGET, num_warmup=100)
    assert trace["posterior"].sizes["draw"] == 1000


def calling(iteration_of_failure):
    """A density that calls Python, which raises in the end."""
    calls = []

    def volume(x):
        calls.append(0)
        if len(calls) > iteration_of_failure:
            raise RuntimeError("the simulator is gone")
        return np.zeros((), x.dtype)

    @jax.custom_jvp
    def called(x):
        form = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(volume, form, x, vmap_method="sequential")

    called.defjvp(lambda primals, tangents: (called(*primals), jnp.zeros((), primals[0].dtype)))
    return mt.density(lambda x: -0.5 * jnp.sum(x**2) + called(x), jnp.zeros(2))


def test_an_error_in_the_draws_returns_what_was_drawn():
    target = calling(600)
    sampler = mt.hmc(target, 0.5, 3)
    with pytest.warns(mt.SamplingWarning, match=r"(?s)ended at iteration \d+ .*simulator is gone"):
        trace = mt.sample(target, sampler, num_draws=10**5, num_warmup=5, num_chains=2)
    assert trace["posterior"].sizes["draw"] > 0
    assert trace.attrs["is_interrupted"] == 1
    assert "the simulator is gone" in trace.attrs["error"]
    whole = mt.sample(TARGET, SAMPLER, num_draws=10, num_warmup=5, num_chains=2)
    assert "error" not in whole.attrs


def test_an_error_before_the_first_draw_is_raised():
    target = calling(30)
    with pytest.raises((RuntimeError, ValueError), match="the simulator is gone"):
        mt.sample(target, mt.hmc(target, 0.5, 3), num_draws=10, num_warmup=100, num_chains=2)

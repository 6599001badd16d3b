"""The run log: the same draws with it as without, after a pause as without one."""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from kills import CASES, case
from momentem.run import loop
from momentem.run.log import state as states
from momentem.run.log import write as store

from processes import run_alone

pytestmark = pytest.mark.usefixtures("quick_compilation")


def log_density(p):
    return -0.5 * jnp.sum(p["x"] ** 2) - p["tau"]


def normal():
    return mt.density(
        log_density, {"x": jnp.zeros(2), "tau": 1.0}, {"tau": mt.constraints.positive}
    )


TARGET = normal()
SAMPLER = mt.hmc(TARGET, 0.4, 5)
SIZES = {"num_draws": 60, "num_warmup": 40}


def differences(found, expected):
    """Groups and variables in which two traces differ."""
    if set(found.children) != set(expected.children):
        return set(found.children) ^ set(expected.children)
    return {
        f"{group}.{name}"
        for group in expected.children
        for name in expected[group].variables
        if not found[group][name].equals(expected[group][name])
        or found[group][name].dtype != expected[group][name].dtype
    }


@pytest.fixture
def small_segments(monkeypatch):
    """A segment for every few iterations."""
    monkeypatch.setattr(loop, "CHUNK_ITERATIONS", 16)
    monkeypatch.setattr(store, "SEGMENT_SECONDS", 0.0)


def cut(folder, num_segments, to):
    """A copy of a log that ends after so many segments."""
    shutil.copytree(folder, to)
    for file in sorted(to.glob("*.safetensors"))[num_segments:]:
        file.unlink()
    return to


FORGOTTEN = {"hmc_em": "statistic", "sgnht_em": "thermostat", "sg_nphmc_em": "whitened"}


@pytest.mark.parametrize(
    "name",
    ["hmc_em", *(pytest.param(n, marks=pytest.mark.validate) for n in CASES if n != "hmc_em")],
)
def test_a_run_cut_at_a_segment_is_resumed_to_the_same_bits(
    name, tmp_path, small_segments, monkeypatch
):
    target, sampler = case(name)
    sizes = {"num_draws": 60, "num_warmup": 150}
    whole = mt.sample(target, sampler, **sizes, out=tmp_path / "run")
    assert whole["em"].sizes["m_step"] > 0
    num_segments = len(list((tmp_path / "run").glob("*.safetensors")))
    # after the first state, in the middle of an E-step, and among the draws
    for kept in (1, 7, num_segments - 1) if name == "hmc_em" else (7, num_segments - 1):
        folder = cut(tmp_path / "run", kept, tmp_path / f"cut{kept}")
        assert differences(mt.resume(folder, target, sampler), whole) == set()

    # the control: a log that forgets one leaf of the state
    def forgetful(segment, like):
        return jax.tree_util.tree_map_with_path(
            lambda path, a, b: b if FORGOTTEN[name] in jax.tree_util.keystr(path) else a,
            states.restore(segment, like),
            like,
        )

    monkeypatch.setattr("momentem.run.log.resume.restore", forgetful)
    folder = cut(tmp_path / "run", 7, tmp_path / "forgetful")
    assert differences(mt.resume(folder, target, sampler), whole)


def test_more_draws_can_be_asked_for(tmp_path, small_segments):
    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    more = mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=100)
    whole = mt.sample(TARGET, SAMPLER, num_draws=100, num_warmup=40)
    assert differences(more, whole) == set()


def test_a_crash_before_the_next_draw_does_not_forget_how_many_were_asked_for(
    tmp_path, monkeypatch
):
    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")

    def killed(*args, **options):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_advance", killed)
        with pytest.raises(RuntimeError, match="killed"):
            mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=100)
    assert mt.load(tmp_path / "run").attrs["is_interrupted"]
    resumed = mt.resume(tmp_path / "run", TARGET, SAMPLER)
    assert resumed["posterior"].sizes["draw"] == 100


def test_a_lost_newest_segment_leaves_no_run_that_looks_whole(tmp_path):
    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=100)
    sorted((tmp_path / "run").glob("*.safetensors"))[-1].unlink()
    assert mt.load(tmp_path / "run").attrs["is_interrupted"]


def test_a_whole_run_that_is_asked_for_no_more_gets_no_segment(tmp_path):
    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    mt.resume(tmp_path / "run", TARGET, SAMPLER, num_draws=60)
    assert len(list((tmp_path / "run").glob("*.safetensors"))) == 3  # nothing was added


def test_load_is_what_sample_returned(tmp_path):
    labels = {"dims": {"x": ["side"]}, "coords": {"side": ["left", "right"]}}
    trace = mt.sample(TARGET, SAMPLER, **SIZES, **labels, out=tmp_path / "run")
    loaded = mt.load(tmp_path / "run")
    assert differences(loaded, trace) == set()
    assert loaded.attrs == trace.attrs
    plain = mt.sample(TARGET, SAMPLER, **SIZES, **labels)
    assert differences(loaded, plain) == set()
    assert set(plain.attrs) == set(loaded.attrs)


def test_a_run_can_be_read_while_it_goes(tmp_path, small_segments, monkeypatch):
    extend, seen = store.RunLog.extend, []

    def watched(self, chunk):
        extend(self, chunk)
        trace = mt.load(tmp_path / "run") if (tmp_path / "run/manifest.json").exists() else None
        seen.append(trace["posterior"].sizes["draw"] if "posterior" in trace.children else 0)

    monkeypatch.setattr(store.RunLog, "extend", watched)
    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == 60


@pytest.mark.parametrize(
    "key", [np.s_[1, 5], np.s_[:, ::-7], np.s_[::2, 3:50:9, 1], np.s_[0, -1:], np.s_[:, 9:4]]
)
def test_stored_arrays_are_indexed_like_arrays(key, tmp_path_factory, small_segments):
    folder = tmp_path_factory.getbasetemp() / "indexed"
    if not folder.exists():
        mt.sample(TARGET, SAMPLER, **SIZES, out=folder)
    array = mt.load(folder)["posterior"]["x"]
    np.testing.assert_array_equal(array[key].values, array.values[key])


def test_netcdf_and_zarr_keep_it(tmp_path):
    trace = mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    import xarray

    trace.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as again:
        assert differences(again, trace) == set()
    trace.to_zarr(tmp_path / "run.zarr", consolidated=False)
    again = xarray.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False)
    assert differences(again, trace) == set()


def other_density(p):
    return -0.6 * jnp.sum(p["x"] ** 2) - p["tau"]


def regression(data):
    def prior(mu):
        return -0.5 * mu**2

    def likelihood(mu, x):
        return -0.5 * (x - mu) ** 2

    return mt.dataset(prior, likelihood, data, 0.0)


def test_what_differs_is_said(tmp_path, monkeypatch):
    def refused(match, target=TARGET, sampler=SAMPLER, **options):
        with pytest.raises(ValueError, match=match):
            mt.resume(tmp_path / "run", target, sampler, **options)

    mt.sample(TARGET, SAMPLER, **SIZES, out=tmp_path / "run")
    initial, constraints = {"x": jnp.zeros(2), "tau": 1.0}, {"tau": mt.constraints.positive}
    other = mt.density(other_density, initial, constraints)
    refused("^model must be", other, mt.hmc(other, 0.4, 5))
    refused("^sampler must be", TARGET, mt.hmc(TARGET, 0.4, 6))
    refused("^sampler must be", TARGET, mt.hmc(TARGET, 0.5, 5))
    refused("num_draws must be at least the 60", num_draws=50)
    version = re.escape(jax.__version__)
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    refused(rf"environment differs: jax {version} -> 0\.0\.1")
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    refused(r"xla_flags \[\] -> \['--xla_cpu_enable_fast_math=true'\]")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    jax.config.update("jax_disable_most_optimizations", False)  # the module's fixture has set it
    refused("jax_disable_most_optimizations True -> False")
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.default_matmul_precision("float32"):
        refused("jax_default_matmul_precision None -> float32")
    twin = normal()
    assert mt.resume(tmp_path / "run", twin, mt.hmc(twin, 0.4, 5)).attrs["is_interrupted"] == 0

    one, two = regression(np.ones(5)), regression(np.array([1.0, 1, 1, 1, 2]))
    mt.sample(one, mt.hmc(one, 0.3, 3), **SIZES, out=tmp_path / "data")
    with pytest.raises(ValueError, match=r"^data must be"):
        mt.resume(tmp_path / "data", two, mt.hmc(two, 0.3, 3))


def test_functions_that_are_called_back_are_named(tmp_path):
    """Their code is not in the program, so nothing would notice that another one is called."""

    def volume(x):
        return np.zeros((), x.dtype)

    def log_density(x):
        form = jax.ShapeDtypeStruct((), x.dtype)
        called = jax.pure_callback(volume, form, jax.lax.stop_gradient(x), vmap_method="sequential")
        return -0.5 * jnp.sum(x**2) + jax.lax.stop_gradient(called)

    target = mt.density(log_density, jnp.zeros(2))
    sampler = mt.hmc(target, 0.5, 3)
    for call in (
        lambda: mt.sample(target, sampler, 10, 0, 2, out=tmp_path / "run"),
        lambda: mt.resume(tmp_path / "run", target, sampler, 20),
    ):
        with pytest.warns(mt.SamplingWarning, match=r"calls Python functions .*volume\), and what"):
            call()


def test_thinning_keeps_the_last_of_every_few(tmp_path, small_segments):
    whole = mt.sample(TARGET, SAMPLER, **SIZES)
    for options in ({}, {"out": tmp_path / "run"}):
        thinned = mt.sample(TARGET, SAMPLER, **SIZES, thin=7, **options)
        for group in whole.children:
            for name in whole[group].data_vars:
                expected = whole[group][name].values[:, 6::7]
                np.testing.assert_array_equal(thinned[group][name].values, expected)
    assert mt.resume(tmp_path / "run", TARGET, SAMPLER, 70)["posterior"].sizes["draw"] == 10


def test_moments_of_what_is_not_kept(tmp_path, small_segments):
    whole = mt.sample(TARGET, SAMPLER, **SIZES)["posterior"]["x"]
    plain = mt.sample(TARGET, SAMPLER, **SIZES, thin=3, keep=["tau"])
    logged = mt.sample(TARGET, SAMPLER, **SIZES, thin=3, keep=["tau"], out=tmp_path / "run")
    assert list(plain["posterior"].data_vars) == ["tau"]
    mean, variance = whole.mean("draw"), whole.var("draw", ddof=1)
    np.testing.assert_allclose(plain["posterior_mean"]["x"], mean, rtol=1e-12)
    np.testing.assert_allclose(plain["posterior_variance"]["x"], variance, rtol=1e-12)
    assert plain["posterior_ess"]["x"].dims == whole.dims[2:]
    assert np.all(np.isfinite(plain["posterior_ess"]["x"]))
    assert differences(logged, plain) == set()
    last = sorted((tmp_path / "run").glob("*.safetensors"))[-1]
    last.unlink()
    assert differences(mt.resume(tmp_path / "run", TARGET, SAMPLER), plain) == set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thin": 0}, "thin must be a whole number >= 1, got 0"),
        ({"thin": 61}, "thin must be at most num_draws = 60, got 61"),
        ({"keep": "x"}, "keep must be a list of at least one parameter's name, got 'x'"),
        ({"keep": []}, "keep must be a list of at least one"),
        ({"keep": ["z"]}, "keep names 'z', which is no parameter; they are"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mt.sample(TARGET, SAMPLER, **(SIZES | options))


def test_names_that_a_log_cannot_take_are_refused(tmp_path):
    target = mt.density(lambda p: -(p["a b"] ** 2), {"a b": 0.0})
    with pytest.raises(ValueError, match=r"letters, digits.*got 'a b'; rename it"):
        mt.sample(target, mt.hmc(target, 0.5, 2), **SIZES, out=tmp_path / "run")


def test_no_run_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run: there is no manifest.json"):
        mt.load(tmp_path)


def test_an_interrupt_keeps_every_draw(tmp_path, monkeypatch):
    advance, calls = loop._advance, []

    def interrupted(*args, **options):
        calls.append(0)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return advance(*args, **options)

    monkeypatch.setattr(loop, "_advance", interrupted)
    trace = mt.sample(TARGET, SAMPLER, num_draws=1000, num_warmup=0, out=tmp_path / "run")
    assert trace.attrs["is_interrupted"] == 1
    assert 4 <= trace["posterior"].sizes["draw"] <= 1 + 2 + 4 + 8  # all of four chunks
    monkeypatch.undo()
    whole = mt.sample(TARGET, SAMPLER, num_draws=1000, num_warmup=0)
    assert differences(mt.resume(tmp_path / "run", TARGET, SAMPLER), whole) == set()


@pytest.mark.validate
def test_memory_does_not_grow_with_the_draws():
    """Four times the draws, 96 MB more of them, in the same memory."""
    script = """
import resource, sys, tempfile, warnings, jax, jax.numpy as jnp, momentem as mt
warnings.simplefilter("ignore")
jax.config.update("jax_enable_x64", True)
target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(200))
sampler = mt.hmc(target, 0.5, 1)
for num_draws in (20_000, 80_000):
    with tempfile.TemporaryDirectory() as folder:
        trace = mt.sample(target, sampler, num_draws, 0, 1, out=folder)
        assert trace["posterior"].sizes["draw"] == num_draws
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    few, many = map(int, run_alone(script).split())
    assert many - few < 40e6


@pytest.mark.validate
def test_the_page_on_long_runs_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs/durable.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})

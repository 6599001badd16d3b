"""The same script on one device, on several, and in several processes."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import lost_peers
import momentem as mt
from momentem.cli import main
from momentem.run import loop
from momentem.run.log import write as store

from processes import run_alone

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOT = Path(__file__).parents[2]
TARGET = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), {"x": jnp.zeros(2)})
PROBLEM = TARGET, mt.hmc(TARGET, 0.4, 5)
SIZES = {"num_draws": 60, "num_warmup": 40}

FOUR_DEVICES = """
import json, sys
sys.path.insert(0, "BENCHMARKS")
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
import momentem as mt
from kills import log_likelihood, log_prior
from lost_peers import gradients, regression

def off(found, exact):
    return float(np.max(np.abs(np.asarray(found) / np.asarray(exact) - 1)))

said = {"off": {}, "errors": []}
alone = regression(None)
exact = gradients(alone)
for data in (1, 2, 4):
    said["off"][data] = off(gradients(regression(mt.mesh(data=data))), exact)

# what a sum by hand inside shard_map does, as it is easily written: JAX has summed already
data = np.random.default_rng(0).normal(size=(200, 4))
sum_of = jax.grad(lambda w, rows: jnp.sum(jnp.square(rows @ w)))
by_hand = lambda w, rows: jax.lax.psum(sum_of(w, rows), "data")
mesh, specs = mt.mesh(data=4), (jax.P(), jax.P("data"))
summed = jax.jit(jax.shard_map(by_hand, mesh=mesh, in_specs=specs, out_specs=jax.P()))
said["off"]["by hand"] = off(summed(jnp.ones(4), data), sum_of(jnp.ones(4), data))

# every minibatch of strata of 51 and 50 rows with halves at the same places, once
strata = regression(mesh, batch_size=8)
where = np.arange(51 * 50) % np.array([[51], [50], [50], [50]])
batches = jnp.asarray(np.broadcast_to(where.T[:, None], (51 * 50, 2, 4)))
position = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4))[0])
each = jax.jit(lambda target, b: jax.vmap(target.noisy_gradient, (0, None))(b, position))
said["off"]["strata"] = off(np.mean(each(strata, batches).gradient, axis=0), exact[0])
halves = jax.jit(lambda target, b: target.noisy_gradient(b, position))
a, b = (each(strata, batches).gradient[i] for i in (3, 77))
mixed = halves(strata, jnp.stack([batches[3, 0], batches[77, 0]]))
said["off"]["halves"] = max(off(mixed.gradient, (a + b) / 2), off(mixed.noise, (a - b) / 2))
drawn = np.asarray(strata.batches(mt.key(0), mt.pytrees.Static(5000)))
said["range"] = [drawn.min(axis=(0, 1)).tolist(), drawn.max(axis=(0, 1)).tolist()]

mesh = mt.mesh(data=2)
target = regression(mesh)
few = {"num_draws": 60, "num_warmup": 60, "progress": False}
draws = [
    mt.sample(t, mt.hmc_em(t, 0.1, 5, e_step=mt.e_steps.constant(60)), mesh=m, **few)
    for t, m in ((target, mesh), (alone, None))
]
said["m_steps"] = draws[0]["em"].sizes["m_step"]
many, one = (trace["posterior"] for trace in draws)
said["off"]["draws"] = max(off(many[name], one[name]) for name in ("w", "tau"))

for wrong in (
    lambda: mt.mesh(3),
    lambda: mt.mesh(data=8),
    lambda: mt.sample(target, mt.hmc(target, 0.1, 5), num_chains=3, mesh=mesh),
    lambda: regression(mesh, batch_size=6),
    lambda: regression(mesh, batch_size=8, batches=mt.with_replacement()),
    lambda: mt.sample(target, mesh=jax.make_mesh((4,), ("chains",))),
):
    try:
        wrong()
    except ValueError as error:
        said["errors"].append(str(error))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def four_devices():
    script = FOUR_DEVICES.replace("BENCHMARKS", str(ROOT / "benchmarks"))
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    return json.loads(run_alone(script, PYTHONWARNINGS="ignore", **flags).splitlines()[-1])


@pytest.mark.validate
def test_data_over_devices_have_the_gradient_of_one_device(four_devices):
    for data in ("1", "2", "4"):
        assert four_devices["off"][data] < 1e-12


@pytest.mark.validate
def test_a_gradient_summed_by_hand_would_be_noticed(four_devices):
    assert four_devices["off"]["by hand"] == pytest.approx(3.0)  # four times the gradient


@pytest.mark.validate
def test_blocks_of_all_devices_are_unbiased(four_devices):
    """The mean over every start is the gradient itself, with strata of unequal sizes."""
    assert four_devices["off"]["strata"] < 1e-12
    assert four_devices["off"]["halves"] < 1e-9  # a difference of near numbers
    assert four_devices["range"] == [[0, 0, 0, 0], [50, 49, 49, 49]]


@pytest.mark.validate
def test_chains_over_devices_are_those_of_one_device(four_devices):
    """To rounding: sums over devices have another order. M-steps are among what is compared."""
    assert four_devices["m_steps"] > 0
    assert four_devices["off"]["draws"] < 1e-6


@pytest.mark.validate
def test_devices_that_do_not_fit_are_told_of(four_devices):
    patterns = [
        r"chains x data must be the number of devices, 4, got 3 x 1",
        r"chains x data must be the number of devices, 4, got 0 x 8",
        r"num_chains must be a multiple of the 2 devices.*got 3; give a multiple",
        r"batch_size must be a multiple of 4, because each half .* got 6",
        r"batches must be blocks\(\)",
        r"mesh must have the axes .* build it with momentem.mesh",
    ]
    assert len(four_devices["errors"]) == len(patterns)
    for error, pattern in zip(four_devices["errors"], patterns, strict=True):
        assert re.search(pattern, error)


def test_a_mesh_of_one_device_changes_no_bit(tmp_path):
    alone = mt.sample(*PROBLEM, **SIZES)
    meshed = mt.sample(*PROBLEM, **SIZES, mesh=mt.mesh())
    assert meshed["posterior"].equals(alone["posterior"])
    logged = mt.sample(*PROBLEM, **SIZES, mesh=mt.mesh(), out=tmp_path / "run")
    assert logged["posterior"].equals(alone["posterior"])
    more = mt.resume(tmp_path / "run", *PROBLEM, num_draws=80, mesh=mt.mesh())
    assert more["posterior"].isel(draw=slice(60)).equals(alone["posterior"])


def test_another_layout_is_refused(tmp_path):
    mt.sample(*PROBLEM, **SIZES, mesh=mt.mesh(), out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"environment differs: mesh .*-> None, processes 1 -> No"):
        mt.resume(tmp_path / "run", *PROBLEM, num_draws=80)
    mt.sample(*PROBLEM, **SIZES, out=tmp_path / "plain")
    assert "mesh" not in json.loads((tmp_path / "plain/manifest.json").read_text())
    with pytest.raises(ValueError, match=r"environment differs: mesh None -> {'chains': 1"):
        mt.resume(tmp_path / "plain", *PROBLEM, num_draws=80, mesh=mt.mesh())


def test_the_same_call_begins_and_goes_on(tmp_path, monkeypatch):
    whole = mt.sample(*PROBLEM, **SIZES)
    options = SIZES | {"out": tmp_path / "run", "resume": True}
    advance, calls = loop._advance, []

    def failing(*args, **options):
        calls.append(0)
        if len(calls) == 5:
            raise OSError("pulled the plug")
        return advance(*args, **options)

    monkeypatch.setattr(loop, "_advance", failing)
    with pytest.raises(OSError, match="pulled the plug"):
        mt.sample(*PROBLEM, **options)
    monkeypatch.undo()
    assert 0 < mt.load(tmp_path / "run")["warmup_posterior"].sizes["draw"] < 40
    assert mt.sample(*PROBLEM, **options)["posterior"].equals(whole["posterior"])
    assert mt.sample(*PROBLEM, **options)["posterior"].equals(whole["posterior"])
    with pytest.raises(ValueError, match=r"num_chains must be 4, as in the run in .*, got 8"):
        mt.sample(*PROBLEM, **options, num_chains=8)
    with pytest.raises(ValueError, match=r"resume needs the folder of a run"):
        mt.sample(*PROBLEM, resume=True)


def test_a_run_that_ended_before_its_manifest_is_begun_again(tmp_path, monkeypatch):
    def pulled(*arguments):
        raise OSError("pulled the plug")

    monkeypatch.setattr(store, "publish", pulled)  # of the manifest; segment 0 is there
    with pytest.raises(OSError, match="pulled the plug"):
        mt.sample(*PROBLEM, **SIZES, out=tmp_path / "run")
    monkeypatch.undo()
    assert list((tmp_path / "run").glob("*.safetensors"))
    trace = mt.sample(*PROBLEM, **SIZES, out=tmp_path / "run", resume=True)
    assert trace["posterior"].sizes["draw"] == 60


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """A run that nobody harmed."""
    folder = tmp_path_factory.mktemp("processes")
    ended = lost_peers.launched(folder / "whole")
    assert ended.code == 0, ended.text
    return folder, ended.shas()


def test_two_processes_have_the_gradient_and_the_draws_of_one(two_processes):
    folder, shas = two_processes
    target = lost_peers.regression(None)
    exact = lost_peers.gradients(target)
    for process in (0, 1):
        found = np.load(folder / f"gradients-{process}.npy")
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    assert shas["0"] == shas["1"]
    trace = mt.load(folder / "whole")
    sampler = mt.hmc_em(target, 0.1, 5, e_step=mt.e_steps.constant(60))
    sizes = (lost_peers.NUM_DRAWS, lost_peers.NUM_WARMUP, lost_peers.NUM_CHAINS)
    alone = mt.sample(target, sampler, *sizes)
    for name in alone["posterior"].data_vars:  # in another order of sums: far within the MCSE
        np.testing.assert_allclose(trace["posterior"][name], alone["posterior"][name], rtol=1e-6)
    assert trace["em"].sizes == alone["em"].sizes
    assert trace.attrs["is_interrupted"] == 0


def test_every_process_writes_its_own_chains(two_processes, tmp_path):
    folder, _ = two_processes
    whole = mt.load(folder / "whole")
    parts = [mt.load(folder / f"whole/process-{i}") for i in (0, 1)]
    for i, part in enumerate(parts):
        assert part["posterior"].sizes["chain"] == 2
        found = whole["posterior"]["w"][2 * i : 2 * i + 2].values
        np.testing.assert_array_equal(part["posterior"]["w"].values, found)
    assert not np.array_equal(*(part["posterior"]["w"].values for part in parts))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/process-1").symlink_to(folder / "whole/process-1")
    with pytest.warns(mt.SamplingWarning, match="2 of 4 chains; copy the folders process-"):
        assert mt.load(tmp_path / "run")["posterior"].sizes["chain"] == 2
    for again in (
        lambda: mt.resume(folder / "whole", TARGET),
        lambda: mt.sample(TARGET, out=folder / "whole", resume=True),
    ):
        with pytest.raises(ValueError, match=r"processes must be 2, as when .* got 1; start"):
            again()


@pytest.mark.validate
def test_a_lost_process_ends_the_launch_and_a_new_one_goes_on(two_processes):
    folder, shas = two_processes
    pids = []

    def harm(found):
        pids.extend(found)
        lost_peers.HARMS["worker killed"](found)

    ended = lost_peers.launched(folder / "killed", harm, timeout=30.0, at=20)
    assert ended.code == 1
    assert ended.seconds < 30.0
    assert "process 1 was ended by SIGKILL" in ended.text
    assert "the same command resumes" in ended.text
    assert lost_peers.are_gone(pids)
    logs = [sorted((folder / f"killed/process-{i}").glob("*.safetensors")) for i in (0, 1)]
    assert min(map(len, logs)) > 2
    for path in logs[1][len(logs[0]) - 1 :]:  # as if it had been killed while it wrote its last
        path.unlink()
    again = lost_peers.launched(folder / "killed")
    assert again.code == 0, again.text
    assert again.shas() == shas


def test_a_launch_that_cannot_be_is_refused(capsys):
    assert main(["launch", "--processes", "2", "--", "nowhere.py"]) == 1
    assert main(["launch", "--processes", "0", "--", __file__]) == 1
    assert main(["launch", "--processes", "2", "--timeout", "0", "--", __file__]) == 1
    missing, none, hurried = capsys.readouterr().err.splitlines()
    assert "script must be a Python file, got nowhere.py" in missing
    assert "processes must be a whole number >= 1, got 0" in none
    assert "timeout must be finite and > 0, got 0" in hurried


@pytest.mark.validate
def test_the_page_on_devices_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/devices.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})


@pytest.mark.validate
@pytest.mark.parametrize("name", [*lost_peers.HARMS, "worker stuck for 60 s"])
def test_whatever_is_done_to_it_a_run_ends_in_time_and_goes_on(two_processes, name):
    folder, shas = two_processes
    found = lost_peers.trial(name, folder / name.replace(" ", "-"), timeout=20.0)
    assert found.seconds < 20.0 + 10.0
    assert found.is_gone
    assert found.shas == shas

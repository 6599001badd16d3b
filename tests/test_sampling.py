"""The front door: what comes back, in which form, from which seed, at which cost."""

import importlib
from contextlib import contextmanager, nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.run import diagnostics
from momentem.run.in_memory import Memory

from processes import run_alone

pytestmark = pytest.mark.usefixtures("quick_compilation")

# where the loop and its constants are
run_module = importlib.import_module("momentem.run.loop")

TARGET = mt.density(
    lambda p: -0.5 * jnp.sum(p["x"] ** 2) - p["tau"],
    {"x": jnp.zeros(2), "tau": 1.0},
    {"tau": mt.constraints.positive},
)


def draw(**options):
    sampler = mt.hmc(TARGET, step_size=0.4, num_steps=5)
    return mt.sample(TARGET, sampler, **({"num_draws": 50, "num_warmup": 20} | options))


def test_the_result_follows_arviz_s_schema():
    trace = draw(dims={"x": ["side"]}, coords={"side": ["left", "right"]})
    assert set(trace.children) == {
        "posterior",
        "sample_stats",
        "warmup_posterior",
        "warmup_sample_stats",
    }
    posterior = trace["posterior"]
    assert dict(posterior["x"].sizes) == {"chain": 4, "draw": 50, "side": 2}
    assert posterior["side"].values.tolist() == ["left", "right"]
    assert dict(posterior["tau"].sizes) == {"chain": 4, "draw": 50}
    assert bool((posterior["tau"] > 0).all())
    assert trace["warmup_posterior"].sizes["draw"] == 20
    stats = trace["sample_stats"]
    assert {"diverging", "energy", "acceptance_rate", "step_size", "lp", "n_steps"} <= set(stats)
    assert stats["diverging"].dtype == bool
    assert trace.attrs["seed"] == 0


def test_a_bare_array_is_called_position():
    target = mt.density(lambda x: -jnp.sum(x**2), jnp.zeros(3))
    trace = mt.sample(target, mt.hmc(target, 0.3, 3), num_draws=10, num_warmup=0)
    assert list(trace["posterior"].data_vars) == ["position"]
    assert "warmup_posterior" not in trace.children


def test_a_seed_is_repeatable_and_another_differs():
    one, same, other = draw(seed=1), draw(seed=1), draw(seed=2)
    np.testing.assert_array_equal(one["posterior"]["x"], same["posterior"]["x"])
    assert not np.array_equal(one["posterior"]["x"], other["posterior"]["x"])
    chains = one["posterior"]["x"].values
    assert len(np.unique(chains.reshape(4, -1), axis=0)) == 4


def test_draws_do_not_depend_on_the_chunks(monkeypatch):
    whole = draw()
    monkeypatch.setattr(run_module, "CHUNK_ITERATIONS", 8)
    np.testing.assert_array_equal(draw()["posterior"]["x"], whole["posterior"]["x"])


def test_posterior_is_right():
    """Against exact moments: x standard normal, tau exponential; |error| <= 5 MCSE, 8 moments."""
    trace = draw(num_draws=4000, num_chains=8, seed=3)["posterior"]
    x, tau = trace["x"].values, trace["tau"].values
    moments = [x[..., 0], x[..., 1], x[..., 0] ** 2, x[..., 1] ** 2, tau, tau**2]
    for values, expected in zip(moments, [0, 0, 1, 1, 1, 2], strict=True):
        means = values.mean(axis=1)
        mcse = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - expected) < 5 * mcse


def test_no_compilation_on_the_second_call_even_with_new_data_and_hyperparameters():
    def run(data, step_size):
        target = mt.dataset(prior, likelihood, data, initial=0.0)
        sampler = mt.hmc_em(target, step_size, 3, e_step=mt.e_steps.growing(20))
        return mt.sample(target, sampler, num_draws=30, num_warmup=30)

    def prior(mu):
        return -0.5 * mu**2

    def likelihood(mu, x):
        return -0.5 * (x - mu) ** 2

    first = run(np.ones(10), 0.1)
    with count_compilations() as compilations:
        second = run(np.arange(10.0), 0.2)
    assert compilations == []
    assert not np.array_equal(first["posterior"]["position"], second["posterior"]["position"])


@contextmanager
def count_compilations():
    found = []

    def listen(event, duration, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(details)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_compilation_counter_counts():
    with count_compilations() as compilations:
        jax.jit(lambda x: x + 1)(jnp.zeros(7))
    assert compilations


def test_positions_of_the_user_s_own_are_used():
    positions = {"x": np.full((4, 2), 3.0), "tau": np.full(4, 2.0)}
    sampler = mt.hmc(TARGET, step_size=1e-6, num_steps=1)
    trace = mt.sample(TARGET, sampler, num_draws=5, num_warmup=0, positions=positions)
    np.testing.assert_allclose(trace["posterior"]["x"], 3.0, atol=1e-4)
    np.testing.assert_allclose(trace["posterior"]["tau"], 2.0, atol=1e-4)


def test_trouble_is_warned_of():
    funnel = mt.density(
        lambda p: (
            -0.5 * (p["v"] / 3) ** 2 - 0.5 * jnp.sum(p["x"] ** 2) * jnp.exp(-p["v"]) - p["v"] * 4.5
        ),
        {"v": 0.0, "x": jnp.zeros(9)},
    )
    with pytest.warns(mt.SamplingWarning) as warned:
        mt.sample(funnel, mt.hmc(funnel, step_size=0.5, num_steps=10), num_draws=300, num_warmup=0)
    text = " ".join(str(warning.message) for warning in warned)
    assert "diverged" in text
    assert "R-hat" in text
    assert "bulk ESS" in text


def test_a_good_run_does_not_warn(recwarn):
    target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=3))
    assert not [w for w in recwarn if issubclass(w.category, mt.SamplingWarning)]


def test_one_chain_cannot_be_judged():
    with pytest.warns(mt.SamplingWarning, match="too few to judge"):
        draw(num_chains=1)


def test_an_interrupt_returns_what_was_drawn(monkeypatch):
    """Ctrl-C while the fifth chunk is on its way."""
    advance, num_chunks = run_module._advance, 0

    def interrupted(*args, **options):
        nonlocal num_chunks
        num_chunks += 1
        if num_chunks == 5:
            raise KeyboardInterrupt  # which is what Python makes of the signal
        return advance(*args, **options)

    monkeypatch.setattr(run_module, "_advance", interrupted)
    with pytest.warns(mt.SamplingWarning) as caught:
        trace = draw(num_draws=100_000, num_warmup=0)
    kept = trace["posterior"].sizes["draw"]
    assert 4 <= kept < 100_000
    assert trace.attrs["is_interrupted"] == 1
    assert np.isfinite(trace["posterior"]["x"].values).all()
    first = f"interrupted: {kept} draws per chain were kept, and 0 of warm-up"
    assert str(caught[0].message) == first


def test_an_interrupt_of_what_ends_a_run_loses_nothing(monkeypatch):
    target = mt.density(lambda x: -0.5 * x**2, 0.0)
    sampler = mt.hmc(target, 1.0, 2)
    whole = mt.sample(target, sampler, 500)

    def once(name, work):
        calls = []

        def interrupted(*args, **options):
            calls.append(0)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return work(*args, **options)

        return f"momentem.run.{name}", interrupted

    parts = {
        "diagnostics.convergence": (
            diagnostics.convergence,
            "without a judgement.*KeyboardInterrupt",
        ),
        "diagnostics.warn_of_trouble": (diagnostics.warn_of_trouble, None),
        "in_memory.Memory.trace": (Memory.trace, None),
    }
    for name, (work, message) in parts.items():
        with monkeypatch.context() as patch:
            patch.setattr(*once(name, work))
            expected = nullcontext() if message is None else pytest.warns(match=message)
            with expected:
                trace = mt.sample(target, sampler, 500)
        assert trace["posterior"].equals(whole["posterior"])


def test_an_error_of_the_judge_loses_no_draws(monkeypatch):
    def full(*args, **options):
        raise MemoryError("no room for R-hat")

    monkeypatch.setattr(diagnostics, "_choose_scalars", full)
    with pytest.warns(mt.SamplingWarning, match="without a judgement.*MemoryError no room for"):
        assert draw()["posterior"].sizes["draw"] == 50


def test_warm_up_and_draws_use_different_keys():
    sampler = mt.hmc(TARGET, step_size=0.4, num_steps=5)
    positions = {"x": np.zeros((4, 2)), "tau": np.ones(4)}
    trace = mt.sample(TARGET, sampler, num_draws=20, num_warmup=20, positions=positions)
    warmup, draws = trace["warmup_sample_stats"], trace["sample_stats"]
    both = np.concatenate([warmup["energy_error"].values, draws["energy_error"].values], axis=1)
    assert len(np.unique(both)) == both.size


def test_constants_of_a_constraint_do_not_count_as_chains_that_have_not_mixed(recwarn):
    target = mt.density(
        lambda p: -0.5 * p["L"][1, 0] ** 2,
        {"L": jnp.eye(2)},
        {"L": mt.constraints.corr_cholesky},
    )
    mt.sample(target, mt.hmc(target, 0.5, 4), num_draws=2000)
    assert not [w for w in recwarn if issubclass(w.category, mt.SamplingWarning)]


def test_a_summary_has_the_usual_columns():
    table = mt.summary(draw())
    assert {"mean", "sd", "ess_bulk", "ess_tail", "r_hat"} <= set(table.columns)
    assert list(table.index) == ["tau", "x[0]", "x[1]"]


def test_importing_leaves_jax_s_configuration_alone():
    script = (
        "import jax; names = list(jax.config.values); before = dict(jax.config.values); "
        "import momentem; assert dict(jax.config.values) == before, 'changed'; "
        "assert not jax.config.jax_enable_x64; "
        "import jax.numpy as jnp; "
        "t = momentem.density(lambda x: -0.5 * x @ x, jnp.zeros(2)); "
        "r = momentem.sample(t, momentem.hmc(t, 0.5, 3), num_draws=20, num_warmup=5); "
        "assert r['posterior']['position'].dtype == 'float32'"
    )
    run_alone("import warnings; warnings.simplefilter('ignore'); " + script)


@pytest.mark.validate
def test_a_million_draws_need_the_memory_of_their_result_and_a_chunk():
    """10^6 draws of 10 numbers are 80 MB (and 8 statistics 53 MB); the run may add a chunk, not a
    copy."""
    script = """
import resource, jax, jax.numpy as jnp, momentem as mt, warnings
warnings.simplefilter("ignore")
jax.config.update("jax_enable_x64", True)
target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(10))
sampler = mt.hmc(target, 0.5, 2)
mt.sample(target, sampler, num_draws=5000, num_warmup=0, num_chains=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = mt.sample(target, sampler, num_draws=1_000_000, num_warmup=0, num_chains=1)
size = sum(group.nbytes for group in trace.subtree)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(size, grown)
"""
    size, grown = map(int, run_alone(script).split())
    assert size > 80e6
    assert grown < size + 150e6

"""Pictures and reports: what is in them, what a browser makes of them, and their size."""

import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import momentem as mt
from momentem.predictive import page
from momentem.run.verdict import judge

from browser import look_at

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("quick_compilation")


def sampled(num_draws=300, **options):
    target = mt.density(
        lambda p: -0.5 * jnp.sum(p["<x>"] ** 2) - 0.5 * p["y"] ** 2,
        {"<x>": jnp.zeros(3), "y": 0.0},
    )
    learning = mt.hmc_em(target, 0.8, 3, e_step=mt.e_steps.constant(50))
    return target, mt.sample(target, learning, num_draws, num_warmup=100, **options)


@pytest.fixture(scope="module")
def run():
    return sampled()


def test_a_picture_has_every_panel(run):
    figure = mt.plot(run[1])
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[:4] == ["<x>[0]", "ranks of <x>[0]", "<x>[1]", "ranks of <x>[1]"]
    assert any("energy" in title for title in titles)
    assert any("M-steps" in title for title in titles)
    assert "R-hat" in figure.get_suptitle()


def test_divergences_are_shown_in_the_pair_that_shows_them(run):
    trace = run[1].copy()
    is_far = trace["posterior"]["y"].values > 1.5
    stats = trace["sample_stats"].to_dataset().assign(diverging=(("chain", "draw"), is_far))
    trace["sample_stats"] = type(trace)(stats)
    axis = next(a for a in mt.plot(trace).axes if "divergences" in a.get_title())
    assert axis.get_xlabel() == "y"


def test_a_browser_reads_the_report(run, tmp_path):
    target, trace = run
    x = jnp.arange(3.0)
    prediction = mt.predict(trace, lambda p, x: dist.Normal(p["y"] * x, 1.0), x)
    file = mt.report(trace, tmp_path / "report.html", target, prediction, np.zeros(3))
    text = file.read_text()
    assert file.stat().st_size < 5_000_000
    assert "http://" not in text
    assert "https://" not in text
    assert "<x>[0]" not in text  # a name is text, not markup
    assert "log_density" in text
    assert "seed" in text
    for found in look_at(text, tmp_path):
        assert found["errors"] == []
        assert found["drawn"] == found["pictures"] >= 10
        assert found["width"] <= found["asked"]
        assert found["up"] == sorted(found["up"])
        assert found["down"] == found["up"][::-1]
        assert found["zoom"] >= 1


def test_the_browser_would_notice(run, tmp_path):
    text = page(run[1]).replace("<script>", "<script>nothing();", 1)
    text = text.replace("image/png;base64,", "image/png;base64,AAAA", 1)
    text = text.replace("<h2>", "<div style='width:3000px'>wide</div><h2>", 1)
    for found in look_at(text, tmp_path):
        assert found["errors"]
        assert found["drawn"] == found["pictures"] - 1
        assert found["width"] > found["asked"]


def test_the_verdict_is_that_of_the_warnings(run):
    assert "at most" in judge(run[1]).text()
    target = mt.density(lambda x: -0.5 * x**2, 0.0)
    trace = mt.sample(target, mt.hmc(target, 0.01, 1), num_draws=50, num_warmup=0)
    verdict = judge(trace)
    assert any(trouble.startswith("R-hat is") for trouble in verdict.troubles)
    assert "<li>R-hat is" in page(trace)
    assert "Something is wrong" in mt.plot(trace).get_suptitle()


@pytest.mark.validate
def test_many_parameters_are_cut_and_thinned():
    """1,200 parameters and 6,000 draws: the table has 1,000 rows, and says what was left out."""
    target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(1200))
    trace = mt.sample(target, mt.hmc(target, 0.5, 2), num_draws=1500, num_warmup=0)
    text = page(trace)
    assert "1,000 of 1,200 parameters" in text
    assert text.count("<tr><td>position[") == 1000
    assert len(text) < 5_000_000


@pytest.mark.validate
def test_a_report_of_a_large_run_needs_little_memory_and_time(tmp_path):
    """10^5 draws of 1,000 parameters are 400 MB as float32. A run ten times as long needs as much
    memory, because draws are thinned to fixed numbers, and a little more time."""
    with jax.enable_x64(False):
        target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(1000))
        mt.sample(target, mt.hmc(target, 0.3, 4), 25_000, num_warmup=0, out=tmp_path / "run")
    trace, begun = mt.load(tmp_path / "run"), time.perf_counter()
    tracemalloc.start()
    assert len(page(trace)) < 5_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250e6
    assert time.perf_counter() - begun < 120  # tracing doubles it

"""Data larger than memory: every row once an epoch, unbiased gradients, the same bits resumed."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import momentem as mt
from momentem.pytrees import find_node
from momentem.run import loop
from momentem.targets.streams import Window, turn_window

NUM_ROWS = 60
X = np.random.default_rng(0).normal(size=(NUM_ROWS, 2))
Y = np.arange(NUM_ROWS)
DATA = {"x": X, "y": Y}


def pieces(epoch):
    order = np.random.default_rng(epoch).permutation(NUM_ROWS)
    for rows in np.split(order, [7, 30, 31]):
        yield {"x": X[rows], "y": Y[rows]}


def zarrs(folder):
    group = zarr.open_group(folder, mode="w")
    return {name: group.create_array(name, data=rows, chunks="auto") for name, rows in DATA.items()}


@pytest.fixture
def sources(tmp_path):
    for part in range(3):
        rows = slice(20 * part, 20 * part + 20)
        columns = {"x": pa.FixedSizeListArray.from_arrays(X[rows].ravel(), 2), "y": Y[rows]}
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=9)
    return {
        "arrays": mt.sources.from_arrays(DATA, page_rows=7),
        "zarr": mt.sources.from_arrays(zarrs(tmp_path / "zarr"), page_rows=7),
        "parquet": mt.sources.from_parquet(tmp_path, ["x", "y"]),
        "blocks": mt.sources.from_blocks(pieces, NUM_ROWS),
    }


@pytest.mark.parametrize("kind", ["arrays", "zarr", "parquet", "blocks"])
def test_each_epoch_has_each_row_once_and_no_two_have_one_order(sources, kind):
    stream = mt.stream(sources[kind], window_rows=20)
    windows = [jax.tree.map(np.asarray, stream.rows(i)) for i in range(6)]
    epochs = [np.concatenate([w["y"] for w in windows[i : i + 3]]) for i in (0, 3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(NUM_ROWS))
    assert not np.array_equal(*epochs)
    for window in windows:
        np.testing.assert_array_equal(window["x"], X[window["y"]])


@pytest.mark.parametrize("kind", ["arrays", "zarr", "parquet", "blocks"])
def test_a_window_is_the_same_whichever_came_before(sources, kind):
    stream, other = (mt.stream(sources[kind], window_rows=23) for _ in range(2))
    in_order = [np.asarray(stream.rows(i)["y"]) for i in range(8)]
    for i in (5, 5, 2, 7):
        np.testing.assert_array_equal(other.rows(i)["y"], in_order[i])


def test_a_mapped_file_is_read_where_its_rows_are(tmp_path):
    np.save(tmp_path / "x.npy", X)
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = mt.stream(mt.sources.from_arrays(rows, page_rows=7), window_rows=NUM_ROWS)
    assert sorted(map(tuple, np.asarray(whole.rows(0)))) == sorted(map(tuple, X))
    part = mt.stream(mt.sources.from_arrays(rows[5:40], page_rows=7), window_rows=35)
    assert sorted(map(tuple, np.asarray(part.rows(0)))) == sorted(map(tuple, X[5:40]))


def regression(data, **options):
    return mt.dataset(
        log_prior=lambda w: -0.5 * w @ w,
        log_likelihood=lambda w, datum: -0.5 * (datum["y"] / 30 - datum["x"] @ w) ** 2,
        data=data,
        initial=jnp.zeros(2),
        batch_size=6,
        **options,
    )


def streamed(window_rows=20, hold=3, page_rows=7):
    return regression(
        mt.stream(mt.sources.from_arrays(DATA, page_rows), window_rows=window_rows, hold=hold)
    )


def errors(scale, num_windows=600):
    """Mean error of the gradient over windows and minibatches, in standard errors; it is within 5
    with a chance of failing of about 1e-6."""
    whole, target = regression(DATA), streamed()
    position = jnp.array([0.5, -1.0])

    @jax.jit
    def gradients(target, key):
        found = jax.vmap(target.noisy_gradient, in_axes=(0, None))
        return jnp.mean(
            found(target.batches(key, mt.pytrees.Static(64)), position).gradient, axis=0
        )

    window = find_node(Window, target)
    means = np.stack(
        [gradients(turn_window(target, window, 3 * i), mt.key(i)) for i in range(num_windows)]
    )
    exact = jax.grad(whole.logdensity)(position)
    # by epochs: windows of one depend on each other
    means = scale * means.reshape(-1, 3, 2).mean(axis=1) - np.asarray(exact)
    return np.abs(means.mean(axis=0)) / (means.std(axis=0) / np.sqrt(len(means)))


def test_gradients_are_unbiased():
    assert errors(scale=1.0).max() < 5


def test_a_gradient_scaled_to_the_window_fails_the_same_test():
    assert errors(scale=20 / NUM_ROWS).max() > 5


def test_rows_that_lie_together_on_disk_are_apart_in_a_window():
    stream = mt.stream(mt.sources.from_arrays(np.arange(10_000), page_rows=100), window_rows=2000)
    steps = np.diff(np.asarray(stream.rows(0)))
    assert np.mean(np.abs(steps) == 1) < 0.01  # 1.9 in 2000 by chance; in order it would be 0.99


def test_resumed_runs_go_on_in_the_window_they_were_in(tmp_path):
    def run(folder, number):
        target = streamed()
        sampler = mt.sghmc(target, step_size=0.05, num_steps=2)
        options = {"num_warmup": 10, "num_chains": 2, "progress": False}
        return target, sampler, mt.sample(target, sampler, number, out=folder, **options)

    *_, whole = run(tmp_path / "whole", 40)
    target, sampler, _ = run(tmp_path / "cut", 11)
    resumed = mt.resume(tmp_path / "cut", target, sampler, num_draws=40, progress=False)
    np.testing.assert_array_equal(resumed["posterior"]["position"], whole["posterior"]["position"])


def test_a_new_window_is_no_new_program():
    target = streamed()
    sampler = mt.sghmc(target, step_size=0.05, num_steps=2)
    before = loop._fast.num_compiled()
    mt.sample(target, sampler, num_draws=50, num_warmup=0, num_chains=2, progress=False)
    assert loop._fast.num_compiled() == before + 1


def spread(hold):
    """Standard deviation of draws over the exact one's, of a mean of 20,000 numbers of which 4,000
    are in memory: 8 chains of 4,000 draws know it to about 3 %."""
    x = np.random.default_rng(3).normal(2.0, 1.0, 20_000)
    target = mt.dataset(
        log_prior=lambda mu: -0.5 * mu**2,
        log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        data=mt.stream(mt.sources.from_arrays(x, page_rows=200), window_rows=4000, hold=hold),
        initial=2.0,
        batch_size=100,
    )
    trace = mt.sample(target, num_draws=4000, num_chains=8, progress=False)
    draws, deviation = np.asarray(trace["posterior"]["position"]), 20_001**-0.5
    assert abs(draws.mean() - x.sum() / 20_001) < 0.15 * deviation
    return draws.std() / deviation


@pytest.mark.validate
def test_the_posterior_is_that_of_all_rows():
    """A chain uses half of the window's rows before they are replaced."""
    assert 0.85 < spread(hold=2) < 1.15


@pytest.mark.validate
def test_a_window_held_too_long_fails_the_same_test():
    """It is used ten times over: chains go to its own posterior, sqrt(1 + 4) wide over windows."""
    assert spread(hold=40) > 1.15


CASES = {
    "no minibatch": (
        lambda: mt.dataset(abs, abs, mt.stream(mt.sources.from_arrays(X), 20), 0.0),
        "batch_size must be given",
    ),
    "window too large": (lambda: streamed(window_rows=61), "at most the 60 rows"),
    "hold": (lambda: streamed(hold=0), "hold must be a whole number >= 1"),
    "page": (lambda: streamed(page_rows=0), "page_rows must be a whole number >= 1"),
    "no source": (lambda: mt.stream(X, 20), "momentem.sources"),
    "lengths": (lambda: mt.sources.from_arrays([X, Y[:3]]), "share one leading axis"),
    "scalar": (lambda: mt.sources.from_arrays({"x": 1.0}), r"arrays\['x'\] must be an array"),
    "nothing": (lambda: mt.sources.from_arrays({}), "at least one array"),
    "no file": (lambda: mt.sources.from_parquet("nowhere.parquet", ["x"]), "nowhere.parquet"),
    "replacement": (
        lambda: regression(
            mt.stream(mt.sources.from_arrays(DATA), 20), batches=mt.with_replacement()
        ),
        "batches and mesh must be None",
    ),
    "epoch too short": (
        lambda: mt.stream(mt.sources.from_blocks(pieces, 61), 20).rows(3),
        "num_rows = 61 rows in an epoch, gave 60",
    ),
    "another form": (
        lambda: mt.stream(mt.sources.from_blocks(lambda _: [X, Y], 120), 120).rows(0),
        "rows of one dtype and shape",
    ),
    "NaN": (
        lambda: mt.stream(mt.sources.from_arrays(np.where(Y == 41, np.nan, X.T).T), 60).rows(0),
        "in row 41",
    ),
    "text": (
        lambda: mt.stream(mt.sources.from_arrays(np.full(60, "x")), 60).rows(0),
        "must hold numbers",
    ),
    "control variate": (
        lambda: mt.control_variate(streamed(), jnp.zeros(2)),
        "all its data in memory",
    ),
}


@pytest.mark.usefixtures("without_jaxtyping")
@pytest.mark.parametrize("case", CASES)
def test_errors_name_what_is_wrong(case):
    call, message = CASES[case]
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=message):
        call()


def test_a_parquet_column_must_exist(sources, tmp_path):
    with pytest.raises(ValueError, match=r"columns must be columns of 0\.parquet, got 'z'"):
        mt.sources.from_parquet(tmp_path, ["x", "z"])


@pytest.mark.validate
def test_the_page_on_streams_runs():
    page = (Path(__file__).parents[2] / "docs/streams.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})


def test_the_reader_of_a_stream_ends_with_its_run():
    import threading

    before = threading.active_count()
    data = mt.stream(mt.sources.from_arrays(np.ones(400)), window_rows=100)
    target = mt.dataset(lambda mu: -0.5 * mu**2, lambda mu, x: -0.5 * (x - mu) ** 2, data, 0.0,
                        batch_size=20)  # fmt: skip
    sampler = mt.sghmc(target, step_size=0.01, friction=1.0, num_steps=2)
    first = mt.sample(target, sampler, num_draws=10, num_warmup=0, num_chains=2)
    assert threading.active_count() <= before
    again = mt.sample(target, sampler, num_draws=10, num_warmup=0, num_chains=2)
    assert first["posterior"].equals(again["posterior"])

"""Errors that say which line to write instead."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import momentem as mt

TARGET = mt.density(lambda x: -0.5 * x @ x, np.zeros(2))
PRIOR = {"log_prior": lambda p: -0.5 * p["w"] ** 2, "initial": {"w": 0.0}}


def discrete():
    numpyro.sample("z", dist.Bernoulli(0.5).expand([3]).mask(True).to_event(1))


def unpacks(p, datum):
    x, y = datum
    return -((y - p["w"] * x) ** 2)


CASES = {
    "a NumPyro model": (
        lambda: mt.sample(discrete),
        r"momentem.from_numpyro\(model, \*args\), or from a log density",
    ),
    "a number": (lambda: mt.sample(3.0), "build it with momentem.density or momentem.dataset"),
    "a run": (lambda: mt.sample("run"), r"momentem.load\(folder\)"),
    "a kernel": (
        lambda: mt.sample(TARGET, mt.kernels.hmc(TARGET, 3)),
        r"momentem.nuts\(target\) for BlackJAX's NUTS, or momentem.fixed",
    ),
    "a key": (lambda: mt.sample(TARGET, seed=jax.random.key(0)), "write seed=0"),
    "an old key": (lambda: mt.sample(TARGET, seed=jax.random.PRNGKey(0)), "write seed=0"),
    "a path": (
        lambda: mt.dataset(log_likelihood=unpacks, data="rows.parquet", **PRIOR),
        r"momentem.stream\(momentem.sources.from_parquet\('rows.parquet'",
    ),
    "a source": (
        lambda: mt.dataset(
            log_likelihood=unpacks, data=mt.sources.from_arrays(np.ones(9)), **PRIOR
        ),
        r"data=momentem.stream\(source\)",
    ),
    "NumPy": (lambda: mt.density(lambda x: -np.sum(np.exp(x)), np.zeros(2)), "write jnp.exp"),
    "if": (lambda: mt.density(lambda x: -x if x > 0 else x, 0.0), r"jnp.where\(a, b, c\)"),
    "a discrete site": (lambda: mt.from_numpyro(discrete), "got 'z' of BernoulliProbs"),
}


@pytest.mark.usefixtures("without_jaxtyping")
@pytest.mark.parametrize("case", CASES)
def test_the_answer_has_the_line(case):
    make, message = CASES[case]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.usefixtures("without_jaxtyping")
def test_rows_of_parquet_are_dicts():
    rows = {"income": jnp.ones(4), "age": jnp.ones(4), "sex": jnp.ones(4)}
    with pytest.raises(ValueError, match="too many") as caught:
        mt.dataset(log_likelihood=unpacks, data=rows, **PRIOR)
    assert any("read datum['age']" in note for note in caught.value.__notes__)


@pytest.mark.usefixtures("without_jaxtyping")
def test_a_table_is_rows_of_numbers():
    import pandas as pd

    rows = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0], "z": [0.0, 1.0]})
    with pytest.raises(ValueError, match="too many") as caught:
        mt.dataset(log_likelihood=unpacks, data=rows, **PRIOR)
    assert any("has the shape (3,) here" in note for note in caught.value.__notes__)


@pytest.mark.usefixtures("without_jaxtyping")
def test_an_algorithm_of_blackjax():
    blackjax = pytest.importorskip("blackjax")
    algorithm = blackjax.nuts(TARGET.logdensity, 0.1, jnp.ones(2))
    for given in (blackjax.nuts, algorithm):
        with pytest.raises(TypeError, match=r"is momentem.nuts\(target\)"):
            mt.sample(TARGET, given)


@pytest.mark.usefixtures("without_jaxtyping")
def test_a_pymc_model():
    pm = pytest.importorskip("pymc")
    with pytest.raises(TypeError, match=r"target = momentem.from_pymc\(model\)"):
        mt.sample(pm.Model())


def test_load_opens_what_was_exported(tmp_path):
    from momentem.run.exported import export

    trace = mt.sample(TARGET, mt.hmc(TARGET, 0.8, 2), num_draws=20, num_warmup=0)
    for name in ("run.nc", "run.zarr"):
        export(trace, tmp_path / name)
        found = mt.load(tmp_path / name)
        np.testing.assert_array_equal(
            found["posterior"]["position"], trace["posterior"]["position"]
        )
        assert found.attrs["seed"] == 0
    export(trace, tmp_path / "run.parquet")
    import pandas as pd

    table = pd.read_parquet(tmp_path / "run.parquet")
    assert list(table.columns) == ["chain", "draw", "position[0]", "position[1]"]
    expected = trace["posterior"]["position"].values.reshape(-1, 2)
    np.testing.assert_array_equal(table[["position[0]", "position[1]"]], expected)
    with pytest.raises(ValueError, match="which is no trace"):
        mt.load(tmp_path / "run.parquet")
    with pytest.raises(FileExistsError, match="choose another name"):
        export(trace, tmp_path / "run.nc")
    (tmp_path / "bad.nc").write_text("no")
    with pytest.raises(ValueError, match="cannot be read as a trace"):
        mt.load(tmp_path / "bad.nc")

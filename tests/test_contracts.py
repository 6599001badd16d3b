"""Promises that the parts of the package make to each other."""

import ast
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.moments import Moments, add_samples
from momentem.run.in_memory import Memory
from momentem.run.log.write import RunLog
from momentem.run.plan import Sink

from processes import run_alone

SOURCE = Path(mt.__file__).parent
TARGET = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
IDENTITY = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.5)


def minibatches(**options):
    data = np.random.default_rng(0).normal(size=(200, 2))
    prior = options.pop("prior", lambda x: -0.5 * x @ x)
    return mt.dataset(
        prior, lambda x, row: -0.5 * jnp.sum((row - x) ** 2), data, jnp.zeros(2), batch_size=20
    )


# --- what is learnt ---------------------------------------------------------------------------


def test_what_a_kernel_does_not_leave_open_is_refused():
    with pytest.raises(ValueError, match="learnt names 'noize', which this kernel does not leave"):
        mt.fixed(mt.kernels.sghmc(minibatches(), 3), IDENTITY.replace(noize=jnp.ones(2)))


def test_a_name_that_is_not_learnt_is_an_error_that_lists_what_is():
    with pytest.raises(AttributeError, match="'centre' is learnt, only mass, step_size, noise"):
        _ = IDENTITY.replace(noise=jnp.ones(2)).centre


def test_shapes_of_what_is_learnt_are_the_kernel_s():
    with pytest.raises(ValueError, match=r"noise must have shape \(2,\), got \(3,\)"):
        mt.fixed(mt.kernels.sghmc(minibatches(), 3), IDENTITY.replace(noise=jnp.ones(3)))


def test_two_things_of_one_name_are_refused():
    with pytest.raises(ValueError, match="have the name 'inverse_mass'"):
        IDENTITY.replace(inverse_mass=jnp.ones(2)).arrays()


# --- the prior's curvature --------------------------------------------------------------------


def correlated(dim, rho):
    """A normal prior with unit variances and one correlation, and the diagonal of its precision."""
    precision = np.linalg.inv((1 - rho) * np.eye(dim) + rho * np.ones((dim, dim)))
    return (lambda x: -0.5 * x @ jnp.asarray(precision, x.dtype) @ x), np.diag(precision)


def test_prior_curvature_is_the_diagonal_of_a_correlated_prior():
    prior, diagonal = correlated(2, 0.9)
    found = minibatches(prior=prior).prior_curvature(jnp.ones(2))
    np.testing.assert_allclose(found, diagonal, rtol=1e-10)  # its row sums are a tenth of that


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_prior_curvature_in_high_dimensions_is_within_its_error(dtype):
    from momentem.targets._minibatch import EXACT_DIMENSION, NUM_PROBES, curvature_diagonal

    dim = EXACT_DIMENSION + 50
    prior, diagonal = correlated(dim, 0.5)
    found = np.asarray(curvature_diagonal(prior, jnp.ones(dim, dtype)))
    off = diagonal[0] - 1 / (1 - 0.5)  # all entries beside the diagonal are this
    error = np.sqrt(dim - 1) * abs(off) / NUM_PROBES**0.5
    assert np.abs(found - diagonal).max() <= 6 * error + 1e-4  # of 306 entries: chance below 1e-6
    independent = curvature_diagonal(lambda x: -jnp.sum(x**4), jnp.full(dim, 2.0, dtype))
    np.testing.assert_allclose(independent, 48.0, rtol=1e-5)


# --- M-steps take what they need from the kernel ------------------------------------------------


def test_the_noise_m_step_goes_by_the_kernel_s_own_friction():
    target = minibatches()

    def step_size(friction):
        m_step = mt.m_steps.noise(mt.kernels.sghmc(target, 1, friction), max_step_size=1e9)
        learnt = IDENTITY.replace(noise=jnp.zeros(2))
        noisy = jnp.full((10, 1, 2), 50.0)
        stats = {"diverging": jnp.zeros(10, bool)}
        info = mt.Info(jnp.zeros((10, 2)), jnp.zeros((10, 2)), jnp.zeros((10, 2)), stats, noisy)
        statistic = m_step.update(m_step.init(learnt.mass, 10), info, learnt)
        estimate = m_step.estimate(statistic, learnt)
        return float(m_step.average(learnt, estimate, jnp.array(1.0)).step_size)

    assert step_size(0.002) == pytest.approx(2 * step_size(0.001))


def test_a_kernel_without_friction_or_minibatches_is_refused():
    with pytest.raises(TypeError, match="must sample a minibatch target"):
        mt.m_steps.noise(mt.kernels.hmc(TARGET, num_steps=3))
    with pytest.raises(TypeError, match="must have a friction"):
        mt.m_steps.noise(mt.kernels.sghmc_printed(minibatches(), 3, 1.0, 0.1))


# --- tuning -------------------------------------------------------------------------------------


def test_tuning_refuses_a_kernel_without_a_path():
    with pytest.raises(TypeError, match="must leave open a centre and a path"):
        mt.tuned_em(mt.kernels.hmc(TARGET, num_steps=3), IDENTITY)


def test_tuning_refuses_a_kernel_that_reports_no_acceptance():
    kernel = mt.kernels.rotating_hmc(TARGET)

    def silent(key, state, learnt):
        state, info = kernel.step(key, state, learnt)
        return state, info._replace(stats={"diverging": info.stats["diverging"]})

    with pytest.raises(TypeError, match="lacks acceptance_rate"):
        mt.tuned_em(kernel._replace(step=jax.tree_util.Partial(silent)), IDENTITY)


def test_the_kernel_of_the_default_holds_no_tuning_state():
    kernel = mt.kernels.rotating_hmc(TARGET)
    learnt = kernel.complete(IDENTITY)
    state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
    assert state._fields == ("position", "logdensity", "gradient")


# --- moments have one home ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_moments_in_pieces_are_those_of_all(dtype):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(60, 3)) @ rng.normal(size=(3, 3)) + 1000.0).astype(dtype)
    dense, diagonal = (
        Moments.fresh(jnp.zeros(3, dtype), z) for z in (jnp.eye(3, dtype=dtype),) * 2
    )
    diagonal = Moments.fresh(jnp.zeros(3, dtype), jnp.zeros(3, dtype))
    for piece in np.split(x, [1, 2, 10, 35]):
        dense = add_samples(dense, jnp.asarray(piece), mt.DenseMass.outer)
        diagonal = add_samples(diagonal, jnp.asarray(piece))
    covariance = np.cov(x.astype(float).T, bias=True)
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-3
    np.testing.assert_allclose(dense.mean, x.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(dense.covariance, covariance, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(diagonal.covariance, np.diag(covariance), rtol=tolerance)


def test_moments_go_on_growing_in_single_precision():
    """A sum of squares would stand still after 2^24 draws; a mean does not."""
    moments = Moments(jnp.array(2**24), jnp.zeros(1, jnp.float32), jnp.ones(1, jnp.float32))
    for _ in range(3):
        moments = add_samples(moments, jnp.full((2**20, 1), 2.0, jnp.float32))
    n, m = 2**24, 3 * 2**20
    expected = n / (n + m) * (1 + 4 * m / (n + m))
    np.testing.assert_allclose(moments.covariance, expected, rtol=1e-5)


def test_emptied_moments_forget():
    full = add_samples(Moments.fresh(jnp.zeros(2), jnp.zeros(2)), jnp.full((5, 2), 7.0))
    again = add_samples(full._replace(num_samples=jnp.array(0)), jnp.array([[1.0, 3.0]]))
    np.testing.assert_array_equal(again.mean, [1.0, 3.0])
    np.testing.assert_array_equal(again.covariance, [0.0, 0.0])


# --- one run, two sinks -------------------------------------------------------------------------


def test_memory_and_log_are_sinks():
    members = [name for name in vars(Sink) if not name.startswith("_")]
    members += list(Sink.__annotations__)
    for kind in (Memory, RunLog):
        source = inspect.getsource(kind)
        missing = [name for name in members if not hasattr(kind, name) and name not in source]
        assert not missing, f"{kind.__name__} lacks {missing}"


def test_the_body_of_sample_fits_on_a_screen():
    tree = ast.parse((SOURCE / "sampling.py").read_text())
    (function,) = (node for node in tree.body if getattr(node, "name", "") == "sample")
    body = function.body[1:]  # without the docstring
    assert body[-1].end_lineno - body[0].lineno < 40


def test_a_resumed_default_goes_on_doubling(tmp_path, monkeypatch):
    """As the uninterrupted run would: how far is part of the plan on disk."""
    import momentem.run.diagnostics as diagnostics
    import momentem.sampling as sampling

    monkeypatch.setattr(sampling, "DRAWS", 40)
    monkeypatch.setattr(sampling, "MOST_DRAWS", 160)
    monkeypatch.setattr(diagnostics, "is_short", lambda found: True)
    whole = mt.sample(TARGET, seed=3, out=tmp_path / "whole")
    assert whole["posterior"].sizes["draw"] == 160
    folder = tmp_path / "cut"
    monkeypatch.setattr(diagnostics, "is_short", lambda found: False)
    assert mt.sample(TARGET, seed=3, out=folder)["posterior"].sizes["draw"] == 40
    monkeypatch.setattr(diagnostics, "is_short", lambda found: True)
    resumed = mt.resume(folder, TARGET)
    np.testing.assert_array_equal(resumed["posterior"]["position"], whole["posterior"]["position"])


# --- who may know what --------------------------------------------------------------------------


def names_in(folder):
    for path in sorted((SOURCE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name):
                yield path.name, node.id
            elif isinstance(node, ast.Attribute):
                yield path.name, node.attr


def test_em_and_tuning_name_no_mass_and_no_kernel():
    concrete = {"DenseMass", "DiagonalMass", "LowRankMass", "RiemannianKernel", "rotating_hmc"}
    found = [(file, name) for room in ("em", "tuning") for file, name in names_in(room)]
    assert not [(file, name) for file, name in found if name in concrete]


def test_kernels_do_not_import_each_other():
    for path in (SOURCE / "kernels").glob("*.py"):
        if path.name == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("momentem.kernels"):
                shared = str(node.module).removeprefix("momentem.kernels.")
                assert not shared.startswith("_"), f"{path.name} imports {shared}"
                assert shared not in ("printed", "wrappers"), f"{path.name} imports {shared}"


def optional_arguments(function):
    """The names of arguments whose default is None."""
    arguments = function.args
    pairs = zip(arguments.args[::-1], arguments.defaults[::-1], strict=False)
    pairs = [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return {a.arg for a, d in pairs if isinstance(d, ast.Constant) and d.value is None}


def test_no_default_by_or():
    """`x or default` takes an explicit 0 for None."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            names = optional_arguments(function)
            for node in [n for n in ast.walk(function) if isinstance(n, ast.BoolOp)]:
                first = node.values[0]
                is_default = isinstance(node.op, ast.Or) and isinstance(first, ast.Name)
                assert not (is_default and first.id in names), f"{path.name}:{node.lineno}"


def test_precision_is_no_name_of_the_inverse_mass():
    """The word is for floating-point numbers, and for a prior's in `metrics`."""
    allowed = {"pymc.py"}  # PyTensor's floatX
    for path in sorted(SOURCE.rglob("*.py")):
        names = {
            getattr(node, "id", getattr(node, "attr", getattr(node, "arg", None)))
            for node in ast.walk(ast.parse(path.read_text()))
        }
        assert "precision" not in names or path.name in allowed, path.name


# --- importing the package ----------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy():
    heavy = (
        "numpyro",
        "scipy",
        "xarray",
        "pandas",
        "arviz_base",
        "arviz_stats",
        "momentem.testing",
    )
    code = f"import sys, momentem; print([m for m in {heavy} if m in sys.modules])"
    assert run_alone(code).strip() == "[]"

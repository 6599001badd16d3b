"""Monte Carlo EM as a whole: what it learns, what it refuses, what it costs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import momentem as mt
from momentem.types import Info

pytestmark = pytest.mark.usefixtures("quick_compilation")

DIM = 10


def rotated_gaussian():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    return basis * np.logspace(-1, 1, DIM) @ basis.T


PRECISION = rotated_gaussian()
TARGET = mt.density(Partial(lambda P, x: -0.5 * x @ P @ x, jnp.asarray(PRECISION)), jnp.zeros(DIM))
STATIONARY = (
    np.random.default_rng(1).normal(size=(4, DIM)) @ np.linalg.cholesky(np.linalg.inv(PRECISION)).T
)


def learnt_condition(m_step, scale, num_iterations=5000):
    """cond(M_I P) learnt from starts `scale` standard deviations out (1 is stationary)."""
    sampler = mt.hmc_em(
        TARGET, step_size=0.15, num_steps=10, m_step=m_step, e_step=mt.e_steps.constant(200)
    )
    trace = mt.sample(
        TARGET, sampler, num_draws=16, num_warmup=num_iterations, positions=scale * STATIONARY
    )
    whitened = np.linalg.eigvals(trace["em"]["final_inverse_mass"].values @ PRECISION).real
    return whitened.max() / whitened.min()


@pytest.mark.parametrize("scale", [1, 30], ids=["stationary", "far"])
@pytest.mark.parametrize("name", ["score", "draws", "fisher"])
@pytest.mark.validate
def test_informative_m_steps_whiten_the_posterior(name, scale):
    assert learnt_condition(getattr(mt.m_steps, name)(), scale) < 1.5


@pytest.mark.parametrize("name", ["momentum", "momentum_printed"])
@pytest.mark.validate
def test_the_paper_s_m_step_learns_nothing_at_stationarity(name):
    """Every mass is a fixed point: the condition number stays where it was, near 100."""
    assert learnt_condition(getattr(mt.m_steps, name)(), 1) > 50


@pytest.mark.validate
def test_e_steps_grow_within_a_run():
    sampler = mt.hmc_em(TARGET, 0.15, 3, e_step=mt.e_steps.growing(40))
    trace = mt.sample(TARGET, sampler, num_draws=10, num_warmup=200, positions=STATIONARY)
    sizes = trace["em"]["e_step_size"].values
    assert sizes[0] == 40
    assert sizes[-1] > 44
    assert np.diff(trace["em"]["iteration"].values)[-1] == -(-sizes[-1] // 4)


def test_a_warm_up_too_short_to_learn_is_refused():
    with pytest.raises(ValueError, match="num_warmup must be at least 25"):
        mt.sample(TARGET, mt.hmc_em(TARGET, 0.15, 3), num_draws=20, num_warmup=5)


class Drifting(NamedTuple):
    position: jnp.ndarray
    momentum: jnp.ndarray


def carrying_kernel():
    """A kernel that keeps its momentum for ever, so that only transport can change it."""

    def init(key, position, learnt):
        return Drifting(position, learnt.mass.sample(key))

    def step(key, state, learnt):
        noise = jax.random.normal(key, state.position.shape) * jnp.array([10.0, 0.1])
        info = Info(noise, state.momentum, -noise, {"diverging": jnp.array(False)})
        return state, info

    def transport(state, old, new):
        return state._replace(momentum=new.mass.transport(state.momentum, old.mass))

    return mt.Kernel(Partial(init), Partial(step), Partial(transport))


def test_momenta_are_transported_when_the_mass_changes():
    learnt = mt.Learnt(mt.diagonal_mass(np.ones(2)), jnp.array(0.1))
    sampler = mt.monte_carlo_em(
        carrying_kernel(), learnt, mt.m_steps.draws(), mt.e_steps.constant(40)
    )
    state = sampler.init(jax.random.key(0), jnp.zeros((20, 2)))
    start = state.chains.momentum
    for key in jax.random.split(jax.random.key(1), 2):  # the second completes the E-step
        state, info = sampler.step(key, state)
    assert bool(info.learning["is_m_step"])
    precision = sampler.learnt(state).mass.inverse_mass
    assert float(precision[0]) > 2
    np.testing.assert_allclose(state.chains.momentum, start / np.sqrt(precision)[None], rtol=1e-10)


def test_the_e_step_pools_the_chains_and_the_trace_tells_each_m_step():
    sampler = mt.hmc_em(TARGET, 0.15, 3, e_step=mt.e_steps.constant(100))
    trace = mt.sample(TARGET, sampler, num_draws=10, num_warmup=110, num_chains=5)
    em = trace["em"]
    assert em["iteration"].values.tolist() == [19, 39, 59, 79, 99]
    assert em["num_m_steps"].values.tolist() == [1, 2, 3, 4, 5]
    assert (em["e_step_size"] == 100).all()
    np.testing.assert_allclose(em["averaging_rate"], (10 + np.arange(1, 6)) ** -0.7)
    np.testing.assert_allclose(em["inverse_mass_diagonal"][-1], np.diag(em["final_inverse_mass"]))
    condition = np.linalg.cond(em["final_inverse_mass"].values)
    np.testing.assert_allclose(em["condition_number"][-1], condition, rtol=1e-8)


def test_forever_goes_on_learning_and_a_frozen_sampler_does_not():
    sampler = mt.hmc_em(TARGET, 0.15, 3, e_step=mt.e_steps.constant(100))
    options = {"num_draws": 100, "num_warmup": 100}
    frozen = mt.sample(TARGET, sampler, **options)
    forever = mt.sample(TARGET, mt.forever(sampler), **options)
    assert frozen["em"].sizes["m_step"] == 4
    assert forever["em"].sizes["m_step"] == 8
    assert forever["em"]["iteration"].values.tolist() == list(range(24, 200, 25))
    np.testing.assert_array_equal(
        frozen["warmup_posterior"]["position"], forever["warmup_posterior"]["position"]
    )


def test_an_estimate_that_is_not_positive_definite_is_refused_and_counted():
    """A target so steep for this step that nothing moves: the draws have no variance."""
    target = mt.density(lambda x: -0.5e12 * x @ x, 1e-6 * jnp.ones(2))
    sampler = mt.hmc_em(target, 1.0, 3, m_step=mt.m_steps.draws(), e_step=mt.e_steps.constant(40))
    with pytest.warns(mt.SamplingWarning) as warned:
        trace = mt.sample(target, sampler, num_draws=10, num_warmup=50, spread=0.0)
    assert trace["em"]["is_refused"].all()
    np.testing.assert_array_equal(trace["em"]["final_inverse_mass"], np.eye(2))
    assert any("5 of 5 M-steps were refused" in str(warning.message) for warning in warned)
    assert any("40 of 40 draws diverged" in str(warning.message) for warning in warned)


@pytest.mark.validate
def test_a_low_rank_mass_in_ten_thousand_dimensions_needs_no_square_array():
    dim, rank = 10_000, 10
    target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim))
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, rank)))[0]
    mass = mt.low_rank_mass(np.ones(dim), vectors, np.ones(rank))
    m_step, e_step = mt.m_steps.fisher_low_rank(2 * rank), mt.e_steps.growing(2 * rank)
    sampler = mt.hmc_em(target, 0.05, 3, mass, m_step, e_step)
    state = sampler.init(jax.random.key(0), jnp.ones((4, dim)))
    step = jax.jit(lambda sampler, key, state: sampler.step(key, state))
    memory = step.lower(sampler, jax.random.key(1), state).compile().memory_analysis()
    peak = memory.temp_size_in_bytes + memory.output_size_in_bytes
    assert peak < 1000 * dim * 8, f"{peak / 1e6:.0f} MB; a square array has {dim**2 * 8 / 1e6:.0f}"
    for key in jax.random.split(jax.random.key(1), 6):
        state, info = step(sampler, key, state)
    assert int(info.learning["num_m_steps"]) == 1
    assert bool(state.learnt.mass.is_proper())


def test_the_m_step_is_paid_once_per_e_step():
    """Its factorisation is in a loop that runs when an E-step is over, and nowhere else."""
    sampler = mt.hmc_em(TARGET, 0.15, 3)
    state = sampler.init(jax.random.key(0), jnp.zeros((4, DIM)))
    jaxpr = jax.make_jaxpr(sampler.step)(jax.random.key(0), state)
    outside, inside = set(), set()

    def walk(jaxpr, names):
        for equation in jaxpr.eqns:
            names.add(equation.primitive.name)
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(inner, "jaxpr"):
                        walk(inner.jaxpr, inside if equation.primitive.name == "while" else names)

    walk(jaxpr.jaxpr, outside)
    assert "cholesky" in inside
    assert "cholesky" not in outside

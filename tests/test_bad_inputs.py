"""Bad inputs: each ends in an error of ours that names the argument, the rule and the value.

jaxtyping's checks, on in every other test, would answer first; users do not have them, so they are
off here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt

pytestmark = pytest.mark.usefixtures("without_jaxtyping")


def normal(parameters):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))


def prior(mu):
    return -0.5 * mu**2


def likelihood(mu, x):
    return -0.5 * (x - mu) ** 2


def target():
    return mt.density(normal, jnp.zeros(3))


def learnt(dim=3, step_size=0.1):
    return mt.Learnt(mt.dense_mass(np.eye(dim)), step_size)


def kernel():
    return mt.kernels.hmc(target(), 3)


def em(**options):
    defaults = {"m_step": mt.m_steps.fisher(), "e_step": mt.e_steps.constant(20)}
    return mt.monte_carlo_em(kernel(), learnt(), **(defaults | options))


def sample(**options):
    return mt.sample(target(), **({"sampler": mt.hmc(target(), 0.1, 3), "num_draws": 5} | options))


def given_simplex(positions):
    free = mt.density(normal, {"x": jnp.full(3, 1 / 3)}, {"x": mt.constraints.simplex})
    return mt.sample(free, mt.hmc(free, 0.1, 3), num_draws=5, positions={"x": positions})


def minibatches(batch_size):
    return mt.dataset(prior, likelihood, np.ones(10), 0.0, batch_size=batch_size)


CASES = {
    # density
    "logdensity not a function": (
        lambda: mt.density(3.0, 0.0),
        "logdensity must be a function, got 3.0",
    ),
    "logdensity of a vector": (
        lambda: mt.density(lambda x: x, jnp.zeros(2)),
        r"scalar, got shape \(2,\)",
    ),
    "logdensity of None": (lambda: mt.density(lambda x: None, 0.0), "scalar, got NoneType"),
    "logdensity of an integer": (lambda: mt.density(lambda x: jnp.array(1), 0.0), "dtype int64"),
    "initial empty": (lambda: mt.density(normal, {}), "initial must hold at least one number"),
    "initial text": (lambda: mt.density(normal, {"a": "one"}), "'a' must be numbers, got 'one'"),
    "initial NaN": (
        lambda: mt.density(normal, {"a": jnp.array([0, jnp.nan])}),
        "'a' must be finite",
    ),
    "initial infinite": (
        lambda: mt.density(normal, jnp.array(jnp.inf)),
        "'position' must be finite",
    ),
    "initial complex": (
        lambda: mt.density(normal, 1j),
        "must be real numbers, got dtype complex128",
    ),
    "initial boolean": (
        lambda: mt.density(normal, {"a": True}),
        "'a' must be real numbers, got dtype bool",
    ),
    "initial of two dtypes": (
        lambda: mt.density(normal, {"a": jnp.ones(2, "f4"), "b": jnp.ones(2, "f8")}),
        "share one dtype, got a: float32, b: float64",
    ),
    "parameter called chain": (
        lambda: mt.density(normal, {"chain": 0.0}),
        "parameter named 'chain'",
    ),
    "parameters of one name": (
        lambda: mt.density(normal, {"a": {"b": 0.0}, "a.b": 0.0}),
        "parameter named 'a.b': names must be unique",
    ),
    "constraint of a stranger": (
        lambda: mt.density(normal, {"a": 0.0}, {"b": mt.constraints.positive}),
        r"constraints must name parameters of initial, \['a'\], got 'b'",
    ),
    "constraint unknown": (
        lambda: mt.density(normal, {"a": 1.0}, {"a": "positive"}),
        "constraint of 'a' must be a NumPyro constraint, got 'positive'",
    ),
    "constraint discrete": (
        lambda: mt.density(normal, {"a": 1.0}, {"a": mt.constraints.boolean}),
        "constraints must be continuous",
    ),
    "constraint broken by initial": (
        lambda: mt.density(normal, {"a": -1.0}, {"a": mt.constraints.positive}),
        "initial value of 'a' must satisfy .*got -1.0",
    ),
    "constraint of a bare array": (
        lambda: mt.density(normal, jnp.ones(2), {"a": mt.constraints.positive}),
        "initial must be a dict",
    ),
    # dataset
    "data empty": (
        lambda: mt.dataset(prior, likelihood, (), 0.0),
        "data must hold at least one array",
    ),
    "data without rows": (lambda: mt.dataset(prior, likelihood, np.zeros(0), 0.0), "row per datum"),
    "data a scalar": (lambda: mt.dataset(prior, likelihood, 1.0, 0.0), "row per datum"),
    "data text": (lambda: mt.dataset(prior, likelihood, np.array(["a"]), 0.0), "must hold numbers"),
    "data ragged": (
        lambda: mt.dataset(prior, likelihood, (np.zeros(3), np.zeros(4)), 0.0),
        r"data\[0\]: 3, data\[1\]: 4",
    ),
    "data with NaN": (
        lambda: mt.dataset(prior, likelihood, {"x": np.array([0, np.nan, 1])}, 0.0),
        r"data\['x'\] must be finite, got nan in row 1",
    ),
    "likelihood of all data": (
        lambda: mt.dataset(prior, lambda mu, x: jnp.ones(2), np.ones(2), 0.0),
        r"log_likelihood\(parameters, datum\) must return a floating-point scalar",
    ),
    "prior of a vector": (
        lambda: mt.dataset(lambda mu: jnp.ones(2), likelihood, np.ones(2), 0.0),
        r"log_prior\(parameters\) must return",
    ),
    "data of another dtype": (
        lambda: mt.dataset(prior, lambda mu, x: x, np.ones(2), jnp.zeros((), "f4")),
        "returns float64 for parameters of float32; cast the data",
    ),
    # masses
    "inverse_mass negative": (lambda: mt.diagonal_mass([1.0, -2.0]), "entry 1 of 2 is -2"),
    "inverse_mass a matrix": (lambda: mt.diagonal_mass(np.eye(2)), r"1 axes, got shape \(2, 2\)"),
    "inverse_mass whole numbers": (
        lambda: mt.diagonal_mass([1, 2]),
        "floating-point numbers, got dtype int64",
    ),
    "inverse_mass a vector": (lambda: mt.dense_mass(np.ones(2)), r"2 axes, got shape \(2,\)"),
    "inverse_mass not square": (
        lambda: mt.dense_mass(np.ones((2, 3))),
        r"square, got shape \(2, 3\)",
    ),
    "inverse_mass not symmetric": (
        lambda: mt.dense_mass([[1.0, 0.5], [0.0, 1.0]]),
        "transpose by 0.5",
    ),
    "inverse_mass indefinite": (
        lambda: mt.dense_mass([[1.0, 2.0], [2.0, 1.0]]),
        r"eigenvalue 0 of 2 is -1 \(the largest is 3\)",
    ),
    "inverse_mass singular": (lambda: mt.dense_mass(np.ones((2, 2))), "eigenvalue 0 of 2 is"),
    "inverse_mass NaN": (
        lambda: mt.dense_mass([[1.0, 0.0], [0.0, np.nan]]),
        r"got nan at index \(1, 1\)",
    ),
    "directions not orthonormal": (
        lambda: mt.low_rank_mass(np.ones(3), np.ones((3, 1)), np.ones(1)),
        "U'U is off by 2",
    ),
    "directions misshapen": (
        lambda: mt.low_rank_mass(np.ones(3), np.eye(3)[:, :2], np.ones(1)),
        r"\(3, 1\), got \(3, 2\)",
    ),
    "eigenvalue zero": (
        lambda: mt.low_rank_mass(np.ones(3), np.eye(3)[:, :1], np.zeros(1)),
        "eigenvalues must be positive: entry 0 of 1 is 0",
    ),
    # kernels and samplers
    "step size negative": (
        lambda: mt.hmc(target(), -0.1, 3),
        "step_size must be finite and > 0, got -0.1",
    ),
    "step size NaN": (
        lambda: mt.hmc(target(), np.nan, 3),
        "step_size must be finite and > 0, got nan",
    ),
    "step size text": (
        lambda: mt.hmc(target(), "small", 3),
        "step_size must be a number, got 'small'",
    ),
    "no steps": (lambda: mt.hmc(target(), 0.1, 0), "num_steps must be a whole number >= 1, got 0"),
    "half a step": (
        lambda: mt.hmc(target(), 0.1, 2.5),
        "num_steps must be a whole number, got 2.5",
    ),
    "jitter of all": (
        lambda: mt.hmc(target(), 0.1, 3, jitter=1.0),
        r"jitter must lie in \[0.0, 1.0\), got 1.0",
    ),
    "target a function": (lambda: mt.hmc(normal, 0.1, 3), "target must be a Target"),
    "mass a bare array": (
        lambda: mt.hmc(target(), 0.1, 3, mass=jnp.ones(3)),
        "mass must be a Mass",
    ),
    "mass of another dimension": (
        lambda: sample(sampler=mt.hmc(target(), 0.1, 3, mass=mt.diagonal_mass(np.ones(2)))),
        r"positions must have shape \(chains, 2\) to fit the mass, got \(4, 3\)",
    ),
    "mass of another dtype": (
        lambda: sample(sampler=mt.hmc(target(), 0.1, 3, mass=mt.diagonal_mass(np.ones(3, "f4")))),
        "positions and mass must share a dtype, got float64 and float32",
    ),
    "key raw": (
        lambda: em().init(jax.random.PRNGKey(0), jnp.zeros((2, 3))),
        r"one typed JAX key, .*jax.random.key\(seed\)",
    ),
    "keys many": (
        lambda: em().init(jax.random.split(jax.random.key(0)), jnp.zeros((2, 3))),
        "one typed JAX key",
    ),
    # EM
    "E-step too small": (
        lambda: em(m_step=mt.m_steps.momentum(), e_step=mt.e_steps.constant(4)),
        r"at least 3 \+ 2 draws for a DenseMass of this size, got 4; raise the size of the E-step",
    ),
    "E-step of nothing": (
        lambda: mt.e_steps.constant(0),
        "size must be a whole number >= 1, got 0",
    ),
    "gap rate below one": (
        lambda: mt.e_steps.growing(10, gap_rate=0.5),
        r"gap_rate must lie in \[1.0, inf\)",
    ),
    "gap power zero": (
        lambda: mt.e_steps.growing(10, gap_power=0.0),
        "gap_power must be finite and > 0",
    ),
    "growth negative": (
        lambda: mt.e_steps.growing(10, growth=-1.0),
        "growth must be finite and > 0, got -1.0",
    ),
    "alpha one": (
        lambda: mt.e_steps.growing(10, alpha=1.0),
        r"alpha must lie in \[0.0, 1.0\), got 1.0",
    ),
    "averaging by a number": (lambda: em(averaging=0.5), "averaging must be a Partial, got 0.5"),
    "averaging too slow": (
        lambda: mt.schedules.polynomial(0.4),
        r"exponent must lie in \(1/2, 1\].*got 0.4",
    ),
    "M-step a name": (lambda: em(m_step="fisher"), "m_step must be a MStep, got 'fisher'"),
    "M-step for another mass": (
        lambda: em(m_step=mt.m_steps.fisher_low_rank(8)),
        "learns a LowRankMass, got an initial mass of type DenseMass",
    ),
    "kernel a sampler": (lambda: mt.fixed(em(), learnt()), "kernel must be a Kernel"),
    "learnt a tuple": (lambda: mt.fixed(kernel(), (1, 2)), "learnt must be a Learnt"),
    # sample
    "sampler a kernel": (lambda: sample(sampler=kernel()), "sampler must be a Sampler"),
    "no draws": (lambda: sample(num_draws=0), "num_draws must be a whole number >= 1, got 0"),
    "draws a float": (
        lambda: sample(num_draws=1e3),
        "num_draws must be a whole number, got 1000.0",
    ),
    "warm-up negative": (
        lambda: sample(num_warmup=-1),
        "num_warmup must be a whole number >= 0, got -1",
    ),
    "no chains": (lambda: sample(num_chains=0), "num_chains must be a whole number >= 1, got 0"),
    "seed a key": (lambda: sample(seed=jax.random.key(0)), "seed must be a whole number, got"),
    "spread negative": (lambda: sample(spread=-1.0), r"spread must lie in \[0.0, inf\), got -1.0"),
    "positions misshapen": (
        lambda: sample(positions=np.zeros((4, 2))),
        r"leading axis of 4 chains, with shapes \(4, 3\), got \(4, 2\)",
    ),
    "positions not finite": (
        lambda: sample(positions=np.full((4, 3), np.inf)),
        "finite log density",
    ),
    "positions outside their constraint": (
        lambda: given_simplex(np.full((4, 3), 0.5)),
        r"positions of 'x' must satisfy its constraint, got \[0.5 0.5 0.5\] in chain 0",
    ),
    "coords of another length": (
        lambda: sample(dims={"position": ["d"]}, coords={"d": ["a", "b"]}),
        "dims and coords must fit",
    ),
    "seed too large": (lambda: sample(seed=2**32), r"seed must be below 2\^32, got 4294967296"),
    "batch odd": (lambda: minibatches(3), "batch_size must be even.*at most the 10 rows.*got 3"),
    "batch larger than the data": (lambda: minibatches(12), "at most the 10 rows of data, got 12"),
    "friction negative": (
        lambda: mt.sghmc(minibatches(4), 0.1, 3, -1.0),
        "friction must be finite",
    ),
    "no minibatches": (lambda: mt.sghmc(target(), 0.1, 3), "target must be a StochasticTarget"),
    "noise negative": (
        lambda: mt.sghmc(minibatches(4), 0.1, 3, noise=[-1.0]),
        "noise must be 1 variances >= 0",
    ),
    "dims of a stranger": (lambda: sample(dims={"nobody": ["here"]}), "dims names 'nobody'"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    call, message = CASES[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call()
    assert "momentem" in str(caught.traceback[-1].path), "the error must be ours"


def test_there_are_enough():
    assert len(CASES) >= 40

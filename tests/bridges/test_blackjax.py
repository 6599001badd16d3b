"""from_blackjax: the kernel's contract, NUTS-EM on a known Gaussian, and a sabotage that shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.masses import DenseMass
from momentem.testing import check_kernel, invariance, skewed_target

blackjax = pytest.importorskip("blackjax")
pytestmark = pytest.mark.usefixtures("quick_compilation")

# correlated, scales 0.1 to 10
SCALES = jnp.array([0.1, 1.0, 10.0])
CORRELATION = jnp.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.5], [0.0, -0.5, 1.0]])
COVARIANCE = SCALES[:, None] * CORRELATION * SCALES[None]
INVERSE = jnp.linalg.inv(COVARIANCE)


def gaussian(x):
    return -0.5 * x @ INVERSE @ x


@pytest.fixture(scope="module")
def target():
    return mt.density(gaussian, jnp.zeros(3))


def exact(key, n):
    return jax.random.normal(key, (n, 3)) @ jnp.linalg.cholesky(COVARIANCE).T


@pytest.mark.validate
def test_nuts_keeps_the_contract_of_kernels():
    # in the precision of BlackJAX's own constants: it cannot do float32 while JAX is in float64
    with jax.enable_x64(False):
        check_kernel(lambda target: mt.from_blackjax(blackjax.nuts, target))


@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        (blackjax.hmc, {"num_integration_steps": 3}),
        (blackjax.mhmc, {"num_integration_steps": 3}),
        (blackjax.dynamic_hmc, {}),
        (blackjax.barker, {}),
    ],
    ids=["hmc", "mhmc", "dynamic_hmc", "barker"],
)
def test_other_algorithms_step(key, target, algorithm, parameters):
    kernel = mt.from_blackjax(algorithm, target, **parameters)
    learnt = mt.Learnt(mt.dense_mass(COVARIANCE), jnp.array(0.5))
    state = kernel.init(key, jnp.ones(3), learnt)
    step = jax.jit(lambda kernel, key, state: kernel.step(key, state, learnt))
    state, info = step(kernel, jax.random.key(1), state)
    np.testing.assert_allclose(info.gradient, jax.grad(gaussian)(info.position), rtol=1e-10)
    assert {"diverging", "lp", "acceptance_rate"} <= info.stats.keys()


def test_hmc_tells_the_accepted_momentum_and_its_energy(key, target):
    """p ~ N(0, M) at the start and, accepted or not, at the end: E[p p'] = M, 5 standard errors for
    6 entries: false alarm 4e-6."""
    kernel = mt.from_blackjax(blackjax.hmc, target, num_integration_steps=3)
    learnt = mt.Learnt(mt.dense_mass(COVARIANCE), jnp.array(1.5))
    starts = exact(key, 4000)

    def one(key, position):
        return kernel.step(key, kernel.init(key, position, learnt), learnt)[1]

    info = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 4000), starts)
    white = jax.vmap(learnt.mass.whiten)(info.momentum)
    products = np.stack([white[:, i] * white[:, j] for i in range(3) for j in range(i + 1)])
    expected = np.array([float(i == j) for i in range(3) for j in range(i + 1)])
    error = products.std(axis=1) / len(white) ** 0.5
    assert (np.abs(products.mean(axis=1) - expected) < 5 * error).all()
    energy = jax.vmap(learnt.mass.kinetic_energy)(info.momentum) - info.stats["lp"]
    np.testing.assert_allclose(info.stats["energy"], energy)
    assert 0.5 < float(jnp.mean(info.stats["acceptance_rate"])) < 0.99


@pytest.mark.validate
def test_one_step_of_nuts_leaves_the_gaussian_alone(key, target):
    """The smallest of 9 p-values is below 1e-5 with a chance of 9e-5."""
    learnt = mt.Learnt(DenseMass.from_inverse_mass(0.5 * COVARIANCE + jnp.eye(3)), jnp.array(0.3))
    kernel = mt.from_blackjax(blackjax.nuts, target, max_num_doublings=3)
    assert invariance(key, kernel, learnt, exact, num_draws=4000) > 1e-5


def test_low_rank_masses_keep_their_form(key, target):
    vectors = jnp.linalg.qr(jnp.array([[1.0], [1.0], [0.0]]))[0]
    mass = mt.low_rank_mass(SCALES, vectors, jnp.array([2.0]))
    dense = mt.dense_mass(mt.inverse_mass_matrix(mass))
    kernel = mt.from_blackjax(blackjax.hmc, target, num_integration_steps=200)
    step = jax.jit(
        lambda key, learnt: kernel.step(key, kernel.init(key, SCALES, learnt), learnt)[1]
    )
    # the momentum is drawn by another factor, but the energy that it is drawn from is the same
    for other in (mass, dense):
        info = step(key, mt.Learnt(other, jnp.array(0.01)))
        assert info.stats["acceptance_rate"] > 0.999
    np.testing.assert_allclose(
        mass.kinetic_energy(info.momentum), dense.kinetic_energy(info.momentum)
    )


CASES = {
    "no function": (lambda t: mt.from_blackjax(3.0, t), TypeError, "algorithm must be a function"),
    "no target": (
        lambda t: mt.from_blackjax(blackjax.nuts, 3.0),
        TypeError,
        "target must be a Tar",
    ),
    "step size given": (
        lambda t: mt.from_blackjax(blackjax.nuts, t, step_size=0.1),
        ValueError,
        "step_size must be left open, because EM sets it; give it in Learnt",
    ),
    "no mass": (
        lambda t: mt.from_blackjax(blackjax.mala, t),
        TypeError,
        r"take \(logdensity, step_size, inverse_mass_matrix\).*got blackjax.mcmc.mala",
    ),
    "parameter missing": (
        lambda t: mt.from_blackjax(blackjax.hmc, t),
        TypeError,
        "got blackjax.mcmc.hmc, which says: .*num_integration_steps",
    ),
    "single precision": (
        lambda t: mt.from_blackjax(blackjax.nuts, skewed_target(jnp.float32)),
        TypeError,
        "float64, got float32; cast its `initial`",
    ),
}


@pytest.mark.usefixtures("without_jaxtyping")
@pytest.mark.parametrize("case", CASES)
def test_errors_name_what_is_wrong(case, target):
    make, kind, message = CASES[case]
    with pytest.raises(kind, match=message):
        make(target)

"""What a run learnt, out to other libraries and in to the next run."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_base import dict_to_dataset
from numpyro.infer import NUTS
from xarray import DataTree

import momentem as mt
from momentem.bridges.foreign import usual_promotion

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRECISION = np.array([[2.0, 0.5], [0.5, 1.0]])
MASSES = {
    "diagonal": mt.diagonal_mass(np.array([1.0, 4.0])),
    "dense": mt.dense_mass(PRECISION),
    "low rank": mt.low_rank_mass(np.array([1.0, 2.0]), np.array([[0.6], [0.8]]), np.array([3.0])),
}
MATRICES = {
    "diagonal": np.array([1.0, 4.0]),
    "dense": PRECISION,
    # S (I + U (3 - 1) U') S with U = (.6, .8), S = diag(1, 2)
    "low rank": np.array([[1.72, 1.92], [1.92, 9.12]]),
}


@pytest.mark.parametrize("name", MASSES)
def test_the_inverse_mass_matrix_is_the_mass_s_own(name):
    np.testing.assert_allclose(mt.inverse_mass_matrix(MASSES[name]), MATRICES[name], rtol=1e-12)


def trace_of(mass):
    """A trace with what `sample` writes of what was learnt."""
    learnt = mt.Learnt(mass, 0.3, noise=np.array([1.0, 2.0]), path=1.5)
    final = {f"final_{name}": np.asarray(array) for name, array in learnt.arrays().items()}
    em = dict_to_dataset(final, sample_dims=[], check_conventions=False)
    return DataTree.from_dict({"em": em})


@pytest.mark.parametrize("name", MASSES)
def test_what_was_learnt_comes_back(name):
    learnt = mt.learnt_from(trace_of(MASSES[name]))
    assert type(learnt.mass) is type(MASSES[name])
    np.testing.assert_allclose(mt.inverse_mass_matrix(learnt.mass), MATRICES[name], rtol=1e-12)
    assert (learnt.step_size, learnt.path) == (0.3, 1.5)
    assert "centre" not in learnt
    np.testing.assert_array_equal(learnt.noise, [1.0, 2.0])


def model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


Y = np.array([1.0, 2.0, 4.0])


@pytest.mark.validate
def test_the_next_run_skips_warm_up_and_nuts_takes_the_mass():
    target = mt.from_numpyro(model, Y)
    kernel = mt.kernels.hmc(target, num_steps=4)
    start = mt.Learnt(mt.diagonal_mass(np.array([0.2, 0.2])), 0.5)
    em = mt.monte_carlo_em(kernel, start, mt.m_steps.draws(), mt.e_steps.constant(400))
    first = mt.sample(target, em, num_draws=50, num_warmup=300)
    learnt = mt.learnt_from(first)
    positions = mt.last_positions(first, target)
    assert positions.keys() == {"mean", "scale", "twice"}
    np.testing.assert_array_equal(positions["mean"], first["posterior"]["mean"][:, -1])
    more = mt.sample(
        target, mt.fixed(kernel, learnt), num_draws=100, num_warmup=0, positions=positions
    )
    assert more["sample_stats"]["acceptance_rate"].mean() > 0.7
    assert "warmup_posterior" not in more.children

    # in NumPyro's order of parameters: what NUTS draws its momenta from is what was learnt
    with usual_promotion():
        nuts = NUTS(
            model,
            step_size=float(learnt.step_size),
            inverse_mass_matrix=mt.inverse_mass_matrix(learnt.mass),
            adapt_step_size=False,
            adapt_mass_matrix=False,
        )
        free = {"mean": jnp.array(2.0), "scale": jnp.array(0.0)}
        state = nuts.init(jax.random.key(0), 0, free, model_args=(Y,))
    ((names, theirs),) = state.adapt_state.inverse_mass_matrix.items()
    assert names == ("mean", "scale")
    np.testing.assert_allclose(theirs, learnt.mass.inverse_mass)


def test_errors_name_what_is_wrong():
    without = DataTree.from_dict({"posterior": dict_to_dataset({"x": np.zeros((2, 5))})})
    with pytest.raises(ValueError, match=r"got groups \['posterior'\] without `em`"):
        mt.learnt_from(without)
    with pytest.raises(ValueError, match="got one without its parameter 'mean'"):
        mt.last_positions(without, mt.from_numpyro(model, Y))

"""A path that is refined where it loses energy leaves the target alone, if it is reversible."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels import _rotating as rotating
from momentem.kernels import refinement
from momentem.kernels.integrators import PhasePoint
from momentem.testing import invariance

pytestmark = pytest.mark.usefixtures("quick_compilation")

# a false alarm has a chance of at most 5e-3 per target, and the seeds are fixed
THRESHOLD = 1e-3


def funnel(x):
    """v ~ N(0, 1), and the other is normal with standard deviation exp(1.5 v)."""
    return -0.5 * x[0] ** 2 - 0.5 * (x[1] * jnp.exp(-1.5 * x[0])) ** 2 - 1.5 * x[0]


def funnel_exact(key, n):
    v, z = jax.random.normal(key, (2, n))
    return jnp.stack([v, jnp.exp(1.5 * v) * z], axis=1)


LEARNT = mt.Learnt(
    mt.diagonal_mass([1.0, 1.0]), jnp.array(2.3), centre=jnp.zeros(2), path=jnp.array(2.3)
)


def p_value():
    kernel = mt.kernels.rotating_hmc(mt.density(funnel, jnp.zeros(2)))
    return invariance(jax.random.key(1), kernel, LEARNT, funnel_exact)


def test_leaves_a_funnel_alone():
    assert p_value() > THRESHOLD


def test_without_the_way_back_it_does_not(monkeypatch):
    def unchecked(*args):
        return refinement.refined_path(*args)._replace(is_reversible=jnp.array(True))

    monkeypatch.setattr(rotating, "refined_path", unchecked)
    assert p_value() < 1e-6


def oscillate(rate):
    """Leapfrog steps of an oscillator whose frequency is `rate`, in the form of `refined_path`."""

    def advance(share, point):
        step, p, x = 0.5 * share, point.momentum, point.position
        p = p - step / 2 * rate**2 * x
        x = x + step * p
        p = p - step / 2 * rate**2 * x
        return PhasePoint(x, p, jnp.sum(-0.5 * (rate * x) ** 2), -(rate**2) * x)

    def energy(point):
        return 0.5 * jnp.sum(point.momentum**2) - point.logdensity

    x = jnp.full(1, 1 / rate)
    start = PhasePoint(x, jnp.ones(1), jnp.array(-0.5), -(rate**2) * x)
    return refinement.refined_path(advance, energy, start)


def test_a_path_that_keeps_its_energy_is_taken_as_it_is():
    path = oscillate(1.0)
    assert (int(path.level), int(path.num_parts), bool(path.is_reversible)) == (0, 1, True)


def test_a_path_is_refined_until_it_keeps_its_energy():
    """Stable only for steps below 2 / rate, and tried from both ends: 1, 2, 4 and 8 parts at most
    forwards, 1, 2 and 4 back."""
    path = oscillate(20.0)
    assert int(path.level) == 3
    assert bool(path.is_reversible)
    assert float(path.coarse_rate) == 0.0
    assert 8 < int(path.num_parts) <= 22


def test_a_path_that_no_level_keeps_ends():
    path = oscillate(1e6)
    assert int(path.level) == refinement.LEVELS
    assert int(path.num_parts) < 3 * 2**refinement.LEVELS


def test_a_density_that_ends_is_approached_in_shorter_steps():
    """Beyond x = 1 there is nothing: chains stay inside, none repairs a NaN."""
    target = mt.density(lambda x: jnp.sum(jnp.log1p(-x) - x**2), initial=jnp.zeros(2))
    trace = mt.sample(target, num_draws=200, seed=1)
    assert np.isfinite(trace["posterior"].to_dataset()["position"].values).all()

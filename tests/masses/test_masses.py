"""Masses against the dense matrices they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentem.masses import DenseMass, dense_mass, diagonal_mass, low_rank_mass

pytestmark = pytest.mark.usefixtures("quick_compilation")

DIM, RANK = 5, 2


def random_spd(seed, dim=DIM, spread=2.0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix = basis * np.exp(rng.uniform(-spread, spread, dim)) @ basis.T
    return (matrix + matrix.T) / 2


def make(kind, seed):
    """A mass, and its inverse_mass as a matrix."""
    rng = np.random.default_rng(seed)
    if kind == "diagonal":
        entries = np.exp(rng.normal(size=DIM))
        return diagonal_mass(entries), np.diag(entries)
    if kind == "dense":
        inverse_mass = random_spd(seed)
        return dense_mass(inverse_mass), inverse_mass
    scale, eigenvalues = np.exp(rng.normal(size=DIM)), np.exp(rng.normal(size=RANK))
    vectors = np.linalg.qr(rng.normal(size=(DIM, RANK)))[0]
    inner = np.eye(DIM) + vectors * (eigenvalues - 1) @ vectors.T
    return low_rank_mass(scale, vectors, eigenvalues), scale[:, None] * inner * scale


kinds = st.sampled_from(["diagonal", "dense", "low rank"])
seeds = st.integers(0, 10_000)


@given(kinds, seeds)
def test_acts_as_its_matrix(kind, seed):
    mass, inverse_mass = make(kind, seed)
    p = jnp.asarray(np.random.default_rng(seed + 1).normal(size=DIM))
    np.testing.assert_allclose(mass.velocity(p), inverse_mass @ p, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mass.kinetic_energy(p), p @ inverse_mass @ p / 2, rtol=1e-9)
    np.testing.assert_allclose(mass.inverse_mass_diagonal(), np.diag(inverse_mass), rtol=1e-9)
    np.testing.assert_allclose(
        mass.log_determinant(), -np.linalg.slogdet(inverse_mass)[1], rtol=1e-8
    )


@given(kinds, seeds)
def test_colour_is_a_root_of_the_mass_and_whiten_its_inverse(kind, seed):
    mass, inverse_mass = make(kind, seed)
    factor = jax.vmap(mass.colour)(jnp.eye(DIM)).T
    np.testing.assert_allclose(factor @ factor.T @ inverse_mass, np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(jax.vmap(mass.whiten)(factor.T), np.eye(DIM), atol=1e-8)


@given(kinds, kinds, seeds)
def test_transport_carries_one_covariance_to_the_other(old_kind, new_kind, seed):
    old, old_inverse_mass = make(old_kind, seed)
    new, new_inverse_mass = make(new_kind, seed + 1)
    carry = jax.vmap(lambda p: new.transport(p, old))(jnp.eye(DIM)).T
    carried = carry @ np.linalg.inv(old_inverse_mass) @ carry.T
    np.testing.assert_allclose(carried @ new_inverse_mass, np.eye(DIM), atol=1e-7)


@given(kinds, seeds, st.floats(0, 1))
def test_average_is_of_the_precisions(kind, seed, rate):
    (ours, a), (theirs, b) = make(kind, seed), make(kind, seed + 1)
    averaged = ours.average(theirs, jnp.asarray(rate))
    acts = jax.vmap(averaged.velocity)(jnp.eye(DIM)).T
    expected = (1 - rate) * a + rate * b
    if kind == "low rank":  # the least of 2 RANK directions are cut; the scale stays exact
        assert averaged.is_proper()
        np.testing.assert_allclose(
            averaged.scale**2, (1 - rate) * ours.scale**2 + rate * theirs.scale**2, rtol=1e-9
        )
        np.linalg.cholesky(acts)
    else:
        np.testing.assert_allclose(acts, expected, rtol=1e-8, atol=1e-8)


def test_low_rank_average_is_exact_where_both_share_their_directions():
    mass, inverse_mass = make("low rank", 3)
    heavier = low_rank_mass(mass.scale, mass.directions.T, 4 * mass.eigenvalues)
    averaged = mass.average(heavier, jnp.asarray(0.25))
    expected = 0.75 * inverse_mass + 0.25 * np.asarray(jax.vmap(heavier.velocity)(jnp.eye(DIM)))
    np.testing.assert_allclose(jax.vmap(averaged.velocity)(jnp.eye(DIM)), expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
def test_samples_have_the_mass_as_covariance(kind, key):
    mass, inverse_mass = make(kind, 7)
    draws = jax.vmap(mass.sample)(jax.random.split(key, 200_000))
    whitened = np.linalg.cholesky(inverse_mass).T @ np.asarray(draws).T
    # entries of a sample covariance of n standard normals have sd at most sqrt(2 / n); 5 of them
    assert np.abs(np.cov(whitened) - np.eye(DIM)).max() < 5 * np.sqrt(2 / 200_000)


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
def test_condition_number(kind):
    mass, inverse_mass = make(kind, 11)
    np.testing.assert_allclose(mass.condition_number(), np.linalg.cond(inverse_mass), rtol=0.05)


@given(seeds, seeds)
def test_geometric_mean_solves_its_equation(one, other):
    a, b = random_spd(one), random_spd(other)
    mean = DenseMass.geometric_mean_inverse(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(mean @ b @ mean, a, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(mean, mean.T, rtol=1e-7, atol=1e-9)


@given(seeds, st.integers(2, 200))
def test_shrinking_makes_any_covariance_positive_definite(seed, count):
    rows = np.random.default_rng(seed).normal(size=(count, 20))
    covariance = jnp.asarray(np.cov(rows.T))
    shrunk = DenseMass.shrink(covariance, jnp.asarray(count), power=4)
    assert np.linalg.eigvalsh(shrunk)[0] > 0
    np.testing.assert_allclose(jnp.diagonal(shrunk), jnp.diagonal(covariance))


def test_a_factorisation_that_fails_is_not_proper():
    assert not DenseMass.from_inverse_mass(jnp.diag(jnp.array([1.0, -1.0]))).is_proper()
    assert not diagonal_mass(jnp.ones(2))._replace(inverse_mass=jnp.array([1.0, 0.0])).is_proper()

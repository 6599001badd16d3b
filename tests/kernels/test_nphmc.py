"""The Nose-Poincare leapfrog is symplectic, reversible and second order; its kernel keeps R3."""

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import momentem as mt
from momentem.kernels import nose, nphmc
from momentem.kernels.nose import NosePoint, energy_excess, generalised_leapfrog, quadratic_root

from noisy_targets import DIM, MASS, NO_NOISE, PRECISION, moments_on_r3, potential

module = import_module("momentem.kernels._nphmc")  # `momentem.kernels.nphmc` is the factory

Q = jnp.array(2.0)
DENSE = mt.dense_mass(np.linalg.inv(MASS))
THETA, PI, START_Q = jnp.array([0.7, -0.4, 0.9]), jnp.array([0.5, 1.2, -0.8]), jnp.array(0.6)


def gaussian(x):
    return -0.5 * x @ jnp.asarray(PRECISION) @ x


LOGDENSITIES = {"gaussian": gaussian, "skewed": lambda x: -potential(x)}


def literal_leapfrog(evaluate, mass, step_size, thermostat_mass, energy, point):
    """The paper's: s and theta move twice too far, and theta by the momentum before its kick."""
    dim, half = len(point.position), step_size / 2
    s = point.scale
    w = point.whitened + half * s * mass.whiten(point.gradient)
    kinetic = w @ w / 2
    force = point.gain + kinetic / s**2 - dim * (1 + jnp.log(s)) + energy
    q = quadratic_root(step_size / (4 * thermostat_mass), 1.0, point.thermostat + half * force)
    u = step_size * q / thermostat_mass
    new_s = s * (1 + u) / (1 - u)
    theta = point.position + step_size * (1 / s + 1 / new_s) * mass.drift(point.whitened)
    gain, gradient = evaluate(theta)
    force = gain + kinetic / new_s**2 - dim * (1 + jnp.log(new_s)) + energy
    q = q + half * (force - q**2 / (2 * thermostat_mass))
    return NosePoint(theta, w + half * new_s * mass.whiten(gradient), q, new_s, gain, gradient)


def evaluator(logdensity):
    def evaluate(x):
        value, gradient = jax.value_and_grad(logdensity)(x)
        return value - logdensity(THETA), gradient

    return evaluate


def start_point(logdensity, c=1.0):
    """dH = 0, in the gauge s = c; and H0 + L."""
    y = DENSE.whiten(PI)
    energy = y @ y / 2 + START_Q**2 / (2 * Q) + DIM * jnp.log(jnp.array(c))
    gain, gradient = evaluator(logdensity)(THETA)
    return NosePoint(THETA, c * y, START_Q, jnp.array(c), gain, gradient), energy


def path(logdensity, step_size, num_steps, c=1.0, leapfrog=generalised_leapfrog):
    """All points of a path, and dH at them."""
    start, energy = start_point(logdensity, c)

    def step(point, _):
        new = leapfrog(evaluator(logdensity), DENSE, jnp.array(step_size), Q, energy, point)
        return new, (new, energy_excess(Q, energy, new))

    return jax.lax.scan(step, start, None, length=num_steps)[1]


def canonical_step(logdensity, step_size, leapfrog):
    """One step as a map of (theta, s, p, q), a canonical order: positions first."""
    energy = start_point(logdensity)[1]

    def step(z):
        theta, s, p, q = z[:DIM], z[DIM], z[DIM + 1 : -1], z[-1]
        point = NosePoint(theta, DENSE.whiten(p), q, s, *evaluator(logdensity)(theta))
        new = leapfrog(evaluator(logdensity), DENSE, jnp.array(step_size), Q, energy, point)
        momentum = DENSE.colour(new.whitened)
        return jnp.concatenate([new.position, new.scale[None], momentum, new.thermostat[None]])

    return step


def canonical_states():
    """Fifty of them, all over the place, with s from 1/2 to 2."""
    z = jax.random.normal(jax.random.key(0), (50, 2 * DIM + 2))
    return z.at[:, DIM].set(2 ** jnp.linspace(-1, 1, 50))


def symplectic_defect(logdensity, leapfrog):
    n = DIM + 1
    omega = jnp.block([[jnp.zeros((n, n)), jnp.eye(n)], [-jnp.eye(n), jnp.zeros((n, n))]])
    jacobians = jax.vmap(jax.jacfwd(canonical_step(logdensity, 0.1, leapfrog)))(canonical_states())
    return float(jnp.max(jnp.abs(jnp.swapaxes(jacobians, 1, 2) @ omega @ jacobians - omega[None])))


def irreversibility(logdensity, leapfrog):
    step = jax.vmap(canonical_step(logdensity, 0.1, leapfrog))
    flip = jnp.concatenate([jnp.ones(DIM + 1), -jnp.ones(DIM + 1)])[None]
    there = canonical_states()
    return float(jnp.max(jnp.abs(flip * step(flip * step(there)) - there)))


@pytest.mark.parametrize("name", LOGDENSITIES)
@pytest.mark.validate
def test_energy_error_is_of_second_order(name):
    errors = []
    for step_size in (0.04, 0.02, 0.01, 0.005):
        points, excess = path(LOGDENSITIES[name], step_size, round(2 / step_size))
        errors.append(float(jnp.max(jnp.abs(points.scale * excess))))
    ratios = np.array(errors[:-1]) / errors[1:]
    assert np.abs(ratios - 4).max() < 0.1, ratios


def test_the_literal_leapfrog_has_no_order():
    errors = [
        float(jnp.max(jnp.abs(points.scale * excess)))
        for step_size in (0.04, 0.01)
        for points, excess in [
            path(gaussian, step_size, round(2 / step_size), leapfrog=literal_leapfrog)
        ]
    ]
    assert min(errors) > 0.3


@pytest.mark.parametrize("name", LOGDENSITIES)
@pytest.mark.one_now
def test_symplectic_and_reversible(name):
    assert symplectic_defect(LOGDENSITIES[name], generalised_leapfrog) < 1e-12
    assert irreversibility(LOGDENSITIES[name], generalised_leapfrog) < 1e-12


@pytest.mark.parametrize("name", LOGDENSITIES)
def test_the_literal_leapfrog_is_neither(name):
    assert symplectic_defect(LOGDENSITIES[name], literal_leapfrog) > 0.05
    assert irreversibility(LOGDENSITIES[name], literal_leapfrog) > 0.01


@pytest.mark.parametrize("c", [0.1, 10.0])
def test_the_scale_is_a_gauge(c):
    ours, _ = path(LOGDENSITIES["skewed"], 0.05, 40)
    theirs, _ = path(LOGDENSITIES["skewed"], 0.05, 40, c)
    for found, expected in [
        (theirs.position, ours.position),
        (theirs.whitened / theirs.scale[:, None], ours.whitened / ours.scale[:, None]),
        (theirs.thermostat, ours.thermostat),
        (theirs.scale, c * ours.scale),
    ]:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_root_is_the_stable_one():
    keys = jax.random.split(jax.random.key(0), 3)
    a = jnp.exp(jax.random.uniform(keys[0], (10_000,), minval=-30, maxval=3))
    b = 1 + jnp.exp(3 * jax.random.normal(keys[1], a.shape))
    c = jnp.sinh(5 * jax.random.normal(keys[2], a.shape))
    is_real = b**2 + 4 * a * c >= 0
    q = jax.vmap(quadratic_root)(a, b, c)
    assert bool((jnp.isfinite(q) == is_real).all())
    # q is good to rounding, so the residual is to that of its largest term
    residual = jnp.abs(a * q**2 + b * q - c) / (jnp.abs(c) + a * q**2 + b * jnp.abs(q))
    assert float(jnp.max(jnp.where(is_real, residual, 0))) < 1e-14
    np.testing.assert_allclose(quadratic_root(jnp.array(1e-13), 1.0, START_Q), START_Q, rtol=1e-12)
    # the textbook's form has lost eight digits where eps = 1e-8
    textbook = (-1 + jnp.sqrt(1 + 4e-8 * START_Q)) / 2e-8
    assert abs(float(textbook / quadratic_root(jnp.array(1e-8), 1.0, START_Q) - 1)) > 1e-9


def test_the_scale_stays_positive_or_the_step_says_so():
    n = 100_000
    keys = jax.random.split(jax.random.key(1), 4)
    theta, w = 2 * jax.random.normal(keys[0], (2, n, DIM))
    q, energy = 5 * jax.random.normal(keys[1], (2, n))
    s = jnp.exp(jax.random.normal(keys[2], (n,)))

    def step(theta, w, q, s, energy):
        evaluate = evaluator(gaussian)
        start = NosePoint(theta, w, q, s, *evaluate(theta))
        return generalised_leapfrog(evaluate, DENSE, jnp.array(0.3), Q, energy, start)

    end = jax.jit(jax.vmap(step))(theta, w, q, s, energy)
    is_told = ~jnp.isfinite(end.thermostat)
    assert bool((is_told | (end.scale > 0)).all())
    assert 0 < float(jnp.mean(is_told)) < 0.5


def one_draw(logdensity, step_size, thermostat_mass, seed=2, num_steps=20):
    kernel = nphmc(mt.density(logdensity, jnp.zeros(1)), num_steps=num_steps)
    learnt = mt.Learnt(
        mt.diagonal_mass([1.0]), jnp.array(step_size), thermostat_mass=jnp.array(thermostat_mass)
    )
    state = kernel.init(jax.random.key(0), jnp.array([0.1]), learnt)
    return kernel.step(jax.random.key(seed), state, learnt)


@pytest.mark.parametrize(
    ("logdensity", "step_size", "thermostat_mass"),
    [
        (lambda x: jnp.where(jnp.abs(x[0]) < 0.3, -0.5 * x[0] ** 2, jnp.nan), 0.5, 1.0),
        (lambda x: jnp.where(jnp.abs(x[0]) < 0.3, -0.5 * x[0] ** 2, -jnp.inf), 0.5, 1.0),
        (lambda x: -0.5e6 * x[0] ** 2, 1.0, 1.0),
        (lambda x: -0.5 * x[0] ** 2, 1.0, 1e-3),
    ],
    ids=["nan", "minus infinity", "unstable step", "no root"],
)
def test_a_divergence_is_flagged_and_undone(logdensity, step_size, thermostat_mass):
    state, info = one_draw(logdensity, step_size, thermostat_mass)
    assert bool(info.stats["diverging"])
    assert float(state.position[0]) == float(info.position[0]) == 0.1
    for array in (info.momentum, info.gradient, info.stats["thermostat"], info.stats["lp"]):
        assert bool(jnp.isfinite(array).all())
    _, healthy = one_draw(lambda x: -0.5 * x[0] ** 2, 0.1, 1.0)
    assert not bool(healthy.stats["diverging"])


def test_a_scale_out_of_bounds_is_a_divergence(monkeypatch):
    assert not bool(one_draw(lambda x: -0.5 * x[0] ** 2, 0.1, 1.0)[1].stats["diverging"])
    monkeypatch.setattr(nose, "MAX_LOG_SCALE", 0.01)
    assert bool(one_draw(lambda x: -0.5 * x[0] ** 2, 0.1, 1.0)[1].stats["diverging"])


def r3(num_chains=512, time=80.0):
    """Paths of twenty steps: `time` counts five of them."""
    return moments_on_r3(
        lambda target, n: nphmc(target, 4 * n), NO_NOISE, 0.1, num_chains=num_chains, time=time
    )


def test_keeps_r3():
    """Bias at eps = .1: .006 (maths 5.3), .01 of Var q. All within 5 standard errors of that: a
    false alarm has a chance below 1e-5."""
    found = r3()
    assert found.frob < 0.006 + 5 * found.se, found
    assert abs(found.xi_variance / DIM - 1) < 0.03, found
    assert abs(found.xi) < 5 * found.xi_se, found
    assert found.divergences == 0


def more_degrees_of_freedom(monkeypatch):
    """g = D + 1, right for Nose's dynamics in virtual time and wrong here."""

    def leapfrog(evaluate, mass, step_size, thermostat_mass, energy, point):
        lowered = energy - (1 + jnp.log(point.scale))
        return generalised_leapfrog(evaluate, mass, step_size, thermostat_mass, lowered, point)

    monkeypatch.setattr(module, "generalised_leapfrog", leapfrog)


def literal(monkeypatch):
    monkeypatch.setattr(module, "generalised_leapfrog", literal_leapfrog)


@pytest.mark.parametrize("sabotage", [more_degrees_of_freedom, literal])
def test_a_broken_leapfrog_is_seen_on_r3(sabotage, monkeypatch):
    """.28 (se .02), and 30 or more with half the paths diverging."""
    sabotage(monkeypatch)
    found = r3(num_chains=256, time=40.0)
    assert found.frob > 0.18, found

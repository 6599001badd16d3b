"""Riemannian HMC: its leapfrog is reversible and symplectic, its energy the right one, its law the
target's."""

import inspect
from importlib import import_module

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import momentem as mt
from momentem.kernels.integrators import PhasePoint, leapfrog
from momentem.riemannian.fixed_points import iterations, until
from momentem.testing import invariance

module = import_module("momentem.riemannian._rhmc")  # `momentem.riemannian.rhmc` is the factory

# --- targets with exact draws, each with a metric that depends on the position ------------------


def log_banana(x):
    """x0 ~ N(0, 2), x1 = -.3 (x0^2 - 2) + N(0, .5)."""
    return -(x[0] ** 2) / 4 - (x[1] + 0.3 * (x[0] ** 2 - 2)) ** 2


def banana_metric(x):
    """The curvature without the term that can be negative: dense, and it turns with x0."""
    along = jnp.stack([0.6 * x[0], jnp.ones_like(x[0])])
    return jnp.diag(jnp.array([0.5, 0.0])) + 2 * jnp.outer(along, along)


def banana_draws(key, n):
    z = jax.random.normal(key, (n, 2))
    x0 = jnp.sqrt(2.0) * z[:, 0]
    return jnp.stack([x0, -0.3 * (x0**2 - 2) + jnp.sqrt(0.5) * z[:, 1]], axis=1)


def log_funnel(x):
    """v ~ N(0, 1), x1 | v ~ N(0, e^v)."""
    return -0.5 * x[0] ** 2 - 0.5 * x[1] ** 2 * jnp.exp(-x[0]) - 0.5 * x[0]


def funnel_metric(x):
    return jnp.stack([1.5 + 0 * x[0], jnp.exp(-x[0])])


def funnel_draws(key, n):
    z = jax.random.normal(key, (n, 2))
    return jnp.stack([z[:, 0], jnp.exp(z[:, 0] / 2) * z[:, 1]], axis=1)


NUM, SUM_OF_SQUARES = 20, 18.0  # of data with mean 0


def log_normal(x):
    """mu and log tau given NUM data: log tau has a Gamma((NUM - 1) / 2, S / 2) law, flat priors."""
    mu, log_tau = x
    tau = jnp.exp(log_tau)
    return NUM / 2 * log_tau - tau / 2 * (SUM_OF_SQUARES + NUM * mu**2)


def normal_metric(x):
    return jnp.stack([NUM * jnp.exp(x[1]), NUM / 2 + 0 * x[1]])


def normal_draws(key, n):
    gamma_key, normal_key = jax.random.split(key)
    tau = jax.random.gamma(gamma_key, (NUM - 1) / 2, (n,)) / (SUM_OF_SQUARES / 2)
    mu = jax.random.normal(normal_key, (n,)) / jnp.sqrt(NUM * tau)
    return jnp.stack([mu, jnp.log(tau)], axis=1)


TARGETS = {
    "banana": (log_banana, banana_metric, banana_draws, 0.25),
    "funnel": (log_funnel, funnel_metric, funnel_draws, 0.5),
    "normal": (log_normal, normal_metric, normal_draws, 0.5),
}


def posterior(name):
    logdensity, matrix, _, _ = TARGETS[name]
    return mt.density(logdensity, jnp.array([0.3, -0.2])), mt.metrics.metric(matrix)


def hamiltonian(name):
    """H from its definition, with numpy's words alone."""
    logdensity, matrix, _, _ = TARGETS[name]

    def H(theta, p):
        G = matrix(theta)
        G = jnp.diag(G) if G.ndim == 1 else G
        return (
            -logdensity(theta) + 0.5 * jnp.linalg.slogdet(G)[1] + 0.5 * p @ jnp.linalg.solve(G, p)
        )

    return H


def state(name, seed=0):
    theta, p = np.random.default_rng(seed).normal(size=(2, 2)) * [[0.7], [1.0]]
    return jnp.asarray(theta), jnp.asarray(p)


def trajectory(name, fixed_point):
    """(theta, p, step size, number of steps) -> the end, and whether all of it was solved. Compiled
    anew, so that a sabotage is in it."""
    target, metric = posterior(name)

    @jax.jit
    def steps(theta, p, step_size, num_steps):
        def leap(_, carry):
            point, p, is_solved = carry
            new = module.generalised_leapfrog(target, metric, step_size, fixed_point, point, p)
            return *new[:2], is_solved & new[2]

        start = (module.evaluate(target, metric, theta), p, True)
        point, p, is_solved = jax.lax.fori_loop(0, num_steps, leap, start)
        return point.position, p, is_solved

    return steps


EXACT = until(1e-14, 200)

# --- the leapfrog ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_energy_and_force_are_the_hamiltonian_s(name):
    theta, p = state(name)
    target, metric = posterior(name)
    point = module.evaluate(target, metric, theta)
    H = hamiltonian(name)
    np.testing.assert_allclose(module.energy(point, p), H(theta, p), rtol=1e-12)
    np.testing.assert_allclose(module.force(metric, point, p), -jax.grad(H)(theta, p), rtol=1e-10)


@pytest.mark.parametrize("name", TARGETS)
def test_reversible(name):
    theta, p = state(name)
    steps = trajectory(name, EXACT)
    there = steps(theta, p, 0.2, 5)
    assert bool(there[2])
    back = steps(there[0], -there[1], 0.2, 5)
    np.testing.assert_allclose(back[0], theta, atol=1e-11)
    np.testing.assert_allclose(back[1], -p, atol=1e-11)


@pytest.mark.parametrize("name", TARGETS)
def test_symplectic(name):
    theta, p = state(name)

    target, metric = posterior(name)

    def flow(z):
        point = module.evaluate(target, metric, z[:2])
        eps = jnp.array(0.2)
        end, p, _ = module.generalised_leapfrog(target, metric, eps, iterations(60), point, z[2:])
        return jnp.concatenate([end.position, p])

    J = np.asarray(jax.jit(jax.jacfwd(flow))(jnp.concatenate([theta, p])))
    omega = np.block([[np.zeros((2, 2)), np.eye(2)], [-np.eye(2), np.zeros((2, 2))]])
    np.testing.assert_allclose(J.T @ omega @ J, omega, atol=1e-9)


def slope(name, fixed_point):
    """Of log |H error| over log eps, along a trajectory of time 1."""
    theta, p = state(name)
    H, sizes = hamiltonian(name), np.array([0.1, 0.05, 0.025])
    errors, steps = [], trajectory(name, fixed_point)
    for eps in sizes:
        end = steps(theta, p, eps, round(1 / eps))
        errors.append(abs(float(H(*end[:2]) - H(theta, p))))
    return np.polyfit(np.log(sizes), np.log(errors), 1)[0]


@pytest.mark.parametrize("name", TARGETS)
def test_energy_error_is_of_second_order(name):
    assert slope(name, EXACT) == pytest.approx(2, abs=0.25)


def test_one_iteration_is_of_first_order_only():
    assert slope("banana", iterations(1)) < 1.5


@pytest.mark.validate
def test_a_constant_metric_is_a_mass():
    """The generalised leapfrog is then the leapfrog, to rounding."""
    G = jnp.array([[2.0, 0.3], [0.3, 0.5]])
    target = mt.density(log_banana, jnp.zeros(2))
    metric = mt.metrics.metric(lambda x: G + 0 * x[0])
    mass = mt.dense_mass(jnp.linalg.inv(G))
    theta, p = state("banana")
    value, gradient = jax.value_and_grad(log_banana)(theta)
    flat = PhasePoint(theta, p, value, gradient)
    point = module.evaluate(target, metric, theta)
    for _ in range(10):
        flat = leapfrog(log_banana, mass, 0.2, flat)
        point, p, _ = module.generalised_leapfrog(
            target, metric, jnp.array(0.2), until(1e-14), point, p
        )
    np.testing.assert_allclose(point.position, flat.position, atol=1e-10)
    np.testing.assert_allclose(p, flat.momentum, atol=1e-10)


# --- the law -----------------------------------------------------------------------------------


LEARNT = mt.Learnt(mt.diagonal_mass(np.ones(2)), jnp.array(0.1))


def as_kernel(kernel):
    """For `invariance`, which hands every kernel something learnt."""
    return mt.Kernel(
        Partial(lambda key, position, learnt: kernel.init(key, position)),
        Partial(lambda key, state, learnt: kernel.step(key, state)),
    )


def p_value(name, num_draws=50_000, step_size=None):
    target, metric = posterior(name)
    _, _, draws, eps = TARGETS[name]
    kernel = mt.riemannian.rhmc(target, metric, eps if step_size is None else step_size, 3)
    return invariance(jax.random.key(0), as_kernel(kernel), LEARNT, draws, num_draws)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.one_now
def test_leaves_the_target_invariant(name):
    """A false alarm has a chance of 5 x 1e-3 per target; the seed is fixed."""
    assert p_value(name) > 1e-3


def no_log_determinant(metric, position):
    factor, log_determinant, trace_force = module_at(metric, position)
    return factor, jnp.zeros_like(log_determinant), trace_force


def no_trace(metric, position):
    factor, log_determinant, trace_force = module_at(metric, position)
    return factor, log_determinant, jnp.zeros_like(trace_force)


def one_sided(target, metric, step_size, fixed_point, point, momentum):
    """The whole kick at the start."""
    momentum, is_kicked = module.kick(metric, fixed_point, step_size, point, momentum)
    position, is_moved = module.drift(metric, fixed_point, step_size / 2, point, momentum)
    return module.evaluate(target, metric, position), momentum, is_kicked & is_moved


def wrong_inverse(metric, fixed_point, half, point, momentum, scale=1.0):
    """The velocity of the start alone: an explicit drift, which is not reversible."""
    velocity = point.factor.velocity(momentum)
    return point.position + 2 * half * velocity, jnp.array(True)


module_at = module.at


def test_dropping_the_log_determinant_is_caught(monkeypatch):
    monkeypatch.setattr(module, "at", no_log_determinant)
    assert p_value("funnel") < 1e-6
    with pytest.raises(AssertionError):
        test_energy_and_force_are_the_hamiltonian_s("funnel")


def test_dropping_the_trace_is_caught(monkeypatch):
    """Detailed balance still holds, as the step stays reversible and preserves volume: only the
    force and the order show it."""
    monkeypatch.setattr(module, "at", no_trace)
    with pytest.raises(AssertionError):
        test_energy_and_force_are_the_hamiltonian_s("funnel")
    with pytest.raises(AssertionError):
        test_energy_error_is_of_second_order("funnel")


@pytest.mark.validate
def test_a_one_sided_step_is_caught(monkeypatch):
    monkeypatch.setattr(module, "generalised_leapfrog", one_sided)
    with pytest.raises(AssertionError):
        test_reversible("banana")
    with pytest.raises(AssertionError):
        test_energy_error_is_of_second_order("banana")
    assert p_value("banana") < 1e-6


@pytest.mark.validate
def test_an_explicit_drift_is_caught(monkeypatch):
    monkeypatch.setattr(module, "drift", wrong_inverse)
    with pytest.raises(AssertionError):
        test_reversible("banana")
    assert p_value("banana", step_size=0.7) < 1e-6


def blackjax_draws(target, matrix, starts, num_draws):
    algorithm = blackjax.rmhmc(target.logdensity, 0.25, matrix, 5)

    @jax.jit
    def run(states):
        def step(states, key):
            states, _ = jax.vmap(algorithm.step)(jax.random.split(key, len(starts)), states)
            return states, states.position

        return jax.lax.scan(step, states, jax.random.split(jax.random.key(4), num_draws))[1]

    return np.asarray(run(jax.vmap(algorithm.init)(starts)))


def our_draws(target, metric, starts, num_draws):
    sampler = mt.rhmc(target, metric, 0.25, 5)

    @jax.jit
    def run(state):
        keys = jax.random.split(jax.random.key(5), num_draws)
        return jax.lax.scan(lambda state, key: sampler.step(key, state), state, keys)[1]

    return np.asarray(run(sampler.init(jax.random.key(6), starts)).chains.position)


@pytest.mark.validate
def test_agrees_with_blackjax():
    """On moments of the banana, which both integrate in their own way; 5 standard errors of the
    difference, from 128 chains each, over 5 moments: a false alarm in 3e-6 runs."""
    target, metric = posterior("banana")
    starts = banana_draws(jax.random.key(7), 128)

    def moments(draws):
        x, y = draws[..., 0], draws[..., 1]
        return np.stack([m.mean(axis=0) for m in (x, y, x**2, y**2, y * x**2)])

    ours = moments(our_draws(target, metric, starts, 200))
    theirs = moments(blackjax_draws(target, banana_metric, starts, 200))
    errors = np.sqrt((ours.var(axis=1) + theirs.var(axis=1)) / len(starts))
    assert (np.abs(ours.mean(axis=1) - theirs.mean(axis=1)) < 5 * errors).all()
    np.testing.assert_allclose(ours.mean(axis=1)[2:], [2.0, 1.22, -2.4], atol=0.2)


# --- trouble -----------------------------------------------------------------------------------


def divergences(logdensity, matrix, step_size=0.25, fixed_point=None):
    target = mt.density(logdensity, jnp.array([0.3, -0.2]))
    metric = mt.metrics.metric(matrix)
    kernel = mt.riemannian.rhmc(target, metric, step_size, 3, fixed_point)
    start = kernel.init(jax.random.key(0), target.initial)
    after, info = jax.jit(kernel.step)(jax.random.key(1), start)
    assert bool(jnp.isfinite(info.position).all())
    assert bool((info.position == target.initial).all()) == bool(info.stats["diverging"])
    assert float(info.stats["acceptance_rate"]) == 0.0 or not bool(info.stats["diverging"])
    del after
    return bool(info.stats["diverging"])


def indefinite(x):
    """Away from where it starts."""
    return jnp.eye(2) + jnp.array([[0.0, 3.0], [3.0, 0.0]]) * jnp.where(x[0] == 0.3, 0.0, 1.0)


@pytest.mark.parametrize(
    ("logdensity", "matrix", "options"),
    [
        (log_banana, indefinite, {}),
        (log_banana, banana_metric, {"fixed_point": until(1e-12, 2)}),
        (log_banana, banana_metric, {"step_size": 50.0}),
        (lambda x: jnp.where(x[0] == 0.3, log_banana(x), jnp.nan), banana_metric, {}),
    ],
    ids=["indefinite", "not converged", "far too long", "nan"],
)
@pytest.mark.one_now
def test_trouble_is_flagged_and_undone(logdensity, matrix, options):
    assert divergences(logdensity, matrix, **options)


def test_no_trouble_without():
    assert not divergences(log_banana, banana_metric)


def test_bad_arguments():
    target, metric = posterior("banana")
    with pytest.raises(ValueError, match="step_size must be finite and > 0"):
        mt.rhmc(target, metric, -1.0, 5)
    rhmc = inspect.unwrap(mt.riemannian.rhmc)
    with pytest.raises(TypeError, match="Metric"):
        rhmc(target, banana_metric, 0.1, 5)
    with pytest.raises(ValueError, match=r"metric must give a \(2, 2\) matrix"):
        mt.rhmc(target, mt.metrics.metric(lambda x: jnp.ones(3)), 0.1, 5)
    with pytest.raises(TypeError, match="FixedPoint"):
        rhmc(target, metric, 0.1, 5, fixed_point=6)


def test_there_is_nothing_to_learn():
    target, metric = posterior("banana")
    kernel = mt.riemannian.rhmc(target, metric, 0.1, 5)
    parts = LEARNT, mt.m_steps.fisher(), mt.e_steps.constant(10)
    em = inspect.unwrap(mt.monte_carlo_em)  # as it is outside these tests, which check types first
    with pytest.raises(TypeError, match="the mass of a Riemannian kernel is its metric"):
        em(kernel, *parts)
    with pytest.raises(TypeError, match="kernel must be a Kernel"):
        em(mt.rhmc(target, metric, 0.1, 5), *parts)

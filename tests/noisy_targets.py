"""Targets whose gradient noise is known, and what the tests of stochastic kernels measure on them.

R3 is a Gaussian in three dimensions with covariance SIGMA (eigenvalues .5, 1, 2) and a mass MASS
(.2, 1, 5) whose eigenvectors have nothing to do with SIGMA's.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import momentem as mt
from momentem.kernels.langevin import Path
from momentem.targets._minibatch import NoisyGradient, StochasticTarget


def spd(seed, eigenvalues):
    """A matrix with these eigenvalues and random eigenvectors."""
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))
    return (turn * np.asarray(eigenvalues)) @ turn.T


def root(matrix):
    """The symmetric root."""
    eigenvalues, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(eigenvalues, 0))) @ vectors.T


DIM = 3
SIGMA = spd(0, [0.5, 1.0, 2.0])
PRECISION = np.linalg.inv(SIGMA)
MASS = spd(1, [0.2, 1.0, 5.0])
WHITEN = np.linalg.inv(root(SIGMA))  # Sigma^-1/2
NO_NOISE = np.zeros((DIM, DIM))


def noisy_gaussian(precision, noise, information_scale=1.0, prior=None, dtype=float):
    """N(0, precision^-1), known through gradients with noise N(0, `noise`). `prior` is a
    diagonal."""
    dim = len(precision)
    zeros = jnp.zeros(dim, dtype)
    precision, factor = jnp.asarray(precision, dtype), jnp.asarray(root(noise), dtype)
    prior = zeros if prior is None else jnp.asarray(prior, dtype)
    plain = mt.density(Partial(_log_normal, precision), zeros)
    return StochasticTarget(
        *plain,
        batches=Partial(_normals, zeros),
        noisy_gradient=Partial(_noisy_gradient, precision, factor),
        prior_curvature=Partial(_constant, prior),
        information_scale=information_scale,
    )


def _log_normal(precision, x):
    return -0.5 * x @ precision @ x


def _constant(value, position):
    del position
    return value


def _normals(zeros, key, number):
    return jax.random.normal(key, (number.value, 2, len(zeros)), zeros.dtype)


def _noisy_gradient(precision, factor, batch, position):
    noise = factor @ (batch[0] - batch[1]) / 2**0.5
    return NoisyGradient(
        gradient=-precision @ position + factor @ (batch[0] + batch[1]) / 2**0.5,
        noise=noise,
        information=noise,
        logdensity=_log_normal(precision, position),
    )


def learnt_for(noise, step_size, mass=MASS, believed=1.0):
    """What a kernel would have learnt of R3: `believed` times the true noise."""
    dense, variances = mt.dense_mass(np.linalg.inv(mass)).with_frame(jnp.asarray(noise))
    step_size, mu = jnp.array(step_size), jnp.array(float(len(mass)))
    return mt.Learnt(dense, step_size, noise=believed * variances, thermostat_mass=mu)


def logistic(num_rows, batch_size, seed=0, **options):
    """A well-specified logistic regression in two dimensions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 2)) @ [[1.0, 0.5], [0.0, 2.0]]
    truth = np.array([0.7, -0.4])
    y = rng.uniform(size=num_rows) < 1 / (1 + np.exp(-x @ truth))
    target = mt.dataset(
        lambda w: -0.5 * w @ w / 10,
        lambda w, row: row[2] * (row[:2] @ w) - jnp.logaddexp(0.0, row[:2] @ w),
        np.column_stack([x, y]),
        jnp.zeros(2),
        batch_size=batch_size,
        **options,
    )
    chance = 1 / (1 + np.exp(-x @ truth))
    return target, truth, (x * (chance * (1 - chance))[:, None]).T @ x


def potential(theta):
    """U, far from Gaussian and without symmetries."""
    x, y, z = theta
    return (
        0.3 * x**4 + jnp.cosh(y - 0.5 * x) + 0.5 * (z - 0.4 * y**2) ** 2 + 0.3 * jnp.sin(2 * x + z)
    )


def fokker_planck_residual(drift, diffusion, energy, points):
    """The largest |L* rho| / rho over the points, for dz = f dt + sqrt(2 D) dW and rho = exp(-E).

    r = -div f + f.grad E + dd:D - 2 (div D).grad E + D:(grad E grad E' - hess E), which is 0
    everywhere exactly if rho is invariant.
    """

    def at(z):
        gradient, hessian = jax.grad(energy)(z), jax.hessian(energy)(z)
        first, second = jax.jacfwd(diffusion)(z), jax.hessian(diffusion)(z)
        return (
            -jnp.trace(jax.jacfwd(drift)(z))
            + jnp.vdot(drift(z), gradient)
            + jnp.einsum("ijij->", second)
            - 2 * jnp.einsum("ijj,i->", first, gradient)
            + jnp.sum(diffusion(z) * (jnp.outer(gradient, gradient) - hessian))
        )

    return float(jnp.max(jnp.abs(jax.jit(jax.vmap(at))(points))))


def random_points(dim):
    return jax.random.normal(jax.random.key(3), (50, dim))


def given(target, batches):
    """The same target with these minibatches, whatever the key."""
    return target._replace(batches=Partial(_given, batches))


def _given(batches, key, number):
    del key, number
    return batches


def step_map(monkeypatch, make, target, learnt, num_steps=1, is_held=False):
    """The actual step of a kernel as a function (state, normals, minibatch normals) -> state.

    `normals` has shape (num_steps, D); the minibatch normals (num_steps, 2, D), or (2, D) for all
    steps if the minibatch is held.
    """

    def step(state, normals, minibatch):
        def normal(key, shape, dtype):
            zeros = jnp.zeros(shape, dtype)
            return zeros.at[:-1].set(normals) if zeros[:-1].shape == normals.shape else zeros

        held = jnp.broadcast_to(minibatch, (num_steps, *minibatch.shape[-2:]))
        kernel = make(given(target, held if is_held else minibatch), num_steps)
        with monkeypatch.context() as patch:
            patch.setattr(jax.random, "normal", normal)
            return kernel.step(jax.random.key(0), state, learnt)[0]

    return step


def frobenius(whitened):
    """||W - I||_F / sqrt(D), the error of a whitened covariance."""
    return float(np.linalg.norm(whitened - np.eye(len(whitened))) / np.sqrt(len(whitened)))


class Moments:
    """What many chains say of their stationary law, and between-chain standard errors."""

    def __init__(self, whitened, thermostat, thermostat_squared, divergences):
        n = len(whitened)
        self.whitened = np.mean(whitened, axis=0)
        self.frob = frobenius(self.whitened)
        # what frob would be from Monte Carlo error alone
        self.se = float(np.sqrt(np.var(whitened, axis=0).sum() / n / whitened.shape[-1]))
        self.xi = float(np.mean(thermostat))
        self.xi_se = float(np.std(thermostat) / np.sqrt(n))
        self.xi_variance = float(np.mean(thermostat_squared) - self.xi**2)
        self.divergences = int(np.sum(divergences))

    def __repr__(self):
        eigenvalues = np.round(np.linalg.eigvalsh(self.whitened), 3)
        return (
            f"frob {self.frob:.4f} (se {self.se:.4f}), eigenvalues {eigenvalues}, "
            f"xi {self.xi:.4f} (se {self.xi_se:.4f}), Var xi {self.xi_variance:.4f}, "
            f"{self.divergences} divergences"
        )


@partial(jax.jit, static_argnames=("num_warmup", "num_draws", "tag"))
def _sums(kernel, learnt, keys, starts, whiten, mean, num_warmup, num_draws, tag):
    del tag

    def one(keys, start):
        def body(carry, inputs):
            state, sums = carry
            i, key = inputs
            state, info = kernel.step(key, state, learnt)
            x = whiten @ (info.position - mean)
            xi = info.stats.get("thermostat", jnp.zeros(()))
            seen = jnp.outer(x, x), xi, xi**2, info.stats["diverging"].astype(float)
            is_counted = i >= num_warmup
            sums = jax.tree.map(lambda s, a: s + jnp.where(is_counted, a, 0.0), sums, seen)
            return (state, sums), None

        zero, total = jnp.zeros(()), num_warmup + num_draws
        first = kernel.init(keys[0], start, learnt), (jnp.zeros_like(whiten), zero, zero, zero)
        inputs = jnp.arange(total), jax.random.split(keys[1], total)
        return jax.lax.scan(body, first, inputs)[0][1]

    return jax.vmap(one)(keys, starts)


def stationary_moments(
    key, kernel, learnt, starts, num_warmup, num_draws, whiten, mean=0.0, tag=None
):
    """Moments of a kernel's draws after warm-up, whitened about a known mean.

    Programs are compiled once for all kernels of the same form; what a test has patched since then
    is seen only under another `tag`.
    """
    whiten = jnp.asarray(whiten)
    mean = jnp.broadcast_to(jnp.asarray(mean), whiten.shape[:1])
    keys = jax.random.split(key, (len(starts), 2))
    sums = _sums(kernel, learnt, keys, starts, whiten, mean, num_warmup, num_draws, tag)
    outer, xi, xi_squared = (np.asarray(each) / num_draws for each in sums[:3])
    return Moments(outer, xi, xi_squared, sums[3])


def moments_on_r3(make, noise, step_size, believed=0.0, num_chains=1024, time=150.0, tag=None):
    """Moments of a kernel on R3 with gradient noise V = `noise`, from exact starts."""
    num_steps = 5
    kernel = make(noisy_gaussian(PRECISION, noise), num_steps)
    learnt = learnt_for(noise, step_size, believed=believed)
    starts = jax.random.normal(jax.random.key(17), (num_chains, DIM)) @ jnp.asarray(root(SIGMA))
    per_draw = step_size * num_steps
    return stationary_moments(
        jax.random.key(0),
        kernel,
        learnt,
        starts,
        round(15 / per_draw),
        round(time / per_draw),
        WHITEN,
        tag=tag,
    )


def broken_aboba(
    target, mass, step_size, num_steps, damp, finish, key, position, whitened, extra, kind=None
):
    """ABOBA, unhurried: one step at a time, and one fault if asked for one."""
    batch_key, noise_key = jax.random.split(key)
    batches = target.batches(batch_key, num_steps)
    normals = jax.random.normal(noise_key, (num_steps.value + 1, len(position)), position.dtype)
    noises, squares = [], []
    for i in range(num_steps.value):
        position = position + step_size / 2 * mass.drift(whitened)
        noisy = target.noisy_gradient(batches[i], position)
        gradient = -noisy.gradient if kind == "sign" else noisy.gradient
        kick = step_size / 2 * mass.whiten(gradient)
        if kind == "one-sided":
            whitened = damp(whitened + 2 * kick, normals[i], extra)
        else:
            whitened = damp(whitened + kick, normals[i], extra) + kick
        position = position + step_size / 2 * mass.drift(whitened)
        if kind != "no thermostat":
            extra = finish(whitened, extra)
        noises.append(noisy.noise)
        squares.append(whitened**2)
    noises = jnp.stack(noises)
    squared = jnp.mean(jnp.stack(squares), axis=0)
    return Path(position, whitened, extra, gradient, noises, noises, squared, normals[-1])


def posterior_moments(target, width=7.0, num=101):
    """Mean and covariance of a two-dimensional posterior, by quadrature on a grid about its
    mode."""
    centre = target.unconstrain(mt.mode(target))
    hessian = np.asarray(jax.hessian(target.logdensity)(centre))
    frame = np.linalg.cholesky(np.linalg.inv(-hessian))
    line = np.linspace(-width, width, num)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2) @ frame.T
    points = jnp.asarray(np.asarray(centre)[None] + grid)
    values = np.asarray(
        jax.jit(lambda x: jax.lax.map(target.logdensity, x, batch_size=500))(points)
    )
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    mean = weights @ np.asarray(points)
    centred = np.asarray(points) - mean
    return mean, (centred * weights[:, None]).T @ centred

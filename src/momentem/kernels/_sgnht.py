"""Thermostatted stochastic-gradient dynamics: SGNHT, its full-matrix form, and CCAdL (maths 4).

In the frame y = F^-1 p, with friction matrix X and injected noise 2 A:

    dtheta = F^-T y dt,    dy = [F^-1 grad L - X y] dt + N(0, 2 A dt) + minibatch noise N(0, eps
    F^-1 V F^-T dt)

    sgnht          X = xi I,                              dxi = (|y|^2 - D) / mu dt
    matrix_sgnht   X a matrix,                            dX  = (y y' - I) / mu dt
    ccadl          X = xi I + eps/2 F^-1 Vhat F^-T,       dxi as in sgnht, Vhat a running estimate

leave exp(L - |y|^2 / 2 - mu (xi - A - b)^2 / 2) invariant: `sgnht` if V = (2 b / eps) M, which the
mass of the `noise` M-step brings about; `matrix_sgnht` for any constant V; `ccadl` for any V it has
learnt, and b is what it has not. The thermostat moves at the end of the step, which is more
accurate than next to the friction (maths 4.3).

Deviates: the paper's Algorithm 2 prints friction xi M^-1 p with isotropic noise, which keeps the
target only where M is a multiple of the identity, and Euler steps (`sgnht_printed`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between
from momentem.kernels.integrators import aboba
from momentem.kernels.langevin import (
    check_stochastic,
    fresh_momentum,
    tell,
    tell_thermostat,
)
from momentem.masses.all import times
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Info, Kernel, Learnt, Matrix, PRNGKey, Scalar, Static, Vector

__all__ = ["CCAdLState", "SGNHTState", "ccadl", "matrix_sgnht", "sgnht"]


class SGNHTState(NamedTuple):
    """Where the chain is."""

    position: Vector
    whitened: Vector
    thermostat: Any  # xi, or X


class CCAdLState(NamedTuple):
    """Where the chain is, and its running estimate of the noise."""

    position: Vector
    whitened: Vector
    thermostat: Scalar
    noise: Matrix  # F^-1 Vhat F^-T


def sgnht(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """The SGNHT kernel: the thermostat absorbs gradient noise that is proportional to the mass.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected noise per unit of time, and where the thermostat starts.
    """
    check_stochastic(target, num_steps, friction)
    return Kernel(
        Partial(_scalar_init, friction),
        Partial(_scalar_step, target, Static(num_steps), friction),
        Partial(_reset, friction),
    )


def matrix_sgnht(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """SGNHT with a matrix for a thermostat, which absorbs any noise. O(D^2) a step: for small D.

    Args:
        target: as for `sgnht`.
        num_steps: as for `sgnht`.
        friction: as for `sgnht`.
    """
    check_stochastic(target, num_steps, friction)
    return Kernel(
        Partial(_matrix_init, friction),
        Partial(_matrix_step, target, Static(num_steps), friction),
        Partial(_reframe_thermostat),
    )


def ccadl(
    target: StochasticTarget, num_steps: int, friction: float = 1.0, forgetting: float = 0.01
) -> Kernel:
    """Covariance-controlled adaptive Langevin: SGNHT with friction for the noise it has estimated.

    Args:
        target: as for `sgnht`.
        num_steps: as for `sgnht`.
        friction: as for `sgnht`.
        forgetting: weight of one minibatch in the running estimate of the noise.
    """
    check_stochastic(target, num_steps, friction)
    check_between(0.0, 1.0, forgetting=forgetting)
    return Kernel(
        Partial(_ccadl_init, friction),
        Partial(_ccadl_step, target, Static(num_steps), friction, forgetting),
        Partial(_reframe_noise, friction),
    )


def _thermal(
    xi: Scalar, friction: Scalar | float, step_size: Scalar, y: Vector, z: Vector
) -> Vector:
    """The exact solution of dy = -xi y dt + N(0, 2 A dt); phi -> 2 eps as xi -> 0, and xi may be
    negative."""
    is_small = jnp.abs(xi) * step_size < 1e-6
    safe = jnp.where(is_small, 1.0, xi)
    phi = jnp.where(is_small, 2 * step_size, -jnp.expm1(-2 * safe * step_size) / safe)
    return jnp.exp(-xi * step_size) * y + jnp.sqrt(friction * phi) * z


def _predicted(friction: Scalar | float, learnt: Learnt) -> Scalar:
    """E xi = A + b, with b the noise's mean share over directions (A alone where it is unknown)."""
    return friction + learnt.step_size / 2 * jnp.mean(learnt.noise)


def _heat(friction: Scalar | float, learnt: Learnt, y: Vector, xi: Scalar) -> Scalar:
    """xi + (eps/mu) (|y|^2 - D), held within ten standard deviations of its law if that is known.

    Far from the mode a chain moves faster than any temperature allows, and an unbounded thermostat
    would brake it almost to a halt. At stationarity the bound is met with a chance of 1e-23.
    """
    heated = xi + learnt.step_size / learnt.thermostat_mass * (jnp.vdot(y, y) - len(y))
    width = 10 / jnp.sqrt(learnt.thermostat_mass)
    width = jnp.where(jnp.any(learnt.noise > 0), width, jnp.inf)
    centre = _predicted(friction, learnt)
    return jnp.clip(heated, centre - width, centre + width)


def _reset(friction: Scalar | float, state: Any, old: Learnt, new: Learnt) -> Any:
    """y needs no transport; the thermostat starts anew where it should settle with the new mass."""
    del old
    return state._replace(thermostat=_predicted(friction, new))


def _reframe(matrix: Matrix, old: Learnt, new: Learnt) -> Matrix:
    """X in the new frame, so that F X F' is what it was."""

    def carry(row: Vector) -> Vector:
        return new.mass.whiten(old.mass.colour(row))

    return jax.vmap(carry)(jax.vmap(carry)(matrix).T)


def _reframe_thermostat(state: SGNHTState, old: Learnt, new: Learnt) -> SGNHTState:
    return state._replace(thermostat=_reframe(state.thermostat, old, new))


def _reframe_noise(
    friction: Scalar | float, state: CCAdLState, old: Learnt, new: Learnt
) -> CCAdLState:
    """The noise estimate in the new frame, and the thermostat where it settles if that is all."""
    start = jnp.full_like(state.thermostat, friction)
    return state._replace(noise=_reframe(state.noise, old, new), thermostat=start)


def _scalar_init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> SGNHTState:
    return SGNHTState(position, fresh_momentum(key, position), _predicted(friction, learnt))


def _scalar_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    key: PRNGKey,
    state: SGNHTState,
    learnt: Learnt,
) -> tuple[SGNHTState, Info]:
    mass, step_size = learnt.mass, learnt.step_size

    def damp(y: Vector, z: Vector, xi: Scalar) -> Vector:
        return _thermal(xi, friction, step_size, y, z)

    def finish(y: Vector, xi: Scalar) -> Scalar:
        return _heat(friction, learnt, y, xi)

    start = (state.position, state.whitened, state.thermostat)
    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *start)
    new = SGNHTState(path.position, path.whitened, path.extra)
    return tell_thermostat(tell(learnt, state, new, path, {}))


def _matrix_init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> SGNHTState:
    del learnt
    start = friction * jnp.eye(len(position), dtype=position.dtype)
    return SGNHTState(position, fresh_momentum(key, position), start)


def _matrix_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    key: PRNGKey,
    state: SGNHTState,
    learnt: Learnt,
) -> tuple[SGNHTState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    identity = jnp.eye(len(state.position), dtype=state.position.dtype)

    def damp(y: Vector, z: Vector, X: Matrix) -> Vector:
        # exp(-eps X) y, and noise of covariance (1 - exp(-2 eps X)) A / X, both to second order
        Xy, Xz = step_size * times(X, y), step_size * times(X, z)
        kick = jnp.sqrt(2 * friction * step_size) * (z - Xz / 2)
        return y - Xy + step_size / 2 * times(X, Xy) + kick

    def finish(y: Vector, X: Matrix) -> Matrix:
        return X + step_size / learnt.thermostat_mass * (jnp.outer(y, y) - identity)

    start = (state.position, state.whitened, state.thermostat)
    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *start)
    new = SGNHTState(path.position, path.whitened, path.extra)
    return tell_thermostat(tell(learnt, state, new, path, {}))


def _ccadl_init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> CCAdLState:
    scalar = _scalar_init(friction, key, position, learnt)
    return CCAdLState(*scalar, noise=jnp.diag(jnp.zeros_like(position)))


def _ccadl_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    forgetting: Scalar | float,
    key: PRNGKey,
    state: CCAdLState,
    learnt: Learnt,
) -> tuple[CCAdLState, Info]:
    mass, step_size = learnt.mass, learnt.step_size

    # exp(-(eps/2) (eps/2) W) to second order: half a step of the friction eps W / 2
    X = step_size**2 / 4 * state.noise
    brake = jnp.eye(len(X), dtype=X.dtype) - X + X @ X / 2

    def damp(y: Vector, z: Vector, xi: Scalar) -> Vector:
        return times(brake, _thermal(xi, friction, step_size, times(brake, y), z))

    def finish(y: Vector, xi: Scalar) -> Scalar:
        return xi + step_size / learnt.thermostat_mass * (jnp.vdot(y, y) - len(y))

    start = (state.position, state.whitened, state.thermostat)
    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *start)
    whitened = jax.vmap(mass.whiten)(path.noise)
    keep = (1 - forgetting) ** num_steps.value
    noise = keep * state.noise + (1 - keep) * (whitened.T @ whitened) / num_steps.value
    new = CCAdLState(path.position, path.whitened, path.extra, noise)
    return tell_thermostat(tell(learnt, state, new, path, {}))

"""Covariance-controlled adaptive Langevin: SGNHT with friction for estimated noise (maths 4).

In the frame y = F^-1 p, with friction matrix X = xi I + (eps/2) F^-1 Vhat F^-T and injected noise
2 A,

    dtheta = F^-T y dt
    dy     = [F^-1 grad L - X y] dt + N(0, 2 A dt) + minibatch noise N(0, eps F^-1 V F^-T dt)
    dxi    = (|y|^2 - D) / mu dt

leaves exp(L - |y|^2 / 2 - mu (xi - A - b)^2 / 2) invariant if V - Vhat = (2 b / eps) M. Vhat is a
running estimate of V, and the thermostat absorbs what the estimate misses.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between
from momentem.kernels.langevin import (
    aboba,
    check_stochastic,
    complete_thermostat,
    draw_momentum,
    keep_or_restart,
    predict_thermostat,
    reframe,
    report_thermostat,
    thermal,
)
from momentem.masses.dense import times
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Friction, Info, Kernel, Learnt, Matrix, PRNGKey, Scalar, Vector

__all__ = ["CCAdLState", "ccadl"]


class CCAdLState(NamedTuple):
    """The position, momentum and thermostat of a chain, and its running estimate of the noise."""

    position: Vector
    whitened: Vector  # y = F^-1 p
    thermostat: Scalar  # xi
    noise: Matrix  # F^-1 Vhat F^-T


def ccadl(
    target: StochasticTarget, num_steps: int, friction: float = 1.0, forgetting: float = 0.01
) -> Kernel:
    """Build the CCAdL kernel, which adds friction for the gradient noise that it has estimated.

    Mass, step size, gradient noise and thermostat mass come from `Learnt`.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected noise per unit of time. The thermostat starts there if the learnt
            noise is 0.
        forgetting: the weight of one minibatch in the running estimate of the noise.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.ccadl(target, num_steps=3)
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = kernel.complete(mt.Learnt(mass, jnp.array(0.1)))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> state.noise.shape
        (2, 2)
    """
    check_stochastic(target, num_steps, friction)
    check_between(0.0, 1.0, forgetting=forgetting)
    step = Partial(_step, target, Static(num_steps), Friction(friction), forgetting)
    init, transport = Partial(_init, friction), Partial(_transport, friction)
    return Kernel(init, step, transport, complete=Partial(complete_thermostat))


def _init(friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt) -> CCAdLState:
    y, xi = draw_momentum(key, position), predict_thermostat(friction, learnt)
    return CCAdLState(position, y, xi, noise=jnp.diag(jnp.zeros_like(position)))


def _transport(friction: Scalar | float, state: CCAdLState, old: Learnt, new: Learnt) -> CCAdLState:
    """Move the estimate to the new frame, and the thermostat to where a full estimate leaves it."""
    xi = jnp.full_like(state.thermostat, friction)
    return state._replace(noise=reframe(state.noise, old, new), thermostat=xi)


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    forgetting: Scalar | float,
    key: PRNGKey,
    state: CCAdLState,
    learnt: Learnt,
) -> tuple[CCAdLState, Info]:
    mass, step_size = learnt.mass, learnt.step_size

    # exp(-(eps/2) (eps/2) F^-1 Vhat F^-T) to second order: half a step of its friction
    X = step_size**2 / 4 * state.noise
    brake = jnp.eye(len(X), dtype=X.dtype) - X + X @ X / 2

    def damp(y: Vector, z: Vector, xi: Scalar) -> Vector:
        return times(brake, thermal(xi, friction.rate, step_size, times(brake, y), z))

    def finish(y: Vector, xi: Scalar) -> Scalar:
        return xi + step_size / learnt.thermostat_mass * (jnp.vdot(y, y) - len(y))

    start = (state.position, state.whitened, state.thermostat)
    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *start)
    whitened = jax.vmap(mass.whiten)(path.noise)
    keep = (1 - forgetting) ** num_steps.value
    noise = keep * state.noise + (1 - keep) * (whitened.T @ whitened) / num_steps.value
    new = CCAdLState(path.position, path.whitened, path.extra, noise)
    return report_thermostat(keep_or_restart(learnt, state, new, path))

"""SGNHT with a matrix for a thermostat (maths 4).

In the frame y = F^-1 p, with friction matrix X and injected noise 2 A,

    dtheta = F^-T y dt
    dy     = [F^-1 grad L - X y] dt + N(0, 2 A dt) + minibatch noise N(0, 2 W dt)
    dX     = (y y' - I) / mu dt

leaves exp(L - |y|^2 / 2 - mu |X - A I - W|^2 / 2) invariant for any constant V, with
W = (eps/2) F^-1 V F^-T.
"""

import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.kernels.langevin import (
    ThermostatState,
    aboba,
    check_stochastic,
    complete_thermostat,
    draw_momentum,
    keep_or_restart,
    reframe,
    report_thermostat,
)
from momentem.masses.dense import times
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Friction, Info, Kernel, Learnt, Matrix, PRNGKey, Scalar, Vector

__all__ = ["matrix_sgnht"]


def matrix_sgnht(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """Build the SGNHT kernel with a matrix thermostat, which absorbs any constant noise.

    Mass, step size and thermostat mass come from `Learnt`. A step costs O(D^2): for small D.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected noise per unit of time. The thermostat starts at A I.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.matrix_sgnht(target, num_steps=3)
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = kernel.complete(mt.Learnt(mass, jnp.array(0.1)))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state.thermostat.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    step = Partial(_step, target, Static(num_steps), Friction(friction))
    complete = Partial(complete_thermostat)
    return Kernel(Partial(_init, friction), step, Partial(_transport), complete=complete)


def _init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> ThermostatState:
    del learnt
    X = friction * jnp.eye(len(position), dtype=position.dtype)
    return ThermostatState(position, draw_momentum(key, position), X)


def _transport(state: ThermostatState, old: Learnt, new: Learnt) -> ThermostatState:
    return state._replace(thermostat=reframe(state.thermostat, old, new))


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    key: PRNGKey,
    state: ThermostatState,
    learnt: Learnt,
) -> tuple[ThermostatState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    identity = jnp.eye(len(state.position), dtype=state.position.dtype)

    def damp(y: Vector, z: Vector, X: Matrix) -> Vector:
        # exp(-eps X) y, and noise of covariance (1 - exp(-2 eps X)) A / X, both to second order
        Xy, Xz = step_size * times(X, y), step_size * times(X, z)
        kick = jnp.sqrt(2 * friction.rate * step_size) * (z - Xz / 2)
        return y - Xy + step_size / 2 * times(X, Xy) + kick

    def finish(y: Vector, X: Matrix) -> Matrix:
        return X + step_size / learnt.thermostat_mass * (jnp.outer(y, y) - identity)

    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *state)
    new = ThermostatState(path.position, path.whitened, path.extra)
    return report_thermostat(keep_or_restart(learnt, state, new, path))

"""The stochastic-gradient Nose-Hoover thermostat, with any mass (maths 4).

In the frame y = F^-1 p, with friction xi and injected noise 2 A,

    dtheta = F^-T y dt
    dy     = [F^-1 grad L - xi y] dt + N(0, 2 A dt) + minibatch noise N(0, eps F^-1 V F^-T dt)
    dxi    = (|y|^2 - D) / mu dt

leaves exp(L - |y|^2 / 2 - mu (xi - A - b)^2 / 2) invariant if V = (2 b / eps) M. The mass that the
`noise` M-step learns has this property. The thermostat moves at the end of the step, which is more
accurate than moving it next to the friction (maths 4.3).

Deviates: the paper's Algorithm 2 prints friction xi M^-1 p with isotropic noise, which keeps the
target only where M is a multiple of the identity, and Euler steps (`sgnht_printed`).
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
    predict_thermostat,
    report_thermostat,
    thermal,
)
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Friction, Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["sgnht"]


def sgnht(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """Build the SGNHT kernel, whose thermostat absorbs gradient noise proportional to the mass.

    Mass, step size, gradient noise and thermostat mass come from `Learnt`.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected noise per unit of time. The thermostat starts there if the learnt
            noise is 0.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sgnht(target, num_steps=3)
        >>> mass = mt.diagonal_mass(jnp.ones(2))
        >>> learnt = kernel.complete(mt.Learnt(mass, jnp.array(0.1)))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> float(state.thermostat)
        1.0
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    step = Partial(_step, target, Static(num_steps), Friction(friction))
    init, transport = Partial(_init, friction), Partial(_transport, friction)
    return Kernel(init, step, transport, complete=Partial(complete_thermostat))


def _init(
    friction: Scalar | float, key: PRNGKey, position: Vector, learnt: Learnt
) -> ThermostatState:
    y = draw_momentum(key, position)
    return ThermostatState(position, y, predict_thermostat(friction, learnt))


def _transport(
    friction: Scalar | float, state: ThermostatState, old: Learnt, new: Learnt
) -> ThermostatState:
    """Restart the thermostat where it should settle with the new mass."""
    del old
    return state._replace(thermostat=predict_thermostat(friction, new))


def _heat(friction: Scalar | float, learnt: Learnt, y: Vector, xi: Scalar) -> Scalar:
    """Return xi + (eps/mu) (|y|^2 - D), within ten standard deviations of its law if that is known.

    Far from the mode a chain moves faster than any temperature allows, and an unbounded thermostat
    would brake it almost to a halt. At stationarity the bound is met with a chance of 1e-23.
    """
    heated = xi + learnt.step_size / learnt.thermostat_mass * (jnp.vdot(y, y) - len(y))
    width = 10 / jnp.sqrt(learnt.thermostat_mass)
    width = jnp.where(jnp.any(learnt.noise > 0), width, jnp.inf)
    centre = predict_thermostat(friction, learnt)
    return jnp.clip(heated, centre - width, centre + width)


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    key: PRNGKey,
    state: ThermostatState,
    learnt: Learnt,
) -> tuple[ThermostatState, Info]:
    mass, step_size = learnt.mass, learnt.step_size

    def damp(y: Vector, z: Vector, xi: Scalar) -> Vector:
        return thermal(xi, friction.rate, step_size, y, z)

    def finish(y: Vector, xi: Scalar) -> Scalar:
        return _heat(friction.rate, learnt, y, xi)

    path = aboba(target, mass, step_size, num_steps, damp, finish, key, *state)
    new = ThermostatState(path.position, path.whitened, path.extra)
    return report_thermostat(keep_or_restart(learnt, state, new, path))

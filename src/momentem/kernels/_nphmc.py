"""Nose-Poincare dynamics, full data: the noise-free limit of the paper's SG-NPHMC (maths 5).

Every draw refreshes all but theta, exactly from the invariant law (nose.py),

    pi ~ N(0, M),   q ~ N(0, Q),   s = 1,   H0 = -L + pi' M^-1 pi / 2 + q^2 / (2 Q)

and takes num_steps generalised leapfrog steps.

There is no Metropolis step: draws are off by O(eps^2), and energy_error, the dH at the end of the
path, shows by how much. A draw whose path meets NaN is undone and flagged.

Deviates: the paper refreshes p and q but keeps s and H0, which drives dH, and with it the
temperature, away (maths 5.3).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_count
from momentem.kernels.langevin import complete_thermostat_mass
from momentem.kernels.metropolis import PointState, init_at
from momentem.kernels.nose import NosePoint, draw_thermostat, energy_excess, generalised_leapfrog
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.types import Count, Info, Kernel, Learnt, PRNGKey, Scalar, Vector

__all__ = ["nphmc"]


def nphmc(target: AnyTarget, num_steps: int) -> Kernel:
    """Build the Nose-Poincare kernel with full refresh.

    Mass, step size and thermostat mass come from `Learnt`. The thermostat's own frequency is
    sqrt(2 D / Q): keep the step size below half its inverse.

    Args:
        target: the density to sample. A minibatch target is evaluated on all its data.
        num_steps: generalised leapfrog steps, and so gradients, per draw.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> kernel = mt.kernels.nphmc(target, num_steps=8)
        >>> learnt = mt.Learnt(
        ...     mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), thermostat_mass=jnp.array(2.0)
        ... )
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(abs(info.stats["energy_error"]) < 0.1)
        True
    """
    check_target(target)
    check_count(1, num_steps=num_steps)
    complete = Partial(complete_thermostat_mass)
    return Kernel(Partial(init_at, target), Partial(_step, target, num_steps), complete=complete)


def _step(
    target: AnyTarget, num_steps: Count | int, key: PRNGKey, state: PointState, learnt: Learnt
) -> tuple[PointState, Info]:
    mass, Q = learnt.mass, learnt.thermostat_mass
    momentum_key, thermostat_key = jax.random.split(key)
    y = jax.random.normal(momentum_key, state.position.shape, state.position.dtype)
    q = draw_thermostat(thermostat_key, Q)
    zero = jnp.zeros_like(state.logdensity)
    start = NosePoint(state.position, y, q, jnp.ones_like(zero), zero, state.gradient)
    energy = jnp.vdot(y, y) / 2 + q**2 / (2 * Q)

    def evaluate(position: Vector) -> tuple[Scalar, Vector]:
        value, gradient = jax.value_and_grad(target.logdensity)(position)
        return value - state.logdensity, gradient

    def leap(_: Any, point: NosePoint) -> NosePoint:
        return generalised_leapfrog(evaluate, mass, learnt.step_size, Q, energy, point)

    end = jax.lax.fori_loop(0, num_steps, leap, start)
    energy_error = energy_excess(Q, energy, end)
    is_divergent = ~(jnp.isfinite(energy_error) & jnp.isfinite(end.gradient).all())

    here = jax.tree.map(lambda old, new: jnp.where(is_divergent, old, new), start, end)
    logdensity = state.logdensity + here.gain
    pi = here.whitened / here.scale
    stats = {
        "lp": logdensity,
        "energy": jnp.vdot(pi, pi) / 2 + here.thermostat**2 / (2 * Q) - logdensity,
        "energy_error": energy_error,
        "diverging": is_divergent,
        "thermostat": here.thermostat,
        "log_s": jnp.log(here.scale),
    }
    info = Info(here.position, mass.colour(pi), here.gradient, stats)
    return PointState(here.position, logdensity, here.gradient), info

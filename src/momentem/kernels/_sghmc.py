"""Stochastic-gradient HMC (Chen, Fox and Guestrin 2014), with any mass and the exact noise
correction (maths 3).

    dtheta = M^-1 p dt
    dp     = [grad L - C M^-1 p] dt + N(0, 2 (C - Bhat) dt) + minibatch noise N(0, 2 B dt)

leaves exp(L - p' M^-1 p / 2) invariant exactly when Bhat = B = eps V / 2, V being the covariance of
the gradient noise. With C = A M + Bhat the injected noise is 2 A M, positive definite by
construction. In the frame p = F y in which V = F diag(v) F', everything is diagonal, and the
friction is solved exactly in the O part of an ABOBA step:

    y_i <- exp(-f_i eps) y_i + sqrt(A (1 - exp(-2 f_i eps)) / f_i) z_i,      f_i = A + eps v_i / 2

Deviates: the paper's Algorithm 3 prints the gradient with the wrong sign and Euler steps with
momenta redrawn in every iteration, whose covariance is L / (L + 1) of the right one however small
eps (`sghmc_printed`).
"""

from typing import Any, NamedTuple

from jax.tree_util import Partial

from momentem.kernels.integrators import aboba
from momentem.kernels.langevin import check_stochastic, damping, fresh_momentum, tell
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Info, Kernel, Learnt, PRNGKey, Scalar, Static, Vector

__all__ = ["SGHMCState", "sghmc"]


class SGHMCState(NamedTuple):
    """Where the chain is."""

    position: Vector
    whitened: Vector  # y = F^-1 p, which needs no transport when the mass changes


def sghmc(target: StochasticTarget, num_steps: int, friction: float = 1.0) -> Kernel:
    """The SGHMC kernel. Mass, step size and gradient noise are left open; momenta are carried.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected friction per unit of time: 1 is critical for a whitened posterior.
    """
    check_stochastic(target, num_steps, friction)
    return Kernel(Partial(_init), Partial(_step, target, Static(num_steps), friction))


def _init(key: PRNGKey, position: Vector, learnt: Learnt) -> SGHMCState:
    del learnt
    return SGHMCState(position, fresh_momentum(key, position))


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Scalar | float,
    key: PRNGKey,
    state: SGHMCState,
    learnt: Learnt,
) -> tuple[SGHMCState, Info]:
    mass, step_size = learnt.mass, learnt.step_size
    rates = friction + step_size / 2 * learnt.noise
    decay, spread = damping(friction, rates, step_size)

    def damp(y: Vector, z: Vector, extra: Any) -> Vector:
        return decay * y + spread * z

    def finish(y: Vector, extra: Any) -> Any:
        return extra

    path = aboba(
        target,
        mass,
        step_size,
        num_steps,
        damp,
        finish,
        key,
        state.position,
        state.whitened,
        (),
    )
    return tell(learnt, state, SGHMCState(path.position, path.whitened), path, {})

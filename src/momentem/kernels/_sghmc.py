"""Stochastic-gradient HMC (Chen, Fox and Guestrin 2014), with any mass and the exact noise
correction (maths 3).

    dtheta = M^-1 p dt
    dp     = [grad L - C M^-1 p] dt + N(0, 2 (C - Bhat) dt) + minibatch noise N(0, 2 B dt)

leaves exp(L - p' M^-1 p / 2) invariant exactly when Bhat = B = eps V / 2, where V is the covariance
of the gradient noise. With C = A M + Bhat the injected noise is 2 A M, positive definite by
construction. In the frame p = F y in which V = F diag(v) F', everything is diagonal, and the
friction is solved exactly in the O part of an ABOBA step:

    y_i <- exp(-f_i eps) y_i + sqrt(A (1 - exp(-2 f_i eps)) / f_i) z_i,      f_i = A + eps v_i / 2

Where V depends on the position, as in a network, one v for all chains and all time is wrong nearly
everywhere. With `forgetting` each chain keeps its own, from the minibatches that it has met:

    v  <-  (1 - kappa) v + kappa (F^-1 noise)^2        after every minibatch

Deviates: the paper's Algorithm 3 prints the gradient with the wrong sign. It also prints Euler
steps with momenta redrawn in every iteration, whose covariance is num_steps / (num_steps + 1) of
the right one however small eps is (`sghmc_printed`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, is_traced
from momentem.kernels.langevin import (
    LangevinState,
    Path,
    aboba,
    check_stochastic,
    complete_noise,
    damping,
    draw_momentum,
    init_langevin,
    keep_or_restart,
)
from momentem.pytrees import Static
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Friction, Info, Kernel, Learnt, PRNGKey, Vector

__all__ = ["sghmc"]


class FollowingState(NamedTuple):
    """The position and momentum of a chain, and its running estimate of the noise."""

    position: Vector
    whitened: Vector  # y = F^-1 p
    noise: Vector  # v, variances in the mass's frame


def sghmc(
    target: StochasticTarget, num_steps: int, friction: float = 1.0, forgetting: float = 0.0
) -> Kernel:
    """Build the SGHMC kernel, which carries its momentum from draw to draw.

    Mass, step size and gradient noise come from `Learnt`.

    Args:
        target: a minibatch target.
        num_steps: steps, and so gradients, per draw.
        friction: A, the injected friction per unit of time: 1 is critical for a whitened posterior.
        forgetting: kappa, the weight of one minibatch in each chain's running estimate of the
            noise, which starts at the learnt one. Default: 0, the learnt noise for all time.

    Examples:
        >>> import jax, jax.numpy as jnp, momentem as mt
        >>> log_prior = lambda x: -0.5 * x @ x
        >>> log_likelihood = lambda x, row: -0.5 * (row - x) @ (row - x)
        >>> rows = jnp.ones((4, 2))
        >>> target = mt.dataset(log_prior, log_likelihood, rows, jnp.zeros(2), batch_size=2)
        >>> kernel = mt.kernels.sghmc(target, num_steps=3)
        >>> learnt = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.1), noise=jnp.ones(2))
        >>> state = kernel.init(jax.random.key(0), jnp.zeros(2), learnt)
        >>> state, info = kernel.step(jax.random.key(1), state, learnt)
        >>> bool(info.stats["diverging"])
        False
    """
    check_stochastic(target, num_steps, friction)
    check_between(0.0, 1.0, forgetting=forgetting)
    bound = target, Static(num_steps), Friction(friction)
    if not is_traced(forgetting) and forgetting == 0:
        return Kernel(Partial(init_langevin), Partial(_step, *bound), complete=COMPLETE)
    step = Partial(_following_step, *bound, forgetting)
    return Kernel(Partial(_following_init), step, Partial(_restart_noise), complete=COMPLETE)


def _step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    key: PRNGKey,
    state: LangevinState,
    learnt: Learnt,
) -> tuple[LangevinState, Info]:
    path = _path(target, num_steps, friction, key, state, learnt)
    return keep_or_restart(learnt, state, LangevinState(path.position, path.whitened), path)


def _path(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    key: PRNGKey,
    state: LangevinState,
    learnt: Learnt,
) -> Path:
    mass, step_size = learnt.mass, learnt.step_size
    rates = friction.rate + step_size / 2 * learnt.noise
    decay, spread = damping(friction.rate, rates, step_size)

    def damp(y: Vector, z: Vector, extra: Any) -> Vector:
        return decay * y + spread * z

    def finish(y: Vector, extra: Any) -> Any:
        return extra

    return aboba(target, mass, step_size, num_steps, damp, finish, key, *state, ())


def _following_init(key: PRNGKey, position: Vector, learnt: Learnt) -> FollowingState:
    return FollowingState(position, draw_momentum(key, position), learnt.noise)


def _restart_noise(state: FollowingState, old: Learnt, new: Learnt) -> FollowingState:
    del old
    return state._replace(noise=new.noise)


def _following_step(
    target: StochasticTarget,
    num_steps: Static,
    friction: Friction,
    forgetting: Any,
    key: PRNGKey,
    state: FollowingState,
    learnt: Learnt,
) -> tuple[FollowingState, Info]:
    own = learnt.replace(noise=state.noise)
    start = LangevinState(state.position, state.whitened)
    path = _path(target, num_steps, friction, key, start, own)
    squares = jax.vmap(learnt.mass.whiten)(path.noise) ** 2
    keep = (1 - forgetting) ** num_steps.value
    noise = keep * state.noise + (1 - keep) * jnp.mean(squares, axis=0)
    return keep_or_restart(own, state, FollowingState(path.position, path.whitened, noise), path)


COMPLETE = Partial(complete_noise)

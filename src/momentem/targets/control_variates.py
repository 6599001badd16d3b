"""Control variates: the gradient at a reference theta_0, known from all data, carries most of the
estimate.

    g(theta) = g~(theta) - g~(theta_0) + grad L(theta_0),      both g~ from the same minibatch

Unbiased for any theta_0; its noise is that of the difference, so it vanishes as theta nears
theta_0. The noise samples follow by the same subtraction; the information samples stay the plain
ones, so that the mass is learnt as before. theta_0 stays where it is put, or is the running mean of
the draws, which EM moves in its M-steps at the price of one gradient on all data each.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.optimize import minimize
from jax.tree_util import Partial

from momentem.pytrees import Static
from momentem.targets._minibatch import NoisyGradient, StochasticTarget, check_stochastic_target
from momentem.targets._starts import check_start, value_and_gradient
from momentem.targets.streams import check_whole
from momentem.types import Vector

__all__ = ["Anchor", "anchor_at", "control_variate", "mode"]


class Anchor(NamedTuple):
    """theta_0, with the log density and its gradient there. A class of its own, so that it can be
    found in a kernel and replaced by the one that EM has learnt."""

    position: Any
    value: Any
    gradient: Any
    follows: Static  # whether EM is to move it


def control_variate(target: StochasticTarget, reference: Any = None) -> StochasticTarget:
    """The same posterior with control variates around `reference`. Each gradient costs two.

    Args:
        target: a minibatch target.
        reference: parameters near the bulk of the posterior, as a pytree like `initial`: its mode,
            which `mode` finds, or the mean of an earlier run. None starts at `initial` and follows
            the running mean of the draws, in samplers that tune themselves.
    """
    check_stochastic_target(target)
    check_whole(target)
    where = target.initial if reference is None else target.unconstrain(reference)
    check_start(target, where)
    anchor = Anchor(**anchor_at(target, where), follows=Static(reference is None))
    controlled = Partial(_controlled_gradient, target.noisy_gradient, anchor)
    return target._replace(noisy_gradient=controlled, initial=where)


def anchor_at(target: Any, position: Vector) -> dict[str, Any]:
    """Return the arrays of an anchor at `position`, from all data."""
    value, gradient = value_and_gradient(target, position)
    return {"position": position, "value": value, "gradient": gradient}


def _controlled_gradient(
    noisy_gradient: Any, anchor: Anchor, batch: Any, position: Vector
) -> NoisyGradient:
    here, there = noisy_gradient(batch, position), noisy_gradient(batch, anchor.position)
    return NoisyGradient(
        gradient=here.gradient - there.gradient + anchor.gradient,
        noise=here.noise - there.noise,
        information=here.noise if here.information is None else here.information,
        # the constant that was taken from the gradient is the slope of a plane in the log density
        logdensity=here.logdensity
        - there.logdensity
        + anchor.value
        + jnp.vdot(anchor.gradient - there.gradient, position - anchor.position),
    )


def mode(target: Any) -> Any:
    """The parameters at the mode of the unconstrained density, by BFGS from `initial` on all data.

    Args:
        target: any target of moderate dimension.
    """
    check_whole(target)
    position = _mode(target, target.initial)
    if not bool(jnp.isfinite(target.logdensity(position))):
        raise ValueError("the mode was not found from `initial`: give the reference yourself")
    return target.constrain(position)


@jax.jit
def _mode(target: Any, start: Vector) -> Vector:
    return minimize(lambda x: -target.logdensity(x), start, method="BFGS").x

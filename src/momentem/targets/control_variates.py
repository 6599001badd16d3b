"""Control variates: the exact gradient at a reference theta_0 makes up most of the estimate.

    g(theta) = g~(theta) - g~(theta_0) + grad L(theta_0),      both g~ from the same minibatch

The estimate is unbiased for any theta_0. Its noise is that of the difference, so it vanishes as
theta approaches theta_0. The noise samples use the same subtraction. The information samples do
not, so the mass is learnt as without control variates. theta_0 is fixed, or it is the running mean
of the draws. EM then moves it in its M-steps, at the cost of one gradient of all data each.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.pytrees import Static
from momentem.targets._ascent import Place, ascend
from momentem.targets._minibatch import (
    NoisyGradient,
    StochasticTarget,
    check_stochastic_target,
    whole_gradient,
)
from momentem.targets._starts import check_start
from momentem.targets.streams import check_whole
from momentem.types import Vector
from momentem.xla.compile import bounded

__all__ = ["Anchor", "anchor_at", "control_variate", "mode", "try_control"]


class Anchor(NamedTuple):
    """The reference theta_0, with the log density and its gradient there. It has its own class, so
    that it can be found in a kernel and replaced by the reference that EM has learnt."""

    position: Any
    value: Any
    gradient: Any
    follows: Static  # whether EM is to move it
    is_used: Any = None  # 0 or 1, as EM has found that it pays; None: always


def control_variate(target: StochasticTarget, reference: Any = None) -> StochasticTarget:
    """Return a target with the same posterior, and with control variates around `reference`.

    Each gradient costs as much as two.

    Args:
        target: a minibatch target.
        reference: parameters near the bulk of the posterior, as a pytree like `initial`. Use the
            mode, which `mode` finds, or the mean of an earlier run. Default: the reference starts
            at `initial`, and in samplers that tune themselves it follows the running mean of the
            draws.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.dataset(
        ...     log_prior=lambda mu: -0.5 * mu**2,
        ...     log_likelihood=lambda mu, x: -0.5 * (x - mu) ** 2,
        ...     data=jnp.arange(100.0),
        ...     initial=0.0,
        ...     batch_size=10,
        ... )
        >>> controlled = mt.control_variate(target, reference=mt.mode(target))
        >>> print(f"{controlled.initial[0]:.2f}")
        49.01
    """
    check_stochastic_target(target)
    check_whole(target)
    where = target.initial if reference is None else target.unconstrain(reference)
    check_start(target, where)
    anchor = Anchor(**anchor_at(target, where), follows=Static(reference is None))
    controlled = Partial(_controlled_gradient, target.noisy_gradient, anchor)
    return target._replace(noisy_gradient=controlled, initial=where)


def try_control(target: StochasticTarget) -> StochasticTarget:
    """Return a target whose control variates EM can move and turn off. No data are read: where the
    anchor is, and its gradient there, is left to EM."""
    zero = jnp.zeros_like(target.initial)
    one = jnp.ones_like(zero[0])
    anchor = Anchor(target.initial, 0 * one, zero, follows=Static(True), is_used=one)
    return target._replace(
        noisy_gradient=Partial(_controlled_gradient, target.noisy_gradient, anchor)
    )


def anchor_at(target: Any, position: Vector) -> dict[str, Any]:
    """Return the arrays of an anchor at `position`, computed from all data."""
    value, gradient = _whole_gradient(target, position)
    return {"position": position, "value": value, "gradient": gradient}


_whole_gradient = jax.jit(whole_gradient)


def _controlled_gradient(
    noisy_gradient: Any, anchor: Anchor, batch: Any, position: Vector
) -> NoisyGradient:
    here = noisy_gradient(batch, position)
    if anchor.is_used is None:
        return _subtract(noisy_gradient, anchor, batch, position, here)
    plain = here if here.information is not None else here._replace(information=here.noise)
    # a branch and not a choice, because all chains have the same anchor
    return jax.lax.cond(
        anchor.is_used > 0,
        lambda: _subtract(noisy_gradient, anchor, batch, position, here),
        lambda: plain,
    )


def _subtract(
    noisy_gradient: Any, anchor: Anchor, batch: Any, position: Vector, here: NoisyGradient
) -> NoisyGradient:
    there = noisy_gradient(batch, anchor.position)
    return NoisyGradient(
        gradient=here.gradient - there.gradient + anchor.gradient,
        noise=here.noise - there.noise,
        information=here.noise if here.information is None else here.information,
        # a constant added to the gradient adds a linear function to the log density
        logdensity=here.logdensity
        - there.logdensity
        + anchor.value
        + jnp.vdot(anchor.gradient - there.gradient, position - anchor.position),
    )


FAR = 0.01  # squared distance per dimension, in standard deviations, that is no mode


def mode(target: Any) -> Any:
    """Return the parameters at the mode of the unconstrained density.

    It is found from `initial` by gradients alone, from ever larger parts of the data and in the end
    from all of them, which is as accurate in float32.

    Args:
        target: any target of moderate dimension D: it takes D^2 numbers of memory.

    Raises:
        ValueError: if the gradient there does not vanish. The error says how far it is.

    Examples:
        >>> import momentem as mt
        >>> target = mt.density(lambda x: -((x - 3.0) ** 2), initial=0.0)
        >>> print(f"{mt.mode(target):.2f}")
        3.00
    """
    check_whole(target)
    place = jax.tree.map(lambda leaf: leaf[0], _mode(target, target.initial))
    far = (float(place.distance) / len(place.position)) ** 0.5
    if not far <= FAR**0.5:
        raise ValueError(
            f"the mode was not found from `initial`: the ascent ended {far:.3g} standard "
            "deviations per parameter away by its gradient; give another `initial`, or the "
            "reference itself"
        )
    return target.constrain(place.position)


@bounded
def _mode(target: Any, start: Vector) -> Place:
    return ascend(target, start[None], float(jnp.finfo(start.dtype).eps) ** 0.75)

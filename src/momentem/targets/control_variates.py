"""Control variates: the exact gradient at a reference theta_0 makes up most of the estimate.

    g(theta) = g~(theta) - g~(theta_0) + grad L(theta_0),      both g~ from the same minibatch

The estimate is unbiased for any theta_0. Its noise is that of the difference, so it vanishes as
theta approaches theta_0. The noise samples use the same subtraction. The information samples do
not, so the mass is learnt as without control variates. theta_0 is fixed, or it is the running mean
of the draws. EM then moves it in its M-steps, at the cost of one gradient of all data each.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.optimize import minimize
from jax.tree_util import Partial

from momentem.pytrees import Static
from momentem.targets._minibatch import NoisyGradient, StochasticTarget, check_stochastic_target
from momentem.targets._starts import check_start, value_and_gradient
from momentem.targets.streams import check_whole
from momentem.types import Vector
from momentem.xla.compile import bounded

__all__ = ["Anchor", "anchor_at", "control_variate", "mode"]


class Anchor(NamedTuple):
    """The reference theta_0, with the log density and its gradient there. It has its own class, so
    that it can be found in a kernel and replaced by the reference that EM has learnt."""

    position: Any
    value: Any
    gradient: Any
    follows: Static  # whether EM is to move it


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


def anchor_at(target: Any, position: Vector) -> dict[str, Any]:
    """Return the arrays of an anchor at `position`, computed from all data."""
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
        # a constant added to the gradient adds a linear function to the log density
        logdensity=here.logdensity
        - there.logdensity
        + anchor.value
        + jnp.vdot(anchor.gradient - there.gradient, position - anchor.position),
    )


def mode(target: Any) -> Any:
    """Return the parameters at the mode of the unconstrained density.

    BFGS finds it from `initial`, with all data.

    Args:
        target: any target of moderate dimension.

    Examples:
        >>> import momentem as mt
        >>> target = mt.density(lambda x: -((x - 3.0) ** 2), initial=0.0)
        >>> print(f"{mt.mode(target):.2f}")
        3.00
    """
    check_whole(target)
    position = _mode(target, target.initial)
    if not bool(jnp.isfinite(target.logdensity(position))):
        raise ValueError(
            "the mode was not found from `initial`; give another `initial`, or the reference itself"
        )
    return target.constrain(position)


@bounded
def _mode(target: Any, start: Vector) -> Vector:
    return minimize(lambda x: -target.logdensity(x), start, method="BFGS").x

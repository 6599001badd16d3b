"""Control variates: the gradient at a reference theta_0, known from all data, carries most of the
estimate.

    g(theta) = g~(theta) - g~(theta_0) + grad L(theta_0),      both g~ from the same minibatch

Unbiased for any theta_0; its noise is that of the difference, so it vanishes as theta nears
theta_0. The noise samples follow by the same subtraction; the information samples stay the plain
ones, so that the mass is learnt as before.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.optimize import minimize
from jax.tree_util import Partial

from momentem.checks import check_instance
from momentem.targets.minibatch import NoisyGradient, StochasticTarget
from momentem.targets.starts import check_start
from momentem.targets.streams import check_whole
from momentem.types import Scalar, Vector

__all__ = ["control_variate", "mode"]


def control_variate(target: StochasticTarget, reference: Any) -> StochasticTarget:
    """The same posterior with control variates around `reference`. Each gradient costs two.

    Args:
        target: a minibatch target.
        reference: parameters near the bulk of the posterior, as a pytree like `initial`: its mode,
            which `mode` finds, or the mean of an earlier run.
    """
    check_instance(StochasticTarget, "build it by dataset(…, batch_size=…)", target=target)
    check_whole(target)
    where = target.unconstrain(reference)
    check_start(target, where)
    value, gradient = jax.jit(jax.value_and_grad(target.logdensity))(where)
    controlled = Partial(_controlled_gradient, target.noisy_gradient, where, value, gradient)
    return target._replace(noisy_gradient=controlled, initial=where)


def _controlled_gradient(
    noisy_gradient: Any,
    reference: Vector,
    value: Scalar,
    gradient: Vector,
    batch: Any,
    position: Vector,
) -> NoisyGradient:
    here, there = noisy_gradient(batch, position), noisy_gradient(batch, reference)
    return NoisyGradient(
        gradient=here.gradient - there.gradient + gradient,
        noise=here.noise - there.noise,
        information=here.noise if here.information is None else here.information,
        # the constant that was taken from the gradient is the slope of a plane in the log density
        logdensity=here.logdensity
        - there.logdensity
        + value
        + jnp.vdot(gradient - there.gradient, position - reference),
    )


def mode(target: Any) -> Any:
    """The parameters at the mode of the unconstrained density, by BFGS from `initial` on all data.

    Args:
        target: any target of moderate dimension.
    """
    check_whole(target)
    found = jax.jit(lambda start: minimize(lambda x: -target.logdensity(x), start, method="BFGS"))
    position = found(target.initial).x
    if not bool(jnp.isfinite(target.logdensity(position))):
        raise ValueError("the mode was not found from `initial`: give the reference yourself")
    return target.constrain(position)

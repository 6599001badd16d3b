"""Targets: log densities over a flat, unconstrained vector, and the map back to the user's
parameters.

Constrained parameters are sampled as theta = T(u) with a bijection T from R^k, so the density of u
is

    log p(u) = log p(T(u)) + log |det dT/du|

The rest of the package works with the vector u only. Pytrees and constraints are handled here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from momentem.checks import check_callable
from momentem.pytrees import as_partial
from momentem.targets.describe import describe
from momentem.targets.parameters import (
    Parameters,
    as_parameters,
    check_scalar,
    transforms_of,
)
from momentem.types import Scalar, Vector

__all__ = ["Target", "build_target", "density"]


class Target(NamedTuple):
    """A posterior: its log density, a start, and the maps to and from the user's parameters."""

    logdensity: Callable[[Vector], Scalar]  # of the unconstrained vector, Jacobian included
    initial: Vector  # the user's start, unconstrained
    constrain: Callable[[Vector], Parameters]  # unconstrained vector -> the user's parameters
    unconstrain: Callable[[Parameters], Vector]  # the inverse of `constrain`
    unravel: Callable[[Vector], Parameters]  # the vector's entries by parameter, unconstrained
    origin: Any = None  # an Origin: what predictions and labels need; None: a density alone

    def __repr__(self) -> str:
        return describe(self)


def density(
    logdensity: Callable[[Any], Any],
    initial: Any,
    constraints: Mapping[str, Any] | None = None,
) -> Target:
    """Return the target of a log density over any pytree of parameters.

    Args:
        logdensity: maps parameters to their log density, a scalar, up to a constant.
        initial: a pytree of numbers or arrays. It gives the parameters' structure, shapes, dtype
            and a start.
        constraints: NumPyro constraints by parameter name, for parameters with bounds or other
            restrictions (see `momentem.constraints`). `initial` must then be a dict. The Jacobian
            is added for you.

    Examples:
        >>> import jax.numpy as jnp
        >>> import momentem as mt
        >>> target = mt.density(
        ...     lambda p: -p["tau"] - 0.5 * p["mu"] ** 2 * p["tau"],
        ...     initial={"mu": 0.0, "tau": 1.0},
        ...     constraints={"tau": mt.constraints.positive},
        ... )
        >>> target.initial.tolist()
        [0.0, 0.0]
    """
    check_callable(logdensity=logdensity)
    parameters = as_parameters(initial)
    check_scalar("logdensity(parameters)", logdensity, parameters)
    return build_target(as_partial(logdensity), parameters, constraints)


def build_target(
    logdensity: Callable[[Any], Scalar],
    parameters: Parameters,
    constraints: Mapping[str, Any] | None,
) -> Target:
    """Return the target of a log density of constrained parameters. `logdensity` is a Partial with
    its arrays bound."""
    transforms = transforms_of(parameters, constraints)
    unconstrain = Partial(_unconstrain, transforms)
    unravel = Partial(ravel_pytree(_apply(_inverses(transforms), parameters))[1])
    initial = unconstrain(parameters)
    dtype = jax.tree.leaves(parameters)[0].dtype
    back = jax.eval_shape(_constrain, unravel, transforms, initial)
    found = {initial.dtype, *(leaf.dtype for leaf in jax.tree.leaves(back))}
    if found != {dtype}:
        raise TypeError(
            f"constraints must keep the parameters' dtype {dtype}, got {sorted(map(str, found))}; "
            "give their bounds as Python numbers"
        )
    return Target(
        logdensity=Partial(_unconstrained_logdensity, logdensity, unravel, transforms),
        initial=initial,
        constrain=Partial(_constrain, unravel, transforms),
        unconstrain=unconstrain,
        unravel=unravel,
    )


def _inverses(transforms: dict) -> dict:
    return {name: transform.inv for name, transform in transforms.items()}


def _unconstrain(transforms: dict, parameters: Parameters) -> Vector:
    return ravel_pytree(_apply(_inverses(transforms), parameters))[0]


def _apply(transforms: dict, values: Parameters) -> Parameters:
    """Return the parameters with every transform applied to the parameter of its name."""
    if not transforms:
        return values
    return values | {name: transform(values[name]) for name, transform in transforms.items()}


def _constrain(unravel: Callable, transforms: dict, position: Vector) -> Parameters:
    return _apply(transforms, unravel(position))


def _unconstrained_logdensity(
    logdensity: Callable, unravel: Callable, transforms: dict, position: Vector
) -> Scalar:
    free = unravel(position)
    theta = _apply(transforms, free)
    log_jacobians = [
        jnp.sum(transform.log_abs_det_jacobian(free[name], theta[name]))
        for name, transform in transforms.items()
    ]
    return sum(log_jacobians, start=logdensity(theta))

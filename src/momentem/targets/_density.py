"""A target: a log density over a flat, unconstrained vector, and the way back to the user's
parameters.

Constrained parameters are sampled as theta = T(u) with a bijection T from R^k, so the density of u
is

    log p(u) = log p(T(u)) + log |det dT/du|

Everything inside the package sees u alone, as one vector; pytrees and constraints end here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, PyTree
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint

from momentem.checks import check_callable
from momentem.types import Scalar, Vector, as_partial

__all__ = ["Target", "density"]

Parameters = PyTree[Array]


class Target(NamedTuple):
    """What a sampler needs to know of a posterior."""

    logdensity: Callable[[Vector], Scalar]  # of the unconstrained vector, Jacobian included
    initial: Vector  # the user's start, unconstrained
    constrain: Callable[[Vector], Parameters]  # back to the user's parameters
    unconstrain: Callable[[Parameters], Vector]  # and there again
    unravel: Callable[[Vector], Parameters]  # the vector's entries by parameter, unconstrained


def density(
    logdensity: Callable[[Any], Any],
    initial: Any,
    constraints: Mapping[str, Constraint] | None = None,
) -> Target:
    """A target from a log density over any pytree of parameters.

    Args:
        logdensity: maps parameters to their log density, up to a constant: a scalar.
        initial: a pytree of numbers or arrays that gives the parameters' structure, shapes, dtype
            and a start.
        constraints: for parameters that are not free on the real line, NumPyro constraints by name
            (see `momentem.constraints`); needs `initial` to be a dict. The Jacobian is added for
            you.

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
    return unconstrained(as_partial(logdensity), parameters, constraints)


def unconstrained(
    logdensity: Callable[[Any], Scalar],
    parameters: Parameters,
    constraints: Mapping[str, Constraint] | None,
) -> Target:
    """The target of a log density (a Partial, with its arrays bound) of constrained parameters."""
    transforms = _transforms(parameters, constraints)
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
    """The parameters with each transform applied to the one of its name."""
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


def parameter_names(parameters: Any) -> list[str]:
    """A name per leaf: its path joined by dots; a bare array is called "position"."""
    paths = jax.tree_util.tree_flatten_with_path(parameters)[0]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return [name if name else "position" for name in names]


def parameter_forms(target: Any) -> dict[str, Any]:
    """Shape and dtype of every parameter of a target, by its name."""
    like = jax.eval_shape(target.constrain, target.initial)
    return dict(zip(parameter_names(like), jax.tree.leaves(like), strict=True))


def check_scalar(name: str, function: Callable, parameters: Parameters, *rest: Any) -> None:
    """Refuses a function of the user's that does not return one number of the parameters' dtype."""
    result = jax.eval_shape(function, parameters, *rest)
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
    expected = jax.tree.leaves(parameters)[0].dtype
    if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
        found = f"shape {shape}, dtype {dtype}" if dtype is not None else f"{type(result).__name__}"
        raise ValueError(f"{name} must return a floating-point scalar, got {found}; sum its terms")
    if dtype != expected:
        raise TypeError(
            f"{name} returns {dtype} for parameters of {expected}; cast the data, or give "
            f"`initial` as {dtype}"
        )


def as_parameters(initial: Any) -> Parameters:
    """`initial` as a pytree of floating arrays of one dtype, or an error naming the parameter."""
    leaves, structure = jax.tree.flatten(initial)
    if not leaves:
        raise ValueError(f"initial must hold at least one number, got {initial!r}")
    names = parameter_names(initial)
    for name in names:
        if name in {"chain", "draw"} or names.count(name) > 1 or "/" in name:
            raise ValueError(
                f"initial has a parameter named {name!r}: names must be unique, without '/', and "
                "other "
                "than 'chain' and 'draw'; rename it"
            )
    arrays = []
    for name, leaf in zip(names, leaves, strict=True):
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError):
            raise TypeError(f"initial value of {name!r} must be numbers, got {leaf!r}") from None
        if jnp.issubdtype(array.dtype, jnp.integer):
            array = array.astype(jnp.zeros(()).dtype)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"initial value of {name!r} must be real numbers, got dtype {array.dtype}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"initial value of {name!r} must be finite, got {array}")
        arrays.append(
            jnp.asarray(array, dtype=array.dtype)
        )  # drops the weak type of Python scalars
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        found = ", ".join(
            f"{name}: {array.dtype}" for name, array in zip(names, arrays, strict=True)
        )
        raise TypeError(f"initial values must share one dtype, got {found}; cast them to the same")
    return jax.tree.unflatten(structure, arrays)


def _transforms(
    parameters: Parameters, constraints: Mapping[str, Constraint] | None
) -> dict[str, Any]:
    """The bijection of every constrained parameter."""
    if not constraints:
        return {}
    if not isinstance(parameters, dict):
        raise TypeError(
            f"constraints go by name, so initial must be a dict, got {type(parameters).__name__}"
        )
    for name, constraint in constraints.items():
        if name not in parameters:
            raise ValueError(
                f"constraints name {name!r}, which initial lacks; it has {sorted(parameters)}"
            )
        if not isinstance(constraint, Constraint):
            raise TypeError(
                f"constraint of {name!r} must be a NumPyro constraint, got {constraint!r}; "
                "see momentem.constraints, e.g. momentem.constraints.positive"
            )
        value = parameters[name]
        if not hasattr(value, "dtype") or not bool(np.all(constraint(value))):
            raise ValueError(f"initial value of {name!r} must satisfy {constraint}, got {value}")
    try:
        return {name: biject_to(constraint) for name, constraint in constraints.items()}
    except NotImplementedError:
        raise ValueError(
            "constraints must be continuous, with a bijection from the real line; one of "
            f"{constraints} has none"
        ) from None

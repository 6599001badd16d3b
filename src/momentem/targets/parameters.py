"""The user's parameters: their names, shapes, dtypes and constraints."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from momentem.targets.advice import call_or_explain
from momentem.xla.compile import shapes_of

__all__ = [
    "Parameters",
    "as_parameters",
    "check_scalar",
    "parameter_forms",
    "parameter_names",
    "transforms_of",
]

Parameters = PyTree[Array]


def parameter_names(parameters: Any) -> list[str]:
    """Return a name per leaf: its path joined by dots, or "position" for a bare array."""
    paths = jax.tree_util.tree_flatten_with_path(parameters)[0]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    return [name if name else "position" for name in names]


def parameter_forms(target: Any) -> dict[str, Any]:
    """Return the shape and dtype of every parameter of a target, by its name."""
    like = shapes_of(target.constrain, target.initial)
    return dict(zip(parameter_names(like), jax.tree.leaves(like), strict=True))


def check_scalar(name: str, function: Callable, parameters: Parameters, *rest: Any) -> None:
    """Refuse a user's function that does not return one scalar of the parameters' dtype."""
    result = call_or_explain(name, function, parameters, *rest)
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
    """Return `initial` as a pytree of floating-point arrays of one dtype. Errors name the
    parameter."""
    leaves, structure = jax.tree.flatten(initial)
    if not leaves:
        raise ValueError(f"initial must hold at least one number, got {initial!r}")
    names = parameter_names(initial)
    for name in names:
        if name in {"chain", "draw"} or names.count(name) > 1 or "/" in name:
            raise ValueError(
                f"initial has a parameter named {name!r}: names must be unique, contain no '/', "
                "and differ from 'chain' and 'draw'; rename it"
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


def transforms_of(parameters: Parameters, constraints: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the bijection of every constrained parameter by name."""
    if not constraints:
        return {}
    from numpyro.distributions import biject_to  # a second to import, and needed here alone
    from numpyro.distributions.constraints import Constraint

    if not isinstance(parameters, dict):
        raise TypeError(
            "constraints are given by parameter name, so initial must be a dict, got "
            f"{type(parameters).__name__}"
        )
    for name, constraint in constraints.items():
        if name not in parameters:
            raise ValueError(
                f"constraints must name parameters of initial, {sorted(parameters)}, got {name!r}"
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

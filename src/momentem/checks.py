"""Checks of the arguments of factories. Errors name the argument, the rule, the value and the
remedy.

Only concrete values are checked. Tracers pass, because nothing may raise inside a trace.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

__all__ = [
    "as_floats",
    "check_between",
    "check_callable",
    "check_count",
    "check_instance",
    "check_key",
    "check_numbers",
    "check_positive",
    "check_positive_entries",
]


def is_traced(value: Any) -> bool:
    """Return whether `value` is or contains a tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number, got {value!r} of type {type(value).__name__}"
        ) from None


def check_positive(**values: Any) -> None:
    """Refuse numbers that are not finite and > 0."""
    for name, value in values.items():
        if not is_traced(value) and not 0 < _number(name, value) < np.inf:
            raise ValueError(f"{name} must be finite and > 0, got {value}")


def check_between(low: float, high: float, **values: Any) -> None:
    """Refuse numbers outside the half-open interval [low, high)."""
    for name, value in values.items():
        if not is_traced(value) and not low <= _number(name, value) < high:
            raise ValueError(f"{name} must lie in [{low}, {high}), got {value}")


def check_count(least: int, **values: Any) -> None:
    """Refuse anything but whole numbers >= least."""
    for name, value in values.items():
        if is_traced(value):
            continue
        try:
            whole = operator.index(value)
        except TypeError:
            raise TypeError(
                f"{name} must be a whole number, got {value!r} of type {type(value).__name__}"
            ) from None
        if isinstance(value, bool) or whole < least:
            raise ValueError(f"{name} must be a whole number >= {least}, got {value}")


def check_callable(**values: Any) -> None:
    """Refuse values that cannot be called."""
    for name, value in values.items():
        if not callable(value):
            raise TypeError(
                f"{name} must be a function, got {value!r} of type {type(value).__name__}"
            )


def check_instance(kind: Any, remedy: str, **values: Any) -> None:
    """Refuse values that are not instances of `kind`. The error ends with the remedy."""
    for name, value in values.items():
        if not isinstance(value, kind):
            wanted = getattr(kind, "__name__", "Target")  # unions are of targets only
            found = f"{value!r:.80} of type {type(value).__name__}"
            raise TypeError(f"{name} must be a {wanted}, got {found}; {remedy}")


def check_numbers(name: str, rows: np.ndarray, first: int = 0) -> None:
    """Refuse rows with anything but finite numbers. The error names the first bad row, counted from
    `first`."""
    if rows.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got dtype {rows.dtype}")
    if rows.dtype.kind != "f":
        return
    with np.errstate(all="ignore"):  # the sum needs one pass; if it overflows, all are checked
        is_finite = bool(np.isfinite(rows.sum())) or bool(np.isfinite(rows).all())
    if not is_finite:
        at = int(np.argwhere(~np.isfinite(rows))[0][0])
        raise ValueError(
            f"{name} must be finite, got {rows[at]} in row {first + at}; drop or impute that row"
        )


def as_floats(name: str, value: ArrayLike, ndim: int, remedy: str) -> jax.Array:
    """Return `value` as a finite floating-point array of `ndim` axes, or refuse it."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold floating-point numbers, got dtype {array.dtype}")
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}; {remedy}")
    if not is_traced(array) and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at index {where}")
    return array


def check_positive_entries(name: str, array: jax.Array) -> None:
    """Refuse a vector with an entry that is not > 0."""
    if not is_traced(array) and (np.asarray(array) <= 0).any():
        worst = int(np.argmin(array))
        raise ValueError(
            f"{name} must be positive: entry {worst} of {len(array)} is {float(array[worst]):g}"
        )


def check_key(key: Any) -> None:
    """Refuse anything but one typed JAX key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key) or key.shape != ():
        raise TypeError(
            f"key must be one typed JAX key, got {key!r:.80}; make it with jax.random.key(seed)"
        )

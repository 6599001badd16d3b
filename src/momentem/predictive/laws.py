"""What a model says of one datum given parameters: a distribution, or a number without noise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from momentem.bridges.foreign import usual_promotion
from momentem.bridges.numpyro_model import unwrap

__all__ = ["BINARY", "CLASSES", "NUMBERS", "POINT", "Told", "kind_of", "tell"]

BINARY, CLASSES, NUMBERS, POINT = "binary", "classes", "numbers", "point"


class Told(NamedTuple):
    """A draw of a datum, its expectation, and its log density at the datum that was seen."""

    value: Any
    mean: Any  # probabilities of the classes, of a datum that is one of several
    log_density: Any  # None without data, and for numbers without a distribution


def _is_law(value: Any) -> bool:
    return hasattr(value, "log_prob") and hasattr(value, "sample")


def kind_of(law: Any) -> str:
    """Return which kind of datum a distribution is of."""
    if not _is_law(law):
        return POINT
    name = type(unwrap(law)).__name__
    if name.startswith("Bernoulli"):
        return BINARY
    return CLASSES if name.startswith("Categorical") else NUMBERS


def tell(law: Any, key: Any, seen: Any, value: Any = None) -> Told:
    """Return what a distribution says. A number is its own draw and expectation."""
    if not _is_law(law):
        point = jnp.asarray(law)
        return Told(point, point, None)
    with usual_promotion():
        value = law.sample(key) if value is None else value
        log_density = None if seen is None else law.log_prob(seen)
        return Told(value, _mean(law, value), log_density)


def _mean(law: Any, value: Any) -> Any:
    """Return the expectation, or the draw where NumPyro does not know it."""
    base = unwrap(law)
    if kind_of(law) == CLASSES:
        probs = base.probs
        return jnp.broadcast_to(probs, (*jnp.shape(value), probs.shape[-1]))
    try:
        mean = law.mean
    except (NotImplementedError, AttributeError):
        return value
    value = jnp.asarray(value, jnp.result_type(float))
    mean = jnp.broadcast_to(mean, jnp.shape(value))
    return jnp.where(jnp.isfinite(mean), mean, value)


Function = Callable[..., Any]


def tell_rows(
    function: Function, key: Any, parameters: Any, index: Any, rows: Any, seen: Any
) -> Told:
    """Return what a function says of rows by (draw, row). A row's key depends on its index alone,
    not on the rows that it comes with."""

    def one(draw: Any, parameters: Any, index: Any, row: Any, seen: Any) -> Told:
        own = jax.random.fold_in(jax.random.fold_in(key, draw), index)
        with usual_promotion():
            law = function(parameters, row)
        return tell(law, own, seen)

    over_rows = jax.vmap(one, in_axes=(None, None, 0, 0, 0))
    number = len(jax.tree.leaves(parameters)[0])
    over_draws = jax.vmap(over_rows, in_axes=(0, 0, None, None, None))
    return over_draws(jnp.arange(number), parameters, index, rows, seen)

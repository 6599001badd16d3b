"""What to write instead, for values that are often taken for a target, data or a density."""

import os
from collections.abc import Callable
from typing import Any

import jax

from momentem.xla.compile import shapes_of

__all__ = ["advise_on_target", "call_or_explain"]

UNTRACEABLE = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)


def advise_on_target(value: Any) -> str:
    """Return how to build a target from what was given as one."""
    home = type(value).__module__.partition(".")[0]
    if home == "pymc":
        return "build it from the PyMC model: target = momentem.from_pymc(model)"
    if home == "numpyro" or callable(value):
        return (
            "build it from a NumPyro model with momentem.from_numpyro(model, *args), or from a log "
            "density with momentem.density(log_density, initial)"
        )
    if isinstance(value, str | os.PathLike):
        return "build it first; a run on disk is read by momentem.load(folder)"
    return "build it with momentem.density or momentem.dataset"


def call_or_explain(name: str, function: Callable, *arguments: Any) -> Any:
    """Return the shape of what a user's function returns. A note explains its errors where
    the cause is known."""
    try:
        return shapes_of(function, *arguments)
    except UNTRACEABLE as error:
        error.add_note(
            f"{name} must be written in jax.numpy, because it is compiled and differentiated: "
            "write jnp.exp(x) for np.exp(x), and jnp.where(a, b, c) for `if a`, with `import "
            "jax.numpy as jnp`."
        )
        raise
    except (TypeError, ValueError, KeyError, IndexError) as error:
        if len(arguments) == 2 and isinstance(datum := arguments[1], dict):
            error.add_note(
                f"A datum is a dict here, with the keys {sorted(map(str, datum))}: in {name}, read "
                f"datum[{sorted(map(str, datum))[0]!r}]."
            )
        elif len(arguments) == 2:
            shapes = jax.tree.map(lambda leaf: leaf.shape, arguments[1])
            error.add_note(f"{name} is of one datum, which has the shape {shapes} here.")
        raise

"""Hashes of a run's model, data and sampler. A run can only be resumed with the same ones.

    model      the program of the log density, without the numbers bound to it
    data       those numbers: the target's arrays, and arrays that the density refers to
    sampler    the program of a step, and the sampler's numbers

A program is hashed as JAX's text of it, so a function may be renamed or moved, but not changed. If
data are divided over processes, each process hashes its own part.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from momentem.devices._mesh import local_part
from momentem.run.health import warn
from momentem.targets._minibatch import AnyTarget
from momentem.types import PRNGKey, Sampler

__all__ = ["fingerprints"]


def fingerprints(target: AnyTarget, sampler: Sampler, key: PRNGKey, state: Any) -> dict[str, str]:
    """Return the SHA-256 of the model, of the data and of the sampler."""
    model, constants = _program(target.logdensity, target.initial)
    step, step_constants = _program(sampler.step, key, state)
    if names := sorted({*callbacks(model), *callbacks(step)}):
        warn(
            f"the model calls Python functions while it runs ({', '.join(names)}), and what they "
            "compute is not recorded: a resumed run has the same draws only if they are the same"
        )
    seen: dict[int, bytes] = {}  # a sampler holds its target's arrays several times
    return {
        "model": _digest([model.encode()]),
        "data": _digest(_hashes([*jax.tree.leaves(target), *constants], seen)),
        "sampler": _digest(
            [step.encode(), *_hashes([*jax.tree.leaves(sampler), *step_constants], seen)]
        ),
    }


def callbacks(program: str) -> list[str]:
    """Return the names of the Python functions that a program calls back."""
    found = re.findall(r"callback_func=(.*?), in_tree=", program)
    return [re.sub(r"<(?:bound method|function) (\S+)[^>]*>+", r"\1", text) for text in found]


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _hashes(leaves: list[Any], seen: dict[int, bytes]) -> Iterator[bytes]:
    for leaf in leaves:
        if id(leaf) not in seen:
            seen[id(leaf)] = _hash(leaf)
        yield seen[id(leaf)]


def _hash(leaf: Any) -> bytes:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = local_part(leaf)
    digest = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _program(function: Callable, *arguments: Any) -> tuple[str, list[Any]]:
    """Return the text of a function's program, and its constants."""
    closed = jax.make_jaxpr(function)(*arguments)
    text = re.sub(r"0x[0-9a-f]+", "", str(closed))  # addresses differ between processes
    return text, list(_constants(closed))


def _constants(value: Any) -> Iterator[Any]:
    """Yield the constants of a program and of the programs inside it."""
    if isinstance(value, ClosedJaxpr):
        yield from value.consts
        value = value.jaxpr
    if hasattr(value, "eqns"):
        for equation in value.eqns:
            yield from _constants(list(equation.params.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _constants(item)

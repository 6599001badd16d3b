"""Pytrees of functions and arrays: static numbers, bound functions, and nodes found by their class.

Samplers and targets are pytrees of bound functions (docs/decisions/0001-samplers-are-pytrees.md).
What changes while they run, such as the rows in memory, is a node of a class of its own, so that it
can be found and replaced in whatever holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import Partial

__all__ = ["Static", "as_partial", "find_node", "replace_node", "where"]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """A number that stays concrete under jit: it becomes a shape, or decides what is built."""

    value: int


def as_partial(function: Callable[..., Any]) -> Partial:
    """Return `function` as a pytree. A Partial is returned as it is, its bound arrays as leaves."""
    return function if isinstance(function, Partial) else Partial(function)


def find_node(kind: type, tree: Any) -> Any:
    """Return the first node of class `kind` in `tree`, or None."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return next((node for node in nodes if isinstance(node, kind)), None)


def replace_node(tree: Any, node: Any) -> Any:
    """Return `tree` with `node` in place of every node of its class."""
    kind = type(node)
    return jax.tree.map(
        lambda old: node if isinstance(old, kind) else old,
        tree,
        is_leaf=lambda old: isinstance(old, kind),
    )


def where(condition: Any, new: Any, old: Any) -> Any:
    """Return `new` where the condition holds, else `old`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jax.numpy.where(condition, a, b), new, old)

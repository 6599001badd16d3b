"""Parts of pytrees that can be found and replaced by their class, in whatever holds them.

Samplers and targets are pytrees of bound functions (docs/decisions/0001-samplers-are-pytrees.md),
so what changes while they run, like the rows in memory, is a node of a class of its own.
"""

from typing import Any

import jax

__all__ = ["found", "replaced"]


def found(kind: type, tree: Any) -> Any:
    """The first node of a class, or None."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return next((node for node in nodes if isinstance(node, kind)), None)


def replaced(tree: Any, node: Any) -> Any:
    """The same tree with `node` in place of every node of its class."""
    kind = type(node)
    return jax.tree.map(
        lambda old: node if isinstance(old, kind) else old,
        tree,
        is_leaf=lambda old: isinstance(old, kind),
    )

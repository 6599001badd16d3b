"""Forks of a process that has used JAX: its threads are gone in the child, where JAX waits for them
for ever."""

import os

__all__ = ["check_fork"]

_forked = {"from_jax": False}


def _note_fork() -> None:
    from jax._src import xla_bridge  # nothing public says whether JAX has been used

    is_used = getattr(xla_bridge, "backends_are_initialized", lambda: False)
    _forked["from_jax"] = bool(is_used())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_fork() -> None:
    """Refuse to sample where JAX would hang."""
    if _forked["from_jax"]:
        raise RuntimeError(
            "this process must not sample: it was forked from one that had used JAX, and JAX would "
            "wait for ever; start processes with multiprocessing.get_context('spawn'), or fork "
            "before JAX is used"
        )

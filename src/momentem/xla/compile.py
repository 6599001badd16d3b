"""Programs that compile quickly.

On a CPU, half of the time to compile a sampler goes into XLA's newer emitters of fused loops, whose
loops are no faster here than those of the older emitters. Programs that are compiled once a run are
therefore compiled without them, and at the second of LLVM's three optimisation levels. The third
level may take minutes for a random number that is compared outside a loop and used inside it. Runs
with minibatches are long, and their loops are slower with these settings, so they are compiled as
usual (docs/decisions/0013-compilation.md).
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["program"]

SOON: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 2}


class program:
    """Variant of `jax.jit` that compiles in half the time, where XLA supports it.

    It cannot be called inside another jit. It compiles as usual if XLA_FLAGS names one of its
    settings.

    Args:
        function: the function to compile.
        **options: of `jax.jit`.
    """

    def __init__(self, function: Callable, **options: Any):
        self.usual = jax.jit(function, **options)
        self.soon = jax.jit(function, compiler_options=SOON, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled `function`."""
        is_plain = jax.config.read("jax_disable_most_optimizations")
        is_usual = is_plain or not _is_known(jax.default_backend())
        return (self.usual if is_usual else self.soon)(*args, **kwargs)

    def num_compiled(self) -> int:
        """Return the number of programs compiled so far."""
        both: Any = (self.usual, self.soon)
        return sum(each._cache_size() for each in both)


@cache
def _is_known(backend: str) -> bool:
    """Return whether XLA accepts the settings, which depend on its version."""
    flags = os.environ.get("XLA_FLAGS", "")
    if backend != "cpu" or any(name in flags for name in SOON):
        return False
    try:
        jax.jit(jnp.negative, compiler_options=SOON).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

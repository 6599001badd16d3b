"""Compiled programs that are soon ready.

On a CPU, half of what XLA takes to compile a sampler goes into its newer emitters of fused loops,
whose loops are no faster here than the older ones'. Programs that are made once a run are compiled
without them, and at the second of LLVM's three levels: the third may take minutes over a random
number that is compared outside a loop and used inside it. Runs on minibatches, which are long and
whose loops are slower that way, are compiled as usual (docs/decisions/0013-compilation.md).
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
    """`jax.jit`, compiled in half the time where XLA knows how. It cannot be called under another.

    Whoever names one of the settings in XLA_FLAGS has it as usual.

    Args:
        function: what is compiled.
        **options: of `jax.jit`.
    """

    def __init__(self, function: Callable, **options: Any):
        self.usual = jax.jit(function, **options)
        self.soon = jax.jit(function, compiler_options=SOON, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `function`."""
        is_plain = jax.config.read("jax_disable_most_optimizations")
        is_usual = is_plain or not _is_known(jax.default_backend())
        return (self.usual if is_usual else self.soon)(*args, **kwargs)

    def num_compiled(self) -> int:
        """How many programs there are by now."""
        both: Any = (self.usual, self.soon)
        return sum(each._cache_size() for each in both)


@cache
def _is_known(backend: str) -> bool:
    """Whether XLA takes the settings, which come and go with its versions."""
    flags = os.environ.get("XLA_FLAGS", "")
    if backend != "cpu" or any(name in flags for name in SOON):
        return False
    try:
        jax.jit(jnp.negative, compiler_options=SOON).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

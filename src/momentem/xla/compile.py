"""Programs that compile quickly.

On a CPU, half of the time to compile a sampler goes into XLA's newer emitters of fused loops, whose
loops are no faster here than those of the older emitters. Programs that are compiled once a run are
therefore compiled without them, and at the second of LLVM's three optimisation levels. The third
level may take minutes for a random number that is compared outside a loop and used inside it. What
runs for a moment only, such as the way in, is not optimised at all. Runs with minibatches are long,
and their loops are slower with these settings, so they are compiled as usual
(docs/decisions/0013-compilation.md).

JAX keeps a program for as long as the function that it compiled, and a program takes about 10 MB. A
function that is called with ever new models therefore forgets its programs now and then.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["bounded", "program", "shapes_of"]

LEVEL = "xla_backend_optimization_level"
SOON: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False, LEVEL: 2}
MOST = 16  # programs of one function that are kept
LOOKS = 64  # at shapes, after which what was traced for them is forgotten


class bounded:
    """Variant of `jax.jit` that forgets its programs when it has compiled `MOST` of them.

    Args:
        function: the function to compile.
        **options: of `jax.jit`.
    """

    def __init__(self, function: Callable, **options: Any):
        self._compiled: Any = jax.jit(function, **options)
        self._num_forgotten = self._num_looks = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled `function`."""
        result = self._compiled(*args, **kwargs)
        if (size := self._compiled._cache_size()) > MOST:
            self._num_forgotten += size
            self._compiled.clear_cache()
        return result

    def shapes(self, *args: Any) -> Any:
        """Return the shapes and dtypes of the results, without computing them."""
        self._num_looks += 1
        if self._num_looks % LOOKS == 0:
            self._compiled.clear_cache()
        return self._compiled.eval_shape(*args)

    def num_compiled(self) -> int:
        """Return the number of programs compiled so far."""
        return self._num_forgotten + self._compiled._cache_size()


def shapes_of(function: Callable, *args: Any) -> Any:
    """Return the shapes and dtypes of a function's results, as `jax.eval_shape` does. JAX keeps no
    record of it, of which it would keep one per call for as long as the function lives."""
    return jax.eval_shape(lambda *given: function(*given), *args)


class program:
    """Variant of `jax.jit` that compiles in half the time, where XLA supports it.

    It cannot be called inside another jit. It compiles as usual if XLA_FLAGS names one of its
    settings.

    Args:
        function: the function to compile.
        is_brief: if it runs for a moment only. It is compiled without any optimisation.
        **options: of `jax.jit`.
    """

    def __init__(self, function: Callable, is_brief: bool = False, **options: Any):
        settings = {**SOON, LEVEL: 0} if is_brief else SOON
        self.usual = bounded(function, **options)
        self.soon = bounded(function, compiler_options=settings, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled `function`."""
        is_plain = jax.config.read("jax_disable_most_optimizations")
        is_usual = is_plain or not _is_known(jax.default_backend())
        return (self.usual if is_usual else self.soon)(*args, **kwargs)

    def num_compiled(self) -> int:
        """Return the number of programs compiled so far."""
        return self.usual.num_compiled() + self.soon.num_compiled()


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

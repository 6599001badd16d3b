"""A thousand calls: memory is flat after the first fifty, and no thread is left."""

import pytest

from processes import run_alone

SCRIPT = """
import gc, threading, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np, momentem as mt
from momentem.xla import compile as programs
jax.config.update("jax_disable_most_optimizations", True)
same = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
sampler, x = mt.hmc(same, 0.5, 3), np.random.default_rng(0).normal(size=4000)
likelihood, sizes = lambda mu, x: -0.5 * (x - mu) ** 2, {"progress": False}

def call(kind, i):
    if kind == "same":
        return mt.sample(same, sampler, 10, 10, 2, **sizes)
    if kind == "new":
        target = mt.density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
        return mt.sample(target, mt.hmc(target, 0.5, 3), 10, 10, 2, **sizes)
    rows = mt.stream(mt.sources.from_arrays(x), window_rows=1000)
    target = mt.dataset(lambda mu: -0.5 * mu**2, likelihood, rows, 0.0, batch_size=20)
    return mt.sample(target, mt.sghmc(target, 0.01, 3), 10, 10, 2, **sizes)

def memory():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kind, num = "KIND", NUM
for i in range(num + 50):
    call(kind, i)
    if i == 49:
        before = memory()
print(memory() - before, threading.active_count())
"""


def soak(kind, num):
    """Bytes that `num` calls have added after the first fifty, and the threads there are."""
    return map(int, run_alone(SCRIPT.replace("KIND", kind).replace("NUM", str(num))).split())


@pytest.mark.validate
@pytest.mark.parametrize(("kind", "num"), [("same", 950), ("new", 100), ("stream", 50)])
def test_memory_is_flat(kind, num):
    grown, num_threads = soak(kind, num)
    assert grown < 60e6  # one program takes 12 MB, and up to sixteen are kept
    assert num_threads == 1

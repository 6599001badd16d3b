"""Exceptions by sampler: raised by the model's own Python at its start, in warm-up and in draws.

    python benchmarks/raised.py                    all samplers
    python benchmarks/raised.py default topics     some of them

The model calls Python with every value and gradient, and the call raises from a number of calls on.
An error at the start or in warm-up must be raised, with its own words. One in the draws must end
the run with what was drawn: to the same bits as those of a run in which nothing is raised. Written
to a folder, the run must go on from there, to the same bits as well.
"""

import contextlib
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import faults
import injections
import momentem as mt
from momentem.run import loop
from momentem.run.log import write as store

WORDS = "the simulator is gone"
SIZES: dict[str, Any] = faults.SIZES | {"num_warmup": 200, "num_chains": 2}
SHARES = {"start": 0.0, "way in": 0.02, "warm-up": 0.3, "draws": 0.9}  # of all calls


class Simulator:
    """Python that a model calls, which raises from some call on."""

    def __init__(self):
        self.calls, self.limit = 0, np.inf

    def __call__(self, x):
        self.calls += 1
        if self.calls > self.limit:
            raise RuntimeError(WORDS)
        return np.zeros_like(x)


def calling(simulator):
    """Return a function that is 0 everywhere, and asks Python for it and for its slope."""

    @jax.custom_jvp
    def asked(x):
        form = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(simulator, form, x, vmap_method="expand_dims")

    @jax.custom_jvp
    def called(x):
        return asked(x)

    asked.defjvp(lambda at, moves: (asked(*at), jnp.zeros_like(moves[0])))
    called.defjvp(lambda at, moves: (called(*at), asked(*at) * moves[0]))
    return called


def make_target(simulator, batch_size):
    called = calling(simulator)

    def likelihood(p, datum):
        return -0.5 * jnp.sum((datum - p["x"]) ** 2) / 50 + called(p["x"][0])

    rng = np.random.default_rng(0)
    options = {} if batch_size is None else {"batch_size": batch_size}
    data = 50**0.5 * rng.normal(size=(50, 2))
    return mt.dataset(injections.log_prior, likelihood, data, {"x": jnp.zeros(2)}, **options)


def topics_script(simulator):
    """Return a run of topics whose local step calls Python."""
    from momentem.topics import corpus
    from momentem.topics._fit import fit
    from momentem.topics.local import LocalStep, fixed_point
    from momentem.topics.model import make_model

    counts = np.random.default_rng(0).poisson(1.0, size=(40, 12))
    documents = corpus(counts, [f"word{i}" for i in range(12)])
    called, solve = calling(simulator), fixed_point(2).solve
    local = LocalStep(
        jax.tree_util.Partial(lambda key, lines, r: solve(key, lines, r + called(r[0])))
    )
    model = make_model(12, 3, frequencies=documents.frequencies())
    sizes: dict[str, Any] = {
        "num_steps": 2,
        "num_warmup": 40,
        "num_draws": 40,
        "thin": 2,
        "batch_size": 10,
    }

    def script(out=None):
        run = fit(
            *(model, documents, "sghmc"), **sizes, local=local, out=out,
            resume=out is not None, progress=False,
        )  # fmt: skip
        return [run.topics, run.weights, run.hyper], not run.is_whole

    return script


def script_of(sampler, simulator):
    """Return a function of a folder that runs a sampler: its draws, and whether they are all."""
    if sampler == "topics":
        return topics_script(simulator)
    make, batch_size = faults.SAMPLERS[sampler]
    target = make_target(simulator, batch_size)
    moving = make(target)

    def script(out=None):
        trace: Any = mt.sample(target, moving, **SIZES, out=out, resume=out is not None)
        draws = [
            trace[g][n].values for g in ("posterior", "sample_stats") for n in sorted(trace[g])
        ]
        draws = [draw.swapaxes(0, 1) for draw in draws]
        return draws, bool(trace.attrs["is_interrupted"])

    return script


def outcome(script, out=None):
    """Return the draws of a run, what it raised, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            draws, is_part = script(out)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}", ""
    told = " ".join(str(each.message) for each in caught)
    return draws, "", told if is_part else ""


def same_so_far(found, whole):
    """Return whether draws are the first of those of a whole run."""
    pairs = zip(found, whole, strict=True)
    return all(np.array_equal(a, b[: len(a)], equal_nan=True) for a, b in pairs)


def trials(sampler):
    """Yield every place at which a sampler's model raises, and what was wrong, or nothing."""
    simulator = Simulator()
    script = script_of(sampler, simulator)
    simulator.calls = 0
    whole = script()[0]
    total = simulator.calls
    for place, share in SHARES.items():
        simulator.calls, simulator.limit = 0, int(share * total)
        draws, error, told = outcome(script)
        wrong = ""
        if WORDS not in error + told:
            wrong = f"SILENT: {error[:100]} {told[:100]}"
        elif place == "draws" and (draws is None or not len(draws[0])):
            wrong = "LOST: no draws were returned"
        elif draws is not None and not same_so_far(draws, whole):
            wrong = "OTHER bits were returned"
        with tempfile.TemporaryDirectory() as folder:
            simulator.calls = 0
            _, error, told = outcome(script, Path(folder) / "run")
            simulator.limit = np.inf
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = script(Path(folder) / "run")[0]
            if not wrong and WORDS not in error + told:
                wrong = "SILENT with a folder"
            if not wrong and not all(map(np.array_equal, again, whole)):
                wrong = "OTHER bits after it was started again"
        yield f"{sampler}, {place}", wrong


@contextlib.contextmanager
def small_chunks():
    """Many chunks, so that an error has something before it."""
    before = loop.CHUNK_ITERATIONS, store.SEGMENT_SECONDS
    loop.CHUNK_ITERATIONS, store.SEGMENT_SECONDS = 16, 0.0
    try:
        yield
    finally:
        loop.CHUNK_ITERATIONS, store.SEGMENT_SECONDS = before


NAMES = (*faults.SAMPLERS, "topics")

if __name__ == "__main__":
    logging.getLogger("jax").setLevel(logging.CRITICAL)  # it prints every traceback of a callback
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    is_right = True
    with small_chunks():
        for sampler in sys.argv[1:] or NAMES:
            for name, wrong in trials(sampler):
                print(name, "|", wrong or "told, nothing lost", flush=True)
                is_right &= not wrong
    sys.exit(not is_right)

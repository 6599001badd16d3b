"""The front door: start, warm up, freeze, draw; one compiled program per phase, run in chunks.

A chunk is a compiled loop with a dynamic number of iterations that writes into buffers of a static
size. So one program serves chunks of every length, memory on the device is bounded by the buffers,
and between chunks Python moves the progress bar, copies draws to the host and hears Ctrl-C. The key
of iteration t is fold_in(run key, t): draws do not depend on how the run is cut into chunks.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from arviz_base import dict_to_dataset
from jaxtyping import Array
from xarray import DataTree

from momentem import keys
from momentem.checks import check_count, check_instance
from momentem.run.diagnostics import SamplingWarning, warn_of_trouble
from momentem.run.progress import Progress
from momentem.samplers import sghmc_em
from momentem.targets.density import parameter_names
from momentem.targets.minibatch import AnyTarget, StochasticTarget
from momentem.targets.starts import given_starts, starts
from momentem.types import PRNGKey, Sampler, Vectors

__all__ = ["sample"]

CHUNK_BYTES = 2**25  # of the buffers of one chunk
CHUNK_ITERATIONS = 4096
CHUNK_SECONDS = (
    0.25  # a chunk grows until it takes this long, so that Ctrl-C and the bar stay prompt
)


class Record(NamedTuple):
    """What is kept of an iteration, or, with a leading axis, of many."""

    parameters: dict[str, Any]  # by the user's names, chains first
    stats: dict[str, Any]
    learning: dict[str, Any]


def sample(
    target: AnyTarget,
    sampler: Sampler | None = None,
    num_draws: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    seed: int = 0,
    positions: Any = None,
    spread: float = 1.0,
    progress: bool = True,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> DataTree:
    """Draws from `target` by `sampler`: warm-up, in which it may learn, then draws with what it
    learnt frozen.

    Args:
        target: what is sampled.
        sampler: how, e.g. `momentem.hmc_em(target, ...)`; None is `momentem.sghmc_em(target)` for a
            minibatch target, and must be given for others. Wrap it in `momentem.forever` to learn
            on after warm-up.
        num_draws: draws per chain.
        num_warmup: warm-up iterations per chain; kept in the groups `warmup_posterior` and
            `warmup_sample_stats`.
        num_chains: chains, moved together.
        seed: a whole number; the same seed gives the same draws.
        positions: a start per chain, as a pytree like `initial` with a leading axis of chains; None
            draws overdispersed starts around `initial`.
        spread: half-width of those starts, on the unconstrained scale.
        progress: show a progress bar; it shows in a terminal only.
        dims: names of the dimensions of parameters, as in ArviZ.
        coords: labels along dimensions, as in ArviZ.

    Returns:
        A DataTree in ArviZ's schema, with an `em` group if anything was learnt. Ctrl-C returns what
        was drawn so far.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), initial={"x": jnp.zeros(3)})
        >>> trace = mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=5), num_draws=500)
        >>> dict(trace["posterior"]["x"].sizes)
        {'chain': 4, 'draw': 500, 'x_dim_0': 3}
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    moving = _chosen(target, sampler)
    check_count(1, num_draws=num_draws, num_chains=num_chains)
    check_count(0, num_warmup=num_warmup, seed=seed)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2^32, got {seed}")
    _check_labels(target, dims, coords)
    starts_key, init_key, run_key = jax.random.split(keys.key(seed), 3)
    begun = time.perf_counter()
    if positions is None:
        where = starts(starts_key, target, num_chains, spread)
    else:
        where = given_starts(target, positions, num_chains)
    state = _init(moving, init_key, where)

    warmup = History(num_warmup, num_chains)
    draws = History(num_draws, num_chains)
    is_whole = False
    with Progress(num_warmup + num_draws, is_wanted=progress) as bar, suppress(KeyboardInterrupt):
        _run(moving, target, run_key, state, 0, warmup, bar, "warm-up")
        moving, state = moving.freeze(warmup.state)
        _run(moving, target, run_key, state, num_warmup, draws, bar, "draws")
        is_whole = True
    if not (warmup.length or draws.length):
        raise KeyboardInterrupt("interrupted before the first draw")

    attrs = {
        "inference_library": "momentem",
        "seed": seed,
        "sampling_time": time.perf_counter() - begun,
        "is_interrupted": int(not is_whole),
    }
    learnt = moving.learnt(draws.state or warmup.state)
    trace = _as_datatree(warmup, draws, learnt, dims, coords, attrs)
    warn_of_trouble(trace)
    return trace


def _chosen(target: AnyTarget, sampler: Sampler | None) -> Sampler:
    if sampler is None and isinstance(target, StochasticTarget):
        return sghmc_em(target)
    check_instance(
        Sampler, "e.g. momentem.hmc(target, …), or fixed(kernel, learnt)", sampler=sampler
    )
    assert sampler is not None
    return sampler


class History:
    """What one phase has drawn so far, on the host: arrays of the phase's full length, filled chunk
    by chunk."""

    def __init__(self, capacity: int, num_chains: int):
        self.capacity, self.num_chains = capacity, num_chains
        self.length = 0
        self.is_alarmed = False
        self.state: Any = None  # of the sampler, at the end of what is here
        self._arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "stats": {}}
        self._learning: list[dict[str, np.ndarray]] = []

    def extend(self, start: int, count: int, record: Record, state: Any) -> None:
        """Appends the first `count` rows of a chunk that began at `start` and left `state`."""
        for group, arrays in self._arrays.items():
            for name, rows in getattr(record, group).items():
                rows = np.asarray(rows)[:count]
                if name not in arrays:
                    shape = (self.num_chains, self.capacity, *rows.shape[2:])
                    arrays[name] = np.empty(
                        shape, rows.dtype
                    )  # the pages are claimed as they are written
                arrays[name][:, self.length : self.length + count] = rows.swapaxes(0, 1)
        if record.learning:
            rows = {name: np.asarray(values)[:count] for name, values in record.learning.items()}
            is_m_step = rows.pop("is_m_step")
            rows["iteration"] = np.arange(start, start + count)
            self._learning.append({name: values[is_m_step] for name, values in rows.items()})
        self.length += count
        self.state = state

    def group(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a group, (chain, draw, …), as far as they are filled."""
        return {key: array[:, : self.length] for key, array in self._arrays[name].items()}

    def learning(self) -> list[dict[str, np.ndarray]]:
        """What EM did, a row per M-step, in pieces."""
        return self._learning


@jax.jit
def _init(sampler: Sampler, key: PRNGKey, positions: Vectors) -> Any:
    return sampler.init(key, positions)


def _record(sampler: Sampler, key: PRNGKey, state: Any) -> tuple[Any, tuple[Vectors, dict, dict]]:
    state, info = sampler.step(key, state)
    return state, (info.chains.position, info.chains.stats, info.learning)


@partial(jax.jit, static_argnames="size")
def _advance(
    sampler: Sampler,
    target: AnyTarget,
    key: PRNGKey,
    state: Any,
    start: Array,
    count: Array,
    *,
    size: int,
) -> tuple[Any, Record]:
    """`count` iterations from iteration `start`, and the record of them in buffers of `size`
    rows."""
    shapes = jax.eval_shape(_record, sampler, key, state)[1]
    buffers = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), shapes)

    def iterate(i: Array, carry: tuple) -> tuple:
        state, buffers = carry
        state, row = _record(sampler, jax.random.fold_in(key, start + i), state)
        return state, jax.tree.map(lambda buffer, value: buffer.at[i].set(value), buffers, row)

    state, (positions, stats, learning) = jax.lax.fori_loop(0, count, iterate, (state, buffers))
    parameters = jax.vmap(jax.vmap(target.constrain))(positions)
    named = dict(zip(parameter_names(parameters), jax.tree.leaves(parameters), strict=True))
    return state, Record(named, stats, learning)


def _chunk_size(sampler: Sampler, key: PRNGKey, state: Any, most: int) -> int:
    """Rows of a chunk's buffers: a power of two, so that runs of like length share a program."""
    row = jax.tree.leaves(jax.eval_shape(_record, sampler, key, state)[1])
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in row)
    rows = max(1, min(most, CHUNK_ITERATIONS, CHUNK_BYTES // row_bytes))
    return 2 ** math.ceil(math.log2(rows))


def _run(
    sampler: Sampler,
    target: AnyTarget,
    key: PRNGKey,
    state: Any,
    start: int,
    history: History,
    bar: Progress,
    label: str,
) -> None:
    """Fills `history` from iteration `start` on."""
    history.state = state
    if history.capacity == 0:
        return
    size, count = _chunk_size(sampler, key, state, history.capacity), 1
    while history.length < history.capacity:
        first, begun = start + history.length, time.perf_counter()
        count = min(count, history.capacity - history.length)
        state, record = jax.block_until_ready(
            _advance(sampler, target, key, state, first, count, size=size)
        )
        history.extend(first, count, record, state)
        divergences = int(np.asarray(record.stats["diverging"])[:count].sum())
        bar.advance(count, label, divergences)
        if divergences > count * history.num_chains / 2 and not history.is_alarmed:
            history.is_alarmed = True
            warnings.warn(
                f"more than half of iterations {first} to {first + count - 1} diverged; the run "
                "goes on, and Ctrl-C keeps what was drawn: lower the step size, or start from a "
                "heavier mass",
                SamplingWarning,
                stacklevel=3,
            )
        seconds = time.perf_counter() - begun
        if seconds < CHUNK_SECONDS / 2:
            count = min(size, 2 * count)
        elif seconds > 2 * CHUNK_SECONDS:
            count = max(1, count // 2)


def _check_labels(
    target: AnyTarget, dims: Mapping[str, Sequence[str]] | None, coords: Mapping[str, Any] | None
) -> None:
    """Refuses dims and coords that the result could not be labelled with, before anything is
    drawn."""
    like = jax.eval_shape(target.constrain, target.initial)
    names = parameter_names(like)
    if strangers := sorted(set(dims or {}) - set(names)):
        raise ValueError(f"dims names {strangers[0]!r}, which is no parameter; they are {names}")
    rows = [np.zeros((1, 1, *leaf.shape)) for leaf in jax.tree.leaves(like)]
    labels: dict[str, Any] = {"dims": dims, "coords": coords}
    try:
        dict_to_dataset(dict(zip(names, rows, strict=True)), **labels)
    except Exception as error:
        raise ValueError(f"dims and coords must fit the parameters' shapes: {error}") from error


def _as_datatree(
    warmup: History,
    draws: History,
    learnt: Any,
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
    attrs: dict[str, Any],
) -> DataTree:
    labels: dict[str, Any] = {"dims": dims, "coords": coords}
    groups = {}
    for history, prefix in ((draws, ""), (warmup, "warmup_")):
        if history.length:
            groups[f"{prefix}posterior"] = dict_to_dataset(history.group("parameters"), **labels)
            groups[f"{prefix}sample_stats"] = dict_to_dataset(history.group("stats"))
    if pieces := warmup.learning() + draws.learning():
        rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        em = dict_to_dataset(rows, sample_dims=["m_step"], check_conventions=False)
        final = {
            f"final_{name}": np.asarray(array) for name, array in learnt.mass._asdict().items()
        }
        groups["em"] = em.merge(dict_to_dataset(final, sample_dims=[], check_conventions=False))
    trace = DataTree.from_dict(groups)
    trace.attrs = attrs
    return trace

"""The loop of a run: one compiled program per phase, run in chunks.

A chunk is a compiled loop with a dynamic number of iterations that writes into buffers of a static
size: a row per iteration for statistics and positions, or a row per kept iteration for positions
that are large. One program therefore serves chunks of every length, and memory on the device is
bounded by the buffers. Between chunks, Python updates the progress bar, copies draws to the host or
to the run log, and handles Ctrl-C. The key of iteration t is fold_in(run key, t), and moments are
updated draw by draw, so nothing depends on the division of the run into chunks.

On a mesh the same program is divided over devices. If there are several processes, all of them run
this loop. It waits for each chunk before it starts the next, because the collectives of two
concurrent programs can deadlock when a process has several devices.
"""

import math
import time
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from momentem.devices._mesh import constrain_sharding, local_part, place_state
from momentem.devices.agreement import agree, is_first, time_limit
from momentem.pytrees import find_node
from momentem.run.batch_means import Streamed, observe
from momentem.run.health import Troubles, warn
from momentem.run.plan import Chunk, Here, Plan, Record, Sink, num_unkept
from momentem.run.progress import Progress
from momentem.targets._minibatch import AnyTarget, StochasticTarget, one_gradient
from momentem.targets.parameters import parameter_forms, parameter_names
from momentem.targets.streams import Window, set_clock, turn_window
from momentem.types import Flag, PRNGKey, Sampler, Vector, Vectors
from momentem.xla import keys
from momentem.xla.compile import bounded, program

__all__ = ["begin", "complete", "freeze", "init"]

CHUNK_BYTES = 2**25  # of the buffers of one chunk
CHUNK_ITERATIONS = 4096
# chunks grow until they take this many seconds, so that Ctrl-C and the progress bar stay prompt
CHUNK_SECONDS = 0.25
ALARM_ITERATIONS = 20  # before a run is said to diverge
LARGE = 10_000  # numbers of a position that is thinned on the device
DENSITY_EVERY = 32  # iterations between checks of the density, for samplers that do not report it


def begin(seed: int) -> tuple[PRNGKey, PRNGKey, PRNGKey, PRNGKey]:
    """Return the keys of a run: for its starts, its first state, its iterations, and its checks of
    the density."""
    return _split(keys.key(seed))


@partial(program, is_brief=True)
def _split(key: PRNGKey) -> tuple[PRNGKey, PRNGKey, PRNGKey, PRNGKey]:
    starts_key, init_key, run_key, look_key = jax.random.split(key, 4)
    return starts_key, init_key, run_key, look_key


def init(
    sampler: Sampler,
    target: AnyTarget,
    key: PRNGKey,
    positions: Vectors,
    mesh: Mesh | None = None,
) -> Any:
    """Return the sampler's first state. Chains of minibatch targets work long on it."""
    first = _first_at_length if isinstance(target, StochasticTarget) else _first
    return first(sampler, key, positions, mesh=mesh)


def _first_state(sampler: Sampler, key: PRNGKey, positions: Vectors, *, mesh: Mesh | None) -> Any:
    positions = constrain_sharding(mesh, positions, 0)
    return place_state(mesh, sampler, key, positions, sampler.init(key, positions))


_first = program(_first_state, is_brief=True, static_argnames="mesh")
_first_at_length = program(_first_state, static_argnames="mesh")


def freeze(
    sampler: Sampler, state: Any, target: AnyTarget, plan: Plan, mesh: Mesh | None
) -> tuple[Sampler, Any]:
    """Return the sampler with what it has learnt frozen, and its state."""
    sampler, state = sampler.freeze(state)
    if mesh is None:
        return sampler, state
    form = jax.ShapeDtypeStruct((plan.num_chains, len(target.initial)), target.initial.dtype)
    key = begin(plan.seed)[1]
    place = program(lambda sampler, key, state: place_state(mesh, sampler, key, form, state))
    return sampler, place(sampler, key, state)


def complete(
    target: AnyTarget,
    sampler: Sampler,
    plan: Plan,
    sink: Sink,
    progress: bool,
    mesh: Mesh | None,
) -> Sampler:
    """Continue a run from the sink's last iteration, until the sink is full or Ctrl-C is pressed.

    Args:
        target: the target to sample.
        sampler: the sampler, frozen if the sink is past warm-up.
        plan: of the run, with all chains.
        sink: receives the chunks.
        progress: show a progress bar.
        mesh: devices to divide chains over.

    Returns:
        The current sampler, which is frozen once warm-up is over.
    """
    here, total = sink.here, plan.num_warmup + sink.num_draws
    # if one of several processes stopped early, the others would wait for it: it must end instead
    ignored = (KeyboardInterrupt,) if jax.process_count() == 1 else ()
    is_wanted = progress and is_first()
    with Progress(total - here.iteration, is_wanted) as bar, suppress(*ignored):
        if not here.is_frozen:
            here = _run(sampler, target, plan, here, plan.num_warmup, sink, bar, mesh)
            sink.end_phase()
            bar.advance(plan.num_warmup - here.iteration, "warm-up", 0)  # iterations left out
            sampler, state = freeze(sampler, here.state, target, plan, mesh)
            here = Here(plan.num_warmup, True, state, _fresh_moments(target, plan))
        _run(sampler, target, plan, here, total, sink, bar, mesh)
    return sampler


def _fresh_moments(target: AnyTarget, plan: Plan) -> Streamed | None:
    if not plan.streamed:
        return None
    forms = parameter_forms(target)
    return Streamed.fresh({name: forms[name] for name in plan.streamed}, plan.num_chains)


def _record(sampler: Sampler, key: PRNGKey, state: Any) -> tuple[Any, tuple[Vectors, dict, dict]]:
    state, info = sampler.step(key, state)
    return state, (info.chains.position, info.chains.stats, info.learning)


# traced once, for its shapes and in the loop
_recorded = bounded(_record)


def _is_finite(target: AnyTarget, key: PRNGKey, position: Vector) -> Flag:
    """Return whether the density is finite. A minibatch target is judged by one minibatch."""
    if isinstance(target, StochasticTarget):
        return jnp.isfinite(one_gradient(target, key, position).logdensity)
    return jnp.isfinite(target.logdensity(position))


def _advance(sampler: Sampler, target: AnyTarget, *args: Any, **options: Any) -> tuple:
    """Run some iterations. The program is fast for a minibatch target, and quick to compile
    otherwise."""
    advance = _fast if isinstance(target, StochasticTarget) else _soon
    return advance(sampler, target, *args, **options)


def _iterations(
    sampler: Sampler,
    target: AnyTarget,
    key: PRNGKey,
    state: Any,
    moments: Streamed | None,
    start: Array,
    count: Array,
    unkept: Array,
    *,
    size: int,
    thin: int,
    keep: tuple[str, ...],
    mesh: Mesh | None,
    is_gathered: bool,
) -> tuple[Any, Streamed | None, Record, Array | None, Array]:
    """Run `count` iterations from iteration `start`, or fewer if the sampler settles.

    The last of every `thin` iterations is kept. `unkept` iterations have passed since the last that
    was kept.


    Return the state, the moments, the record in buffers of at most `size` iterations, the positions
    at which to check the density, and the number of iterations. On a mesh, states stay divided by
    chains. The record does too, unless every process needs all of it.
    """
    shapes = _recorded.shapes(set_clock(sampler, start), key, state)[1]
    every = _spacing(thin, moments, target)
    lengths = (thin - 2 + size) // every + 1 if every > 1 else size, size, size
    buffers = tuple(
        jax.tree.map(lambda leaf, n=n: jnp.zeros((n, *leaf.shape), leaf.dtype), shape)
        for n, shape in zip(lengths, shapes, strict=True)
    )

    def goes_on(carry: tuple) -> Flag:
        i, state, _ = carry
        return (i < count) & ~_is_settled(sampler, state)

    def iterate(carry: tuple) -> tuple:
        i, state, buffers = carry
        moving = set_clock(sampler, start + i)
        state, row = _recorded(moving, jax.random.fold_in(key, start + i), state)
        # the last position that is written to a place is the one that is kept
        places = (unkept % every + i) // every, i, i
        buffers = tuple(
            jax.tree.map(lambda buffer, value, at=at: buffer.at[at].set(value), *pair)
            for at, *pair in zip(places, buffers, row, strict=True)
        )
        return i + 1, state, buffers

    carry = jax.lax.while_loop(goes_on, iterate, (jnp.zeros_like(count), state, buffers))
    count, state, (positions, stats, learning) = carry
    state = place_state(mesh, sampler, key, shapes[0], state)
    parameters = jax.vmap(jax.vmap(target.constrain))(positions)
    named = dict(zip(parameter_names(parameters), jax.tree.leaves(parameters), strict=True))
    if moments is not None:
        streamed = {name: named[name] for name in moments.mean}
        observed: Streamed = jax.lax.fori_loop(
            0,
            count,
            lambda i, moments: observe(moments, {name: x[i] for name, x in streamed.items()}),
            moments,
        )
        by_chain = constrain_sharding(mesh, observed[1:], None if is_gathered else 0)
        moments = Streamed(constrain_sharding(mesh, observed.num_draws, None), *by_chain)
    kept = {name: named[name] for name in keep}
    seen = None if "lp" in stats else constrain_sharding(mesh, positions[:: _looks(every)], 1)
    kept, stats = constrain_sharding(mesh, (kept, stats), None if is_gathered else 1)
    learning, count = constrain_sharding(mesh, (learning, count), None)
    return state, moments, Record(kept, stats, learning), seen, count


STATIC = ("size", "thin", "keep", "mesh", "is_gathered")
_fast, _soon = (each(_iterations, static_argnames=STATIC) for each in (bounded, program))


def _spacing(thin: int, moments: Streamed | None, target: AnyTarget) -> int:
    """Return the number of iterations per row of positions. Moments need all positions. Small
    positions are all kept on the device too, to locate divergences, and thinned on the host."""
    return thin if moments is None and len(target.initial) >= LARGE else 1


def _looks(every: int) -> int:
    """Return the number of positions in the buffer to a look at the density."""
    return max(1, DENSITY_EVERY // every)


def _is_settled(sampler: Sampler, state: Any) -> Flag:
    return jnp.array(False) if sampler.is_settled is None else sampler.is_settled(state)


@partial(program, static_argnames=("mesh", "is_gathered"))
def _look(
    target: AnyTarget,
    key: PRNGKey,
    positions: Array,
    start: Array,
    num_looks: Array,
    *,
    mesh: Mesh | None,
    is_gathered: bool,
) -> Bool[Array, "looks chains"]:
    """Return whether the density is finite at the first `num_looks` positions. It is a separate
    program, because both phases share it."""

    def look(i: Array, looks: Array) -> Array:
        batch_key = jax.random.fold_in(key, start + DENSITY_EVERY * i)
        finite = jax.vmap(_is_finite, in_axes=(None, None, 0))
        return looks.at[i].set(finite(target, batch_key, positions[i]))

    looks = jax.lax.fori_loop(0, num_looks, look, jnp.ones(positions.shape[:2], bool))
    return constrain_sharding(mesh, looks, None if is_gathered else 1)


def _first_rows(count: int, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the first rows of the arrays that this process holds."""
    return {name: local_part(array)[:count] for name, array in arrays.items()}


def _chunk_size(sampler: Sampler, key: PRNGKey, state: Any, most: int) -> int:
    """Return the number of rows of a chunk's buffers. It is a power of two, so that runs of similar
    length share a program."""
    row = jax.tree.leaves(_recorded.shapes(sampler, key, state)[1])
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in row)
    rows = max(1, min(most, CHUNK_ITERATIONS, CHUNK_BYTES // row_bytes))
    return 2 ** math.ceil(math.log2(rows))


def _run(
    sampler: Sampler,
    target: AnyTarget,
    plan: Plan,
    here: Here,
    until: int,
    sink: Sink,
    bar: Progress,
    mesh: Mesh | None,
) -> Here:
    """Run a phase to its end: to iteration `until`, or until the sampler has settled."""
    if here.iteration == until:
        return here
    run_key, look_key = begin(plan.seed)[2:]
    # the size fits the longer phase, so that a sampler that learns nothing needs one program only
    longest = max(plan.num_warmup, plan.num_draws)
    window = find_node(Window, target)
    longest = longest if window is None else min(longest, window.hold)
    size, most = _chunk_size(sampler, run_key, here.state, longest), 1
    every, next_look = _spacing(plan.thin, here.moments, target), here.iteration
    label, is_alarmed = "draws" if here.is_frozen else "warm-up", False
    begun_at, num_diverging, num_steps = here.iteration, 0, 0
    remedy = "lower the step size, or start from a heavier mass"
    if sampler.is_settled is not None:  # it tunes itself
        remedy = "start nearer the posterior (positions=…), or reparametrise the model"
    is_gathered = jax.process_count() > 1 and not sink.is_local
    places: dict[str, Any] = {"mesh": mesh, "is_gathered": is_gathered}
    while here.iteration < until:
        first, begun = here.iteration, time.perf_counter()
        sampler, target = turn_window((sampler, target), window, first)
        left = until - first if window is None else min(until - first, window.left(first))
        count = agree(min(most, left))
        unkept = num_unkept(plan, first, here.is_frozen)
        with time_limit():
            state, moments, record, seen, done = jax.block_until_ready(
                _advance(
                    sampler,
                    target,
                    run_key,
                    here.state,
                    here.moments,
                    first,
                    count,
                    unkept,
                    size=size,
                    thin=plan.thin,
                    keep=plan.keep,
                    **places,
                )
            )
            iterations, looked, looks = int(done), [], None
            if not iterations:
                break  # the sampler has settled
            end = first + iterations
            if seen is not None and end > next_look:
                ends = range(first + every - 1 - unkept % every, end + every - 1, every)
                looked = [min(end - 1, each) for each in ends[:: _looks(every)]]
                looks = local_part(_look(target, look_key, seen, first, len(looked), **places))
                next_look = looked[-1] + DENSITY_EVERY
        here = Here(end, here.is_frozen, state, moments)
        # of large positions, the row after the last that is kept holds the last iteration
        rows = range(first + every - 1 - unkept % every, end, every)
        located = rows if rows and rows[-1] == end - 1 else [*rows, end - 1]
        parameters = _first_rows(len(located), record.parameters)
        stats, learning = (_first_rows(iterations, each) for each in record[1:])
        troubles = Troubles.find(range(first, end), located, parameters, stats, looks, looked)
        kept = slice(plan.thin - 1 - unkept, None, plan.thin) if every == 1 else slice(len(rows))
        record = Record({name: x[kept] for name, x in parameters.items()}, stats, learning)
        sink.extend(Chunk(first, iterations, record, sampler.learnt(state), here, troubles))
        bar.observe(record.parameters if here.is_frozen else {}, stats)
        bar.advance(iterations, label, troubles.diverging.times)
        num_diverging += troubles.diverging.times
        num_steps += record.stats["diverging"].size
        is_known = num_steps >= ALARM_ITERATIONS * plan.num_chains
        if is_known and num_diverging > num_steps / 2 and not is_alarmed:
            is_alarmed = True
            warn(
                f"more than half of iterations {begun_at} to {here.iteration - 1} diverged; the "
                f"run continues, and Ctrl-C keeps what was drawn: {remedy}"
            )
        seconds = time.perf_counter() - begun
        if seconds < CHUNK_SECONDS / 2:
            most = min(size, 2 * most)
        elif seconds > 2 * CHUNK_SECONDS:
            most = max(1, most // 2)
    return here

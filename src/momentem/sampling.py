"""The front door: start, warm up, freeze, draw."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from arviz_base import dict_to_dataset
from jax.sharding import Mesh
from xarray import DataTree

from momentem.checks import check_count, check_instance
from momentem.devices._mesh import check_mesh
from momentem.devices.agreement import agreed, is_first, least, limited
from momentem.run.diagnostics import convergence, is_short, warn_of_trouble
from momentem.run.health import Troubles
from momentem.run.in_memory import History
from momentem.run.log.fingerprint import fingerprints
from momentem.run.log.join import joined_troubles, open_parts
from momentem.run.log.read import Run
from momentem.run.log.resume import check_processes, continued, stored_trace
from momentem.run.log.write import MANIFEST, RunLog, create, forget_unbegun, part_of
from momentem.run.loop import Here, Plan, begin, complete, init
from momentem.run.trace import as_datatree, attributes
from momentem.samplers import sghmc_em, tuned_hmc_em
from momentem.targets._density import parameter_forms
from momentem.targets._minibatch import AnyTarget, StochasticTarget
from momentem.targets._starts import given_starts, starts
from momentem.types import Sampler

__all__ = ["resume", "sample"]

DRAWS, MOST_DRAWS = 1000, 8000  # where their number is left open

Judged = tuple[DataTree, Sequence[Troubles]]  # a trace, and the troubles of warm-up and draws


def sample(
    target: AnyTarget,
    sampler: Sampler | None = None,
    num_draws: int | None = None,
    num_warmup: int = 1000,
    num_chains: int = 4,
    seed: int = 0,
    positions: Any = None,
    spread: float = 1.0,
    progress: bool = True,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    thin: int = 1,
    keep: Sequence[str] | None = None,
    mesh: Mesh | None = None,
    resume: bool = False,
) -> DataTree:
    """Draws from `target` by `sampler`: warm-up, in which it may learn, then draws with what it
    learnt frozen.

    Args:
        target: what is sampled.
        sampler: how, e.g. `momentem.hmc_em(target, ...)`; None tunes itself:
            `momentem.tuned_hmc_em(target)`, or `momentem.sghmc_em(target)` for a minibatch target.
            Wrap it in `momentem.forever` to learn on after warm-up.
        num_draws: draws per chain; None is 1,000, and of the sampler that tunes itself on a
            full-data target twice as many, up to 8,000, as long as R-hat or ESS would be warned of.
        num_warmup: warm-up iterations per chain, at most: a sampler that finds itself settled ends
            them; kept in the groups `warmup_posterior` and `warmup_sample_stats`.
        num_chains: chains, moved together.
        seed: a whole number; the same seed gives the same draws.
        positions: a start per chain, as a pytree like `initial` with a leading axis of chains; None
            draws overdispersed starts around `initial`.
        spread: half-width of those starts, on the unconstrained scale.
        progress: show a progress bar; it shows in a terminal only.
        dims: names of the dimensions of parameters, as in ArviZ.
        coords: labels along dimensions, as in ArviZ.
        out: a new folder for a run log: draws go to the disk as they come, memory does not grow
            with their number, and `momentem.resume` goes on after a crash, to the same bits. None
            keeps draws in memory.
        thin: of the draws, and of warm-up, every `thin`-th is kept; divergences of all are counted.
        keep: names of the parameters whose draws are kept; of the others, mean and variance per
            chain are in the groups `posterior_mean` and `posterior_variance`, the effective sample
            size of all chains in `posterior_ess`. None keeps all.
        mesh: devices to divide chains over, from `momentem.mesh()`, which has those of all
            processes; None is one device.
        resume: go on with the run in `out` if there is one, as `momentem.resume` does. So the same
            script starts a run, and starts it again after a crash.

    Returns:
        A DataTree in ArviZ's schema, with an `em` group if anything was learnt. With `out`, its
        arrays are read from the folder when they are used. Ctrl-C returns what was drawn so far.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), initial={"x": jnp.zeros(3)})
        >>> trace = mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=5), num_draws=500)
        >>> dict(trace["posterior"]["x"].sizes)
        {'chain': 4, 'draw': 500, 'x_dim_0': 3}
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    moving = _chosen(target, sampler)
    is_left_open = num_draws is None
    may_double = is_left_open and sampler is None and not isinstance(target, StochasticTarget)
    num_draws = DRAWS if num_draws is None else num_draws
    check_count(1, num_draws=num_draws, num_chains=num_chains)
    check_count(0, num_warmup=num_warmup, seed=seed)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2^32, got {seed}")
    forms = parameter_forms(target)
    _check_labels(forms, dims, coords)
    check_count(1, thin=thin)
    if thin > num_draws:
        raise ValueError(f"thin must be at most num_draws = {num_draws}, got {thin}")
    if out is not None and not isinstance(out, str | os.PathLike):
        raise TypeError(f"out must be a path, got {out!r} of type {type(out).__name__}")
    if resume and out is None:
        raise ValueError("resume needs the folder of a run, got out=None; name one")
    check_mesh(mesh, num_chains)
    kept = _kept(list(forms), keep)
    streamed = tuple(name for name in forms if name not in kept)
    sizes = (int(num_draws), int(num_warmup), int(num_chains), int(seed), int(thin))
    plan = Plan(*sizes, kept, streamed, dims, coords)

    if out is not None:
        check_processes(Path(out))

    def more_logged(num_draws: int) -> Judged:
        assert out is not None
        return _logged(Path(out), continued(out, target, moving, num_draws, progress, mesh))

    if out is not None and resume:
        # all processes, or none: those that were killed before the manifest have nothing to go on
        if least((part_of(Path(out)) / MANIFEST).is_file()):
            asked = None if is_left_open else plan.num_draws
            log = continued(out, target, moving, asked, progress, mesh, plan)
            return _judged(_logged(Path(out), log), log.plan.num_draws, may_double and more_logged)
        forget_unbegun(part_of(Path(out)))

    begun = time.perf_counter()
    starts_key, init_key, run_key, _ = begin(plan.seed)
    with limited():
        if positions is None:
            where = starts(starts_key, target, num_chains, spread)
        else:
            where = given_starts(target, positions, num_chains)
        state = jax.block_until_ready(init(moving, init_key, where, mesh=mesh))
    here = Here(0, False, state, None)
    if out is not None:
        hashes = fingerprints(target, moving, run_key, here.state)
        log = create(Path(out), plan, forms, hashes, here, mesh)
        try:
            complete(target, moving, plan, here, log, progress, mesh)
        finally:
            log.close()
        return _judged(_logged(Path(out), log), plan.num_draws, may_double and more_logged)

    history = History(plan, here)

    def held(is_whole: bool) -> Judged:
        return _held(history, time.perf_counter() - begun, is_whole), history.troubles

    def more_held(num_draws: int) -> Judged:
        history.reserve(num_draws)
        # the sampler is its own frozen self
        return held(
            complete(target, moving, plan, history.here, history, progress, mesh, num_draws)
        )

    is_whole = complete(target, moving, plan, here, history, progress, mesh)
    if not history.here.iteration:
        raise KeyboardInterrupt("interrupted before the first draw")
    return _judged(held(is_whole), plan.num_draws, may_double and more_held)


def resume(
    folder: str | os.PathLike[str],
    target: AnyTarget,
    sampler: Sampler | None = None,
    num_draws: int | None = None,
    progress: bool = True,
    mesh: Mesh | None = None,
) -> DataTree:
    """Goes on with a run that was killed, interrupted, or is to have more draws.

    The draws are those of a run that was never interrupted, bit for bit. So model, data, sampler,
    versions and devices must be the same, and are checked.

    Args:
        folder: that `sample(out=…)` wrote.
        target: as given to `sample`: models are functions, and are not stored.
        sampler: as given to `sample`.
        num_draws: draws per chain in all; None is as many as were asked for.
        progress: show a progress bar.
        mesh: as given to `sample`.

    Returns:
        A DataTree as `sample(out=…)` returns it.

    Examples:
        >>> import tempfile, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x**2, initial=0.0)
        >>> sampler = mt.hmc(target, step_size=1.0, num_steps=2)
        >>> folder = tempfile.TemporaryDirectory()
        >>> trace = mt.sample(target, sampler, num_draws=500, out=folder.name)
        >>> trace = mt.resume(folder.name, target, sampler, num_draws=2000)
        >>> trace["posterior"].sizes["draw"]
        2000
        >>> del trace; folder.cleanup()
    """
    check_instance(AnyTarget, "build it with momentem.density or momentem.dataset", target=target)
    log = continued(folder, target, _chosen(target, sampler), num_draws, progress, mesh)
    return _judged(_logged(Path(folder), log), log.plan.num_draws, more=False)


def _judged(
    judged: Judged, num_draws: int, more: Callable[[int], Judged] | Literal[False]
) -> DataTree:
    """The trace, drawn on by `more`, if any, to twice as many draws while they are too few; what is
    wrong with it in the end is warned of. The first process judges for all."""
    while True:
        trace, troubles = judged
        found = convergence(trace) if is_first() else None
        is_last = trace.attrs["is_interrupted"] or 2 * num_draws > MOST_DRAWS
        if not more or is_last or not agreed(int(is_short(found))):
            break
        num_draws *= 2
        judged = more(num_draws)
    if is_first():
        warn_of_trouble(trace, found, *troubles)
    return trace


def _held(history: History, seconds: float, is_whole: bool) -> DataTree:
    """The trace of a run in memory."""
    plan, here = history.plan, history.here
    attrs = attributes(plan, here.iteration, seconds, is_whole, history.troubles)
    learnt = {} if history.learnt is None else history.learnt.arrays()
    final = {name: np.asarray(array) for name, array in learnt.items()}
    return as_datatree(plan, history.groups(), history.learning, final, here.moments, attrs)


def _logged(folder: Path, log: RunLog) -> Judged:
    """The trace of a run log."""
    runs = [Run(log.folder, {}, log.plan, log.segments, None)]
    if jax.process_count() > 1:
        agreed(0)  # the others' last segments are there, too
        runs, _ = open_parts(folder)
    return stored_trace(runs, is_cut=False), joined_troubles(runs)


def _chosen(target: AnyTarget, sampler: Sampler | None) -> Sampler:
    if sampler is None:
        return sghmc_em(target) if isinstance(target, StochasticTarget) else tuned_hmc_em(target)
    check_instance(
        Sampler, "e.g. momentem.hmc(target, …), or fixed(kernel, learnt)", sampler=sampler
    )
    return sampler


def _kept(names: list[str], keep: Sequence[str] | None) -> tuple[str, ...]:
    if keep is None:
        return tuple(names)
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not keep:
        raise TypeError(
            f"keep must be a list of at least one parameter's name, got {keep!r}; they are {names}"
        )
    if strangers := [name for name in keep if name not in names]:
        raise ValueError(f"keep names {strangers[0]!r}, which is no parameter; they are {names}")
    return tuple(name for name in names if name in keep)


def _check_labels(
    forms: Mapping[str, Any],
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
) -> None:
    """Refuses dims and coords that the result could not be labelled with, before anything is
    drawn."""
    if strangers := sorted(set(dims or {}) - set(forms)):
        raise ValueError(
            f"dims names {strangers[0]!r}, which is no parameter; they are {list(forms)}"
        )
    rows = {name: np.zeros((1, 1, *form.shape)) for name, form in forms.items()}
    labels: dict[str, Any] = {"dims": dims, "coords": coords}
    try:
        dict_to_dataset(rows, **labels)
    except Exception as error:
        raise ValueError(f"dims and coords must fit the parameters' shapes: {error}") from error

"""Going on with a run log, and reading one."""

import os
from pathlib import Path

import jax.numpy as jnp
from xarray import DataTree

from momentem.checks import check_count
from momentem.run.diagnostics import warn
from momentem.run.fingerprints import fingerprints
from momentem.run.loop import Here, Plan, begin, complete, init
from momentem.run.reading import Run, groups_of, learning_of, open_run, troubles_of
from momentem.run.segments import TEMPORARY, Segment, listed
from momentem.run.states import restored, restored_moments
from momentem.run.store import RunLog, layout, lock
from momentem.run.trace import as_datatree, attributes
from momentem.run.troubles import Troubles
from momentem.targets.minibatch import AnyTarget
from momentem.types import Sampler

__all__ = ["continued", "load", "stored_trace"]


def load(folder: str | os.PathLike[str]) -> DataTree:
    """What a run log holds, while its run is going, after it, or after a crash.

    Arrays are read from the folder when they are used, and need no memory until then; `.load()`
    reads them all. A segment that is not whole is warned of, and the trace ends before it.

    Args:
        folder: that `sample(out=…)` wrote.

    Returns:
        A DataTree as `sample` returns it.

    Examples:
        >>> import tempfile, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x**2, initial=0.0)
        >>> sampler = mt.hmc(target, step_size=1.0, num_steps=2)
        >>> folder = tempfile.TemporaryDirectory()
        >>> trace = mt.sample(target, sampler, out=folder.name)
        >>> mt.load(folder.name)["posterior"].sizes["draw"]
        1000
        >>> del trace; folder.cleanup()
    """
    run = open_run(Path(folder))
    if run.fault is not None:
        warn(f"{run.fault}; what comes before it is given")
    return stored_trace(run.plan, run.segments, is_cut=run.fault is not None)


def stored_trace(plan: Plan, segments: list[Segment], is_cut: bool) -> DataTree:
    """The trace of a run log's segments, of which more may have followed."""
    learning, final = learning_of(segments)
    last = segments[-1].about if segments else {"num_draws": plan.num_draws, "seconds": 0.0}
    done = last["first"] + last["iterations"] if segments else 0
    moments = restored_moments(plan, segments[-1]) if segments else None
    is_whole = not is_cut and done >= plan.num_warmup + last["num_draws"]
    attrs = attributes(plan, done, last["seconds"], is_whole, troubles(segments))
    return as_datatree(plan, groups_of(segments), learning, final, moments, attrs)


def troubles(segments: list[Segment]) -> tuple[Troubles, Troubles]:
    """Of warm-up and of the draws."""
    found = [Troubles(), Troubles()]
    for segment in segments:
        phase = int(segment.about["is_frozen"])
        found[phase] = found[phase] + troubles_of(segment)
    return found[0], found[1]


def continued(
    folder: str | os.PathLike[str],
    target: AnyTarget,
    sampler: Sampler,
    num_draws: int | None,
    progress: bool,
) -> RunLog:
    """The run log of `folder`, run on to its end, or to an interrupt."""
    run = open_run(Path(folder))
    if run.fault is not None:
        raise ValueError(
            f"{run.fault}; momentem.load gives what comes before it. To go on from there, move "
            "this segment and those after it out of the folder"
        )
    last = run.segments[-1].about
    done = max(0, last["first"] + last["iterations"] - run.plan.num_warmup)
    asked = last["num_draws"] if num_draws is None else num_draws
    check_count(1, num_draws=asked)
    if asked < done:
        raise ValueError(f"num_draws must be at least the {done} draws that are there, got {asked}")
    plan = run.plan._replace(num_draws=int(asked))
    _check_layout(run)
    moving, here = _restored(run, target, sampler)
    descriptor = lock(run.folder)
    if listed(run.folder) != [segment.path for segment in run.segments]:
        os.close(descriptor)
        raise BlockingIOError(f"{run.folder} has grown while it was read; wait for its run to end")
    (run.folder / TEMPORARY).unlink(missing_ok=True)  # of a killed process
    root, seconds = run.segments[0].about["previous"], last["seconds"]
    log = RunLog(run.folder, plan, root, run.segments, here, seconds, descriptor)
    try:
        complete(target, moving, plan, here, log, progress)
    finally:
        log.close()
    return log


def _check_layout(run: Run) -> None:
    now = layout()
    if differ := [name for name in now if run.manifest.get(name) != now[name]]:
        listed = ", ".join(f"{name} {run.manifest.get(name)} -> {now[name]}" for name in differ)
        raise ValueError(
            f"{run.folder} cannot be continued to the same bits, because the surroundings differ: "
            f"{listed}; go back to those, or start a new run. momentem.load reads it anywhere"
        )


def _restored(run: Run, target: AnyTarget, sampler: Sampler) -> tuple[Sampler, Here]:
    """The sampler that moves now, frozen if warm-up is over, and where it is."""
    _, init_key, run_key, _ = begin(run.plan.seed)
    shape = (run.plan.num_chains, len(target.initial))
    like = init(sampler, init_key, jnp.broadcast_to(target.initial, shape))
    _check_origin(run, fingerprints(target, sampler, run_key, like))
    warmup = [segment for segment in run.segments if not segment.about["is_frozen"]]
    newest = run.segments[-1]
    about = newest.about
    iteration = about["first"] + about["iterations"]
    state = restored(warmup[-1], like)
    if not about["is_frozen"]:
        return sampler, Here(iteration, False, state, None)
    moving, like = sampler.freeze(state)
    moments = restored_moments(run.plan, newest)
    return moving, Here(iteration, True, restored(newest, like), moments)


def _check_origin(run: Run, hashes: dict[str, str]) -> None:
    """Refuses another model or other data; another sampler only if those are the same, because it
    contains them."""
    differ = [name for name in ("model", "data") if run.manifest.get(name) != hashes[name]]
    if not differ and run.manifest.get("sampler") != hashes["sampler"]:
        differ = ["sampler"]
    if differ:
        raise ValueError(
            f"{' and '.join(differ)} must be those that {run.folder} was begun with, and "
            f"{'differ' if len(differ) > 1 else 'differs'}; give the same, or start a new run in "
            "another folder"
        )

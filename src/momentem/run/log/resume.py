"""Going on with a run log, and reading one."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from xarray import DataTree

from momentem.checks import check_count
from momentem.devices._mesh import check_mesh
from momentem.devices.agreement import least, limited
from momentem.run.diagnostics import warn
from momentem.run.log.fingerprint import fingerprints
from momentem.run.log.join import (
    joined_groups,
    joined_moments,
    joined_troubles,
    num_chains,
    open_parts,
)
from momentem.run.log.read import Run, learning_of, open_run
from momentem.run.log.segment import TEMPORARY, listed
from momentem.run.log.state import placed_moments, restored, restored_moments
from momentem.run.log.write import MANIFEST, PART, RunLog, layout, lock, part_of
from momentem.run.loop import Here, Plan, begin, complete, frozen, init
from momentem.run.trace import as_datatree, attributes
from momentem.targets._minibatch import AnyTarget
from momentem.types import Sampler

__all__ = ["check_processes", "continued", "load", "stored_trace"]


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
    runs, amiss = open_parts(Path(folder))
    for fault in amiss:
        warn(fault)
    return stored_trace(runs, is_cut=bool(amiss))


def stored_trace(runs: list[Run], is_cut: bool) -> DataTree:
    """The trace of a run's logs, of which more may have followed."""
    segments = runs[0].segments
    plan = runs[0].plan._replace(num_chains=sum(run.plan.num_chains for run in runs))
    learning, final = learning_of(segments)
    last = segments[-1].about if segments else {"num_draws": plan.num_draws, "seconds": 0.0}
    done = last["first"] + last["iterations"] if segments else 0
    is_whole = not is_cut and done >= plan.num_warmup + last["num_draws"]
    attrs = attributes(plan, done, last["seconds"], is_whole, joined_troubles(runs))
    return as_datatree(plan, joined_groups(runs), learning, final, joined_moments(runs), attrs)


def continued(
    folder: str | os.PathLike[str],
    target: AnyTarget,
    sampler: Sampler,
    num_draws: int | None,
    progress: bool,
    mesh: Mesh | None,
    plan: Plan | None = None,
) -> RunLog:
    """This process's log of the run in `folder`, run on to its end, or to an interrupt; of the run
    that `plan` asks for, if it is given."""
    check_processes(Path(folder))
    run = open_run(part_of(Path(folder)))
    if plan is not None:
        _check_plan(run, plan)
    check_mesh(mesh, num_chains(run))
    if run.fault is not None:
        raise ValueError(
            f"{run.fault}; momentem.load gives what comes before it. To go on from there, move "
            "this segment and those after it out of the folder"
        )
    _check_layout(run, mesh)
    # a process that was killed while the others wrote is a segment behind them
    shared = least(len(run.segments))
    ahead = [segment.path for segment in run.segments[shared:]]
    run = run._replace(segments=run.segments[:shared])
    last = run.segments[-1].about
    done = max(0, last["first"] + last["iterations"] - run.plan.num_warmup)
    asked = last["num_draws"] if num_draws is None else num_draws
    check_count(1, num_draws=asked)
    if asked < done:
        raise ValueError(f"num_draws must be at least the {done} draws that are there, got {asked}")
    plan = run.plan._replace(num_draws=int(asked))
    with limited():
        moving, here = _restored(run, target, sampler, mesh)
    descriptor = lock(run.folder)
    if listed(run.folder) != [*(segment.path for segment in run.segments), *ahead]:
        os.close(descriptor)
        raise BlockingIOError(f"{run.folder} has grown while it was read; wait for its run to end")
    (run.folder / TEMPORARY).unlink(missing_ok=True)  # of a killed process
    for path in reversed(ahead):  # to be drawn again
        path.unlink()
    root, seconds = run.segments[0].about["previous"], last["seconds"]
    log = RunLog(run.folder, plan, root, run.segments, here, seconds, descriptor)
    try:
        every = plan._replace(num_chains=num_chains(run))
        complete(target, moving, every, here, log, progress, mesh)
    finally:
        log.close()
    return log


def _check_plan(run: Run, plan: Plan) -> None:
    """Refuses to go on with a run that was asked for differently, but for its number of draws."""
    then = run.plan._replace(num_chains=num_chains(run))
    for name in ("num_chains", "num_warmup", "seed", "thin", "keep"):
        if getattr(plan, name) != getattr(then, name):
            raise ValueError(
                f"{name} must be {getattr(then, name)}, as in the run that {run.folder} holds, got "
                f"{getattr(plan, name)}; give the same, or another folder"
            )


def check_processes(folder: Path) -> None:
    """Refuses the log of one process in several, and the other way round."""
    now, num_parts = jax.process_count(), len(list(folder.glob(f"{PART}*")))
    if (now == 1 and num_parts) or (now > 1 and (folder / MANIFEST).is_file()):
        raise ValueError(
            f"{folder} was written by {num_parts or 1} processes, and there are {now}; start as "
            "many as then, by `momentem launch --processes N`. momentem.load reads it anywhere"
        )


def _check_layout(run: Run, mesh: Mesh | None) -> None:
    now: dict[str, Any] = {"mesh": None, "processes": None, **layout(mesh)}
    if differ := [name for name in now if run.manifest.get(name) != now[name]]:
        listed = ", ".join(f"{name} {run.manifest.get(name)} -> {now[name]}" for name in differ)
        raise ValueError(
            f"{run.folder} cannot be continued to the same bits, because the surroundings differ: "
            f"{listed}; go back to those, or start a new run. momentem.load reads it anywhere"
        )


def _restored(
    run: Run, target: AnyTarget, sampler: Sampler, mesh: Mesh | None
) -> tuple[Sampler, Here]:
    """The sampler that moves now, frozen if warm-up is over, and where it is."""
    plan = run.plan._replace(num_chains=num_chains(run))
    _, init_key, run_key, _ = begin(plan.seed)
    positions = jnp.broadcast_to(target.initial, (plan.num_chains, len(target.initial)))
    like = jax.block_until_ready(init(sampler, init_key, positions, mesh=mesh))
    _check_origin(run, fingerprints(target, sampler, run_key, like))
    warmup = [segment for segment in run.segments if not segment.about["is_frozen"]]
    newest = run.segments[-1]
    about = newest.about
    iteration = about["first"] + about["iterations"]
    state = restored(warmup[-1], like)
    if not about["is_frozen"]:
        return sampler, Here(iteration, False, state, None)
    moving, like = frozen(sampler, state, target, plan, mesh)
    moments = placed_moments(restored_moments(plan, newest), plan.num_chains, mesh)
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

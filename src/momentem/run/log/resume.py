"""Resume a run from its log."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from momentem.checks import check_count
from momentem.devices._mesh import check_mesh
from momentem.devices.agreement import smallest, time_limit
from momentem.run.log.fingerprint import fingerprints
from momentem.run.log.folder import MANIFEST, PART, forget_unfinished, layout, lock, part_of
from momentem.run.log.join import num_chains
from momentem.run.log.read import Run, open_run
from momentem.run.log.state import place_moments, restore, restore_moments
from momentem.run.log.write import RunLog
from momentem.run.loop import begin, freeze, init
from momentem.run.plan import Here, Plan
from momentem.targets._minibatch import AnyTarget
from momentem.types import Sampler

__all__ = ["check_processes", "reopen"]


def reopen(
    folder: Path,
    target: AnyTarget,
    sampler: Sampler,
    num_draws: int | None,
    mesh: Mesh | None,
    plan: Plan | None = None,
) -> tuple[RunLog, Sampler, Plan]:
    """Open this process's log of the run in `folder`, to continue the run.

    Args:
        folder: of the run.
        target: as given to the run.
        sampler: as given to the run.
        num_draws: draws per chain in total. Default: as many as the log has room for.
        mesh: as given to the run.
        plan: the current settings, if they must be those of the run. Default: they are not
            compared.

    Returns:
        The log, the current sampler, and the plan with all chains.
    """
    check_processes(folder)
    part = part_of(folder)
    if not part.is_dir():
        open_run(part)  # says what is missing
    descriptor = lock(part)  # before the log is read: what is read now, no other process changes
    try:
        log, moving = _reopen(part, target, sampler, num_draws, mesh, plan, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    run = log.run
    return log, moving, run.plan._replace(num_chains=num_chains(run))


def _reopen(
    part: Path,
    target: AnyTarget,
    sampler: Sampler,
    num_draws: int | None,
    mesh: Mesh | None,
    plan: Plan | None,
    descriptor: int,
) -> tuple[RunLog, Sampler]:
    """Return the log in a locked folder, and the current sampler."""
    run = open_run(part)
    if plan is not None:
        _check_plan(run, plan)
    check_mesh(mesh, num_chains(run))
    if run.fault is not None:
        raise ValueError(
            f"{run.fault}; momentem.load returns what comes before it. To resume from there, move "
            "this segment and those after it out of the folder"
        )
    _check_layout(run, mesh)
    # a process that was killed while the others wrote is one segment behind them
    shared = smallest(len(run.segments))
    ahead = [segment.path for segment in run.segments[shared:]]
    run = run._replace(segments=run.segments[:shared])
    last = run.segments[-1].about
    done = max(0, last["first"] + last["iterations"] - run.plan.num_warmup)
    asked = last["num_draws"] if num_draws is None else num_draws
    check_count(1, num_draws=asked)
    if asked < done:
        raise ValueError(
            f"num_draws must be at least the {done} draws that the run has, got {asked}"
        )
    most = run.plan.most_draws if num_draws is None else asked
    run = run._replace(plan=run.plan._replace(num_draws=int(asked), most_draws=int(most)))
    with time_limit():
        moving, here = _restore(run, target, sampler, mesh)
    forget_unfinished(run.folder)
    for path in reversed(ahead):  # these draws are drawn again
        path.unlink()
    log = RunLog(run, here, last["seconds"], descriptor)
    if asked != last["num_draws"]:
        log.publish()  # what is asked for now outlives a crash before the next draw
    return log, moving


def _check_plan(run: Run, plan: Plan) -> None:
    """Refuse settings that differ from those of the run, except for the number of draws."""
    then = run.plan._replace(num_chains=num_chains(run))
    for name in ("num_chains", "num_warmup", "seed", "thin", "keep"):
        if getattr(plan, name) != getattr(then, name):
            raise ValueError(
                f"{name} must be {getattr(then, name)}, as in the run in {run.folder}, got "
                f"{getattr(plan, name)}; give the same, or another folder"
            )


def check_processes(folder: Path) -> None:
    """Refuse to resume the log of one process with several, or the logs of several with one."""
    now, num_parts = jax.process_count(), len(list(folder.glob(f"{PART}*")))
    if (now == 1 and num_parts) or (now > 1 and (folder / MANIFEST).is_file()):
        raise ValueError(
            f"the number of processes must be {num_parts or 1}, as when {folder} was written, got "
            f"{now}; start as many with `momentem launch --processes N`. momentem.load can read it "
            "anywhere"
        )


def _check_layout(run: Run, mesh: Mesh | None) -> None:
    now: dict[str, Any] = {"mesh": None, "processes": None, **layout(mesh)}
    if differ := [name for name in now if run.manifest.get(name) != now[name]]:
        listed = ", ".join(f"{name} {run.manifest.get(name)} -> {now[name]}" for name in differ)
        raise ValueError(
            f"{run.folder} cannot be resumed bit for bit, because the environment differs: "
            f"{listed}; restore that environment, or start a new run. momentem.load can read it "
            "anywhere"
        )


def _restore(
    run: Run, target: AnyTarget, sampler: Sampler, mesh: Mesh | None
) -> tuple[Sampler, Here]:
    """Return the current sampler, frozen if warm-up is over, and the place of the run."""
    plan = run.plan._replace(num_chains=num_chains(run))
    _, init_key, run_key, _ = begin(plan.seed)
    positions = jnp.broadcast_to(target.initial, (plan.num_chains, len(target.initial)))
    like = jax.block_until_ready(init(sampler, target, init_key, positions, mesh))
    _check_origin(run, fingerprints(target, sampler, run_key, like))
    warmup = [segment for segment in run.segments if not segment.about["is_frozen"]]
    newest = run.segments[-1]
    about = newest.about
    iteration = about["first"] + about["iterations"]
    state = restore(warmup[-1], like)
    if not about["is_frozen"]:
        return sampler, Here(iteration, False, state, None)
    moving, like = freeze(sampler, state, target, plan, mesh)
    moments = place_moments(restore_moments(plan, newest), plan.num_chains, mesh)
    return moving, Here(iteration, True, restore(newest, like), moments)


def _check_origin(run: Run, hashes: dict[str, str]) -> None:
    """Refuse a different model, different data or a different sampler. The sampler contains model
    and data, so it is only named if those are the same."""
    differ = [name for name in ("model", "data") if run.manifest.get(name) != hashes[name]]
    if not differ and run.manifest.get("sampler") != hashes["sampler"]:
        differ = ["sampler"]
    if differ:
        raise ValueError(
            f"{' and '.join(differ)} must be the same as when {run.folder} was begun, and "
            f"{'differ' if len(differ) > 1 else 'differs'}; give the same, or start a new run in "
            "another folder"
        )

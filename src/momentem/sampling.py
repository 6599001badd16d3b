"""The front door: sample a target, go on with a run, load one.

A run is checked, planned, started, run, judged and returned. Its chunks go to a sink (`run.plan`),
which is memory or a log on disk; nothing here depends on which.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from momentem.checks import check_count, check_instance
from momentem.devices._mesh import check_mesh
from momentem.devices.agreement import agree, is_first, smallest, time_limit
from momentem.em import EMState
from momentem.pytrees import find_node
from momentem.run.health import warn
from momentem.run.in_memory import REMEDY, Memory
from momentem.run.loop import begin, complete, init
from momentem.run.plan import Here, Plan, Sink
from momentem.samplers import tuned_hmc_em, tuned_sghmc_em
from momentem.targets._minibatch import AnyTarget, StochasticTarget, check_target
from momentem.targets._starts import given_starts, starts
from momentem.targets.origin import Labels, label_data, small_data
from momentem.targets.parameters import parameter_forms
from momentem.targets.streams import close_window
from momentem.types import Kernel, Sampler
from momentem.xla.forks import check_fork

if TYPE_CHECKING:
    import xarray

__all__ = ["load", "resume", "sample"]

DRAWS, MOST_DRAWS = 1000, 8000  # if their number is left open
CHEAP_DRAWS = 2000  # of minibatches
WARMUP, MOST_WARMUP = 1000, 4000  # likewise; with minibatches more may be needed


def sample(
    target: AnyTarget,
    sampler: Sampler | None = None,
    num_draws: int | None = None,
    num_warmup: int | None = None,
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
    acceptance: float | None = None,
) -> "xarray.DataTree":
    """Draw from `target` by `sampler`: warm-up, in which it may learn, then draws with what it
    learnt frozen.

    Args:
        target: what is sampled.
        sampler: how, e.g. `momentem.hmc_em(target, ...)`. Default: one that tunes itself,
            `momentem.tuned_hmc_em(target)`, or `momentem.tuned_sghmc_em(target)` for a minibatch
            target. Wrap it in `momentem.forever` to learn on after warm-up.
        num_draws: draws per chain. Default: 1,000. The default sampler starts with 2,000 on a
            minibatch target, and doubles them, up to 8,000, until R-hat and ESS are good.
        num_warmup: warm-up iterations per chain, at most: a sampler that has settled ends them
            early. They are kept in the groups `warmup_posterior` and `warmup_sample_stats`.
            Default: 1,000, and 4,000 for the default sampler on a minibatch target.
        num_chains: chains, moved together.
        seed: a whole number; the same seed gives the same draws.
        positions: a start per chain, as a pytree like `initial` with a leading axis of chains.
            Default: overdispersed starts around `initial`.
        spread: half-width of those starts, on the unconstrained scale.
        progress: show progress: a bar in a terminal, a line in a notebook, and a line every half
            a minute where output is piped.
        dims: names of the dimensions of parameters, as in ArviZ. Default: the plates of a NumPyro
            model, and the dims of a PyMC model.
        coords: labels along dimensions, as in ArviZ. Default: those of a PyMC model.
        out: a new folder for a run log: draws go to the disk as they come, memory does not grow
            with their number, and `momentem.resume` goes on after a crash, to the same bits.
            Default: draws are kept in memory.
        thin: keep every `thin`-th draw, and iteration of warm-up. Divergences are counted at all.
        keep: names of the parameters whose draws are kept. For the others, the groups
            `posterior_mean` and `posterior_variance` have mean and variance per chain, and
            `posterior_ess` the effective sample size of all chains. Default: all are kept.
        mesh: devices to divide chains over, from `momentem.mesh()`, which has those of all
            processes. Default: one device.
        resume: go on with the run in `out` if there is one, as `momentem.resume` does, so that the
            same script starts a run and goes on with it after a crash.
        acceptance: acceptance rate that the default sampler on full data tunes its step size to,
            in (0, 1). Nearer 1, steps are shorter. Default: 0.8.

    Returns:
        A DataTree in ArviZ's schema, with an `em` group if anything was learnt, and with the data
        in `observed_data` and `constant_data` if they are at most a million numbers. With `out`,
        draws are read from the folder when they are used. Ctrl-C returns what was drawn so far.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), initial={"x": jnp.zeros(3)})
        >>> trace = mt.sample(target, mt.hmc(target, step_size=0.5, num_steps=5), num_draws=500)
        >>> dict(trace["posterior"]["x"].sizes)
        {'chain': 4, 'draw': 500, 'x_dim_0': 3}
    """
    check_fork()
    check_target(target)
    _check_seed(seed)
    moving = choose_sampler(target, sampler, acceptance)
    may_double = sampler is None
    if num_warmup is None:
        is_long = sampler is None and isinstance(target, StochasticTarget)
        num_warmup = MOST_WARMUP if is_long else WARMUP
    sizes = {"num_warmup": num_warmup, "num_chains": num_chains, "seed": seed, "thin": thin}
    plan = make_plan(target, num_draws, may_double, keep, dims, coords, **sizes)
    check_mesh(mesh, plan.num_chains)
    folder = check_out(out, resume)
    if folder is not None and resume and is_begun(folder):
        from momentem.run.log.resume import reopen

        sink, moving, plan = reopen(folder, target, moving, num_draws, mesh, plan)
    else:
        sink = open_sink(target, moving, plan, folder, positions, spread, mesh)
    return run_to_end(target, moving, plan, sink, progress, mesh)


def resume(
    folder: str | os.PathLike[str],
    target: AnyTarget,
    sampler: Sampler | None = None,
    num_draws: int | None = None,
    progress: bool = True,
    mesh: Mesh | None = None,
) -> "xarray.DataTree":
    """Go on with a run that was killed or interrupted, or that should have more draws.

    The draws are those of a run that was never interrupted, bit for bit. So model, data, sampler,
    versions and devices must be the same, and are checked.

    Args:
        folder: written by `sample(out=…)`.
        target: as given to `sample`. Models are functions, which are not stored.
        sampler: as given to `sample`.
        num_draws: draws per chain in all. Default: as many as were asked for.
        progress: show a progress bar.
        mesh: as given to `sample`.

    Returns:
        A DataTree, as `sample(out=…)` returns it.

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
    from momentem.run.log.resume import reopen

    check_fork()
    check_target(target)
    moving = choose_sampler(target, sampler)
    log, moving, plan = reopen(Path(folder), target, moving, num_draws, mesh)
    return run_to_end(target, moving, plan, log, progress, mesh)


def load(folder: str | os.PathLike[str]) -> "xarray.DataTree":
    """Return what a run log holds: while its run is going, after it, or after a crash. A file
    that `momentem export` or xarray has written is opened too.

    Arrays are read from the folder when they are used, and need no memory until then; `.load()`
    reads them all. A segment that is not whole is warned of, and the trace ends before it.

    Args:
        folder: written by `sample(out=…)`, or a file (.nc) or Zarr folder with a trace.

    Returns:
        A DataTree, as `sample` returns it.

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
    from momentem.run.exported import is_exported, open_exported
    from momentem.run.log.join import open_parts, stored_trace

    if is_exported(Path(folder)):
        return open_exported(Path(folder))
    runs, faults = open_parts(Path(folder))
    for fault in faults:
        warn(fault)
    return stored_trace(runs, is_cut=bool(faults))


def _check_seed(seed: Any) -> None:
    """Refuse a JAX key in place of a seed."""
    if isinstance(seed, jax.Array) and (
        seed.ndim or jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
    ):
        raise TypeError(
            "seed must be a whole number, got a JAX key; write seed=0, from which momentem makes "
            "its keys"
        )


def make_plan(
    target: AnyTarget,
    num_draws: int | None,
    may_double: bool,
    keep: Sequence[str] | None,
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
    **sizes: int,
) -> Plan:
    """Check what is asked for, and return it. `sizes` are num_warmup, num_chains, seed and thin."""
    most_draws = MOST_DRAWS if num_draws is None and may_double else 0
    if num_draws is None:
        is_cheap = may_double and isinstance(target, StochasticTarget)
        num_draws = CHEAP_DRAWS if is_cheap else DRAWS
    check_count(1, num_draws=num_draws, num_chains=sizes["num_chains"], thin=sizes["thin"])
    check_count(0, num_warmup=sizes["num_warmup"], seed=sizes["seed"])
    if sizes["seed"] >= 2**32:
        raise ValueError(f"seed must be below 2^32, got {sizes['seed']}")
    if sizes["thin"] > num_draws:
        raise ValueError(f"thin must be at most num_draws = {num_draws}, got {sizes['thin']}")
    forms = parameter_forms(target)
    _check_labels(forms, dims, coords)
    dims, coords = _add_labels(target, forms, dims, coords)
    kept = _check_keep(list(forms), keep)
    return Plan(
        num_draws=int(num_draws),
        **{name: int(size) for name, size in sizes.items()},
        keep=kept,
        streamed=tuple(name for name in forms if name not in kept),
        dims=dims,
        coords=coords,
        most_draws=max(most_draws, int(num_draws)),
    )


def _add_labels(
    target: AnyTarget,
    forms: Mapping[str, Any],
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
) -> tuple[Mapping[str, Sequence[str]] | None, Mapping[str, Any] | None]:
    """Return the labels that were given, and those of the target's model where none were."""
    if target.origin is None:
        return dims, coords
    labels: Labels = target.origin.labels
    known = {name: names for name, names in labels.dims.items() if name in forms}
    dims = known | dict(dims or {})
    used = {dim for names in dims.values() for dim in names}
    theirs = {name: values for name, values in labels.coords.items() if name in used}
    coords = theirs | dict(coords or {})
    try:
        _check_labels(forms, dims, coords)
    except ValueError as error:
        raise ValueError(f"{error}; the model names {known}, and coords {sorted(theirs)}") from None
    return dims or None, coords or None


def open_sink(
    target: AnyTarget,
    sampler: Sampler,
    plan: Plan,
    folder: Path | None,
    positions: Any,
    spread: float,
    mesh: Mesh | None,
    about: Mapping[str, Any] | None = None,
) -> Sink:
    """Start the chains, and return the sink that their draws go to. `about` goes to the manifest of
    a run log."""
    begun = time.perf_counter()
    starts_key, init_key, run_key, _ = begin(plan.seed)
    with time_limit():
        if positions is None:
            where = starts(starts_key, target, plan.num_chains, spread)
        else:
            where = given_starts(target, positions, plan.num_chains)
        state = jax.block_until_ready(init(sampler, target, init_key, where, mesh))
    _check_warmup(state, plan)
    here = Here(0, False, state, None)
    if folder is None:
        return Memory(plan, parameter_forms(target), here, begun)
    from momentem.run.log.fingerprint import fingerprints
    from momentem.run.log.write import create

    hashes = fingerprints(target, sampler, run_key, state)
    return create(folder, plan, parameter_forms(target), hashes, here, mesh, about)


def run_to_end(
    target: AnyTarget,
    sampler: Sampler,
    plan: Plan,
    sink: Sink,
    progress: bool,
    mesh: Mesh | None,
    is_judged: bool = True,
) -> "xarray.DataTree":
    """Run to the end of the plan, double the draws while they are too few and the plan allows it,
    warn of what is wrong in the end, and return the trace. The first process judges for all.
    R-hat and ESS are not judged for a run whose chains are not meant to be compared."""
    from momentem.run.diagnostics import convergence, is_short, warn_of_trouble

    found = None
    try:
        while True:
            failure = None
            try:
                sampler = complete(target, sampler, plan, sink, progress, mesh)
            except Exception as error:
                if not _is_worth_returning(sink, plan):
                    raise
                failure = error
            trace = _insist(sink.trace)
            try:
                _add_data(trace, target)
                found = convergence(trace) if is_judged and is_first() else None
            except (KeyboardInterrupt, Exception) as error:
                if jax.process_count() > 1:  # the others wait
                    raise
                is_judged = False
                warn(
                    "the draws are returned without a judgement, and R-hat and ESS are not known: "
                    f"{type(error).__name__} {error}"
                )
                break
            is_last = trace.attrs["is_interrupted"] or 2 * sink.num_draws > plan.most_draws
            if is_last or not agree(int(is_short(found))):
                break
            try:
                sink.reserve(2 * sink.num_draws)
            except MemoryError:
                warn(f"{2 * sink.num_draws} draws do not fit in memory, so the run ends: {REMEDY}")
                break
    finally:
        sink.close()
        close_window(target)
    if is_first():
        _insist(lambda: warn_of_trouble(trace, found, *sink.troubles, is_judged=is_judged))
    if failure is not None:
        said = str(failure).strip().splitlines()[-1:]  # before it: the traceback of a callback
        text = ": ".join([type(failure).__name__, *said])
        trace.attrs["error"] = text
        warn(
            f"the run ended at iteration {sink.here.iteration} with an error, and what was drawn "
            f"until then is returned: {text}"
        )
    return trace


def _insist(work: Callable[[], Any]) -> Any:
    """Do what ends a run a second time if Ctrl-C comes in between: the draws are there."""
    try:
        return work()
    except KeyboardInterrupt:
        if jax.process_count() > 1:  # the others wait
            raise
        return work()


def _add_data(trace: "xarray.DataTree", target: AnyTarget) -> None:
    """Add the model's data to the trace, if they are few, in ArviZ's groups."""
    from xarray import DataTree

    labels = Labels() if target.origin is None else target.origin.labels
    for group, arrays in small_data(target.origin).items():
        trace[group] = DataTree(label_data(arrays, labels))


def _is_worth_returning(sink: Sink, plan: Plan) -> bool:
    """Return whether draws would be lost by an error. A log has them, and several processes would
    not agree."""
    has_draws = sink.here.iteration > plan.num_warmup
    return has_draws and not sink.is_durable and jax.process_count() == 1


def choose_sampler(
    target: AnyTarget, sampler: Sampler | None, acceptance: float | None = None
) -> Sampler:
    """Return the sampler, or the default for the target."""
    is_stochastic = isinstance(target, StochasticTarget)
    if acceptance is not None and (sampler is not None or is_stochastic):
        raise ValueError(
            "acceptance is for the default sampler on full data alone, got "
            f"{'a minibatch target' if sampler is None else 'another sampler'}; leave it out, or "
            "use sampler=momentem.tuned_hmc_em(target, acceptance=…)"
        )
    if acceptance is not None:
        return tuned_hmc_em(target, acceptance=acceptance)
    if sampler is None:
        return tuned_sghmc_em(target) if is_stochastic else tuned_hmc_em(target)
    remedy = "e.g. momentem.hmc(target, …), momentem.nuts(target), or fixed(kernel, learnt)"
    if isinstance(sampler, Kernel):
        remedy = (
            "a kernel leaves its mass and step size open: give momentem.nuts(target) for "
            "BlackJAX's NUTS, or momentem.fixed(kernel, momentem.Learnt(mass, step_size))"
        )
    if type(sampler).__module__.startswith("blackjax"):
        remedy = (
            "BlackJAX's NUTS, tuned, is momentem.nuts(target); for another of its algorithms: "
            "momentem.fixed(momentem.from_blackjax(algorithm, target), momentem.Learnt(mass, "
            "step_size))"
        )
    check_instance(Sampler, remedy, sampler=sampler)
    return sampler


def check_out(out: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    """Return the folder of a run log, or None; refuse what is no path."""
    if out is None:
        if resume:
            raise ValueError("resume needs the folder of a run, got out=None; name one")
        return None
    if not isinstance(out, str | os.PathLike):
        raise TypeError(f"out must be a path, got {out!r} of type {type(out).__name__}")
    from momentem.run.log.resume import check_processes

    check_processes(Path(out))
    return Path(out)


def is_begun(folder: Path) -> bool:
    """Return whether all processes have a run to go on with. One that was killed before its
    manifest was written has none: what it left is cleared."""
    from momentem.run.log.folder import MANIFEST, forget_unbegun, part_of

    part = part_of(folder)
    if smallest((part / MANIFEST).is_file()):
        return True
    forget_unbegun(part)
    return False


def _check_warmup(state: Any, plan: Plan) -> None:
    """Refuse a warm-up in which nothing can be learnt, before it is run."""
    em = find_node(EMState, state)
    if em is None or not plan.num_warmup:
        return
    wanted = -(-int(em.e_step.size) // plan.num_chains)
    if plan.num_warmup < wanted:
        raise ValueError(
            f"num_warmup must be at least {wanted}, because the first M-step needs "
            f"{int(em.e_step.size)} draws from {plan.num_chains} chains, got {plan.num_warmup}; "
            "raise it, give the sampler a shorter e_step, or a diagonal mass, which needs fewer"
        )


def _check_keep(names: list[str], keep: Sequence[str] | None) -> tuple[str, ...]:
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
    """Refuse dims and coords that the result could not be labelled with, before anything is
    drawn."""
    from arviz_base import dict_to_dataset

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

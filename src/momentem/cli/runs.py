"""`momentem ls`, `show` and `export`: runs on disk.

momentem ls runs                  every run below the folder `runs`
momentem show runs/first          its summary, and whether it can be trusted
momentem export runs/first first.nc
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

from momentem.run.diagnostics import summary
from momentem.run.exported import export
from momentem.run.health import SamplingWarning
from momentem.run.log.folder import MANIFEST, PART
from momentem.run.verdict import judge
from momentem.sampling import load

__all__ = ["add_parser", "find_runs", "load_quietly"]

DEPTH = 3  # folders below the one that is listed
ROWS = 50  # of a summary


def add_parser(commands: Any) -> None:
    """Add the commands to those of `momentem`."""
    listing = commands.add_parser("ls", help="list the runs below a folder")
    listing.add_argument("folder", nargs="?", default=".", help="default: this folder")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="print a run's summary, and whether to trust it")
    show.add_argument("folder", metavar="RUN", help="written by sample(out=…), or a .nc file")
    show.add_argument("--rows", type=int, default=ROWS, help=f"of the summary, at most ({ROWS})")
    show.set_defaults(run=_show)
    out = commands.add_parser("export", help="write a run to NetCDF, Zarr or Parquet")
    out.add_argument("folder", metavar="RUN", help="written by sample(out=…)")
    out.add_argument("file", metavar="FILE", help="a new file: out.nc, out.zarr or out.parquet")
    out.set_defaults(run=_export)


def load_quietly(path: Path) -> Any:
    """Return the trace at a path. A segment that is not whole is no news while a run is going."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return load(path)


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs below a folder, and itself if it is one."""
    if not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder with runs, got {folder}")
    found = {
        path.parent.parent if path.parent.name.startswith(PART) else path.parent
        for depth in range(DEPTH + 1)
        for path in folder.glob("*/" * depth + MANIFEST)
    }
    return sorted(found)


def _list(given: argparse.Namespace) -> None:
    runs = find_runs(Path(given.folder))
    if not runs:
        print(f"no runs in {given.folder}; momentem.sample(target, out='run') writes one")
        return
    rows = [["run", "state", "chains", "draws", "parameters", "divergences", "time"]]
    rows += [[str(run), *_row(run)] for run in runs]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip())


def _row(run: Path) -> list[str]:
    try:
        trace = load_quietly(run)
    except (ValueError, OSError) as error:
        return [f"cannot be read: {error}"]
    group = "posterior" if "posterior" in trace.children else "warmup_posterior"
    state = "unfinished" if trace.attrs.get("is_interrupted") else "whole"
    if group not in trace.children:
        return ["begun", "", "0"]
    sizes = trace[group].sizes
    numbers = sum(
        array.size // (sizes["chain"] * sizes["draw"]) for array in trace[group].data_vars.values()
    )
    draws = sizes["draw"] if group == "posterior" else 0
    return [
        state if draws else "in warm-up",
        str(sizes["chain"]),
        f"{draws:,}",
        f"{numbers:,}",
        str(trace.attrs.get("num_divergences", "")),
        f"{trace.attrs.get('sampling_time', 0):.0f} s",
    ]


def _show(given: argparse.Namespace) -> None:
    trace = load_quietly(Path(given.folder))
    attrs = trace.attrs
    if "posterior" not in trace.children:
        warm = (
            trace["warmup_posterior"].sizes["draw"] if "warmup_posterior" in trace.children else 0
        )
        print(f"{given.folder}: no draws yet, {warm} iterations of warm-up")
        return
    sizes = trace["posterior"].sizes
    warm = trace["warmup_posterior"].sizes["draw"] if "warmup_posterior" in trace.children else 0
    print(
        f"{given.folder}: {sizes['chain']} chains of {sizes['draw']:,} draws after {warm:,} of "
        f"warm-up, seed {attrs.get('seed')}, {attrs.get('sampling_time', 0):.1f} s"
    )
    table = summary(_first_scalars(trace, given.rows), round_to="none")
    print(table.head(given.rows).to_string(float_format="%.4g"))
    verdict = judge(trace)
    print(verdict.text())
    for trouble in verdict.troubles:
        print(f"- {trouble}")


def _first_scalars(trace: Any, number: int) -> Any:
    """Return a trace with few scalars: a summary of a million would take hours."""
    from xarray import DataTree

    posterior, left, kept = trace["posterior"].to_dataset(), number, {}
    for name, array in posterior.data_vars.items():
        inner = array.dims[2:]
        for dim in reversed(inner):
            others = array.size // (array.sizes["chain"] * array.sizes["draw"] * array.sizes[dim])
            array = array.isel({dim: slice(max(1, -(-left // max(1, others))))})
        kept[f"{name}"] = array.rename({dim: f"{name}:{dim}" for dim in inner})
        left -= array.size // (array.sizes["chain"] * array.sizes["draw"])
        if left <= 0:
            break
    import xarray

    return DataTree.from_dict({"posterior": xarray.Dataset(kept)})


def _export(given: argparse.Namespace) -> None:
    export(load_quietly(Path(given.folder)), Path(given.file))
    print(given.file)

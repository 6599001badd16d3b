"""`momentem sample` and `momentem resume`: run a model that is in a Python file.

momentem sample model.py --out runs/first
momentem resume runs/first model.py --draws 5000

The file defines `target`, and may define `sampler`. JAX computes in 64 bits unless it sets
`jax_enable_x64` itself.
"""

import argparse
import runpy
from pathlib import Path
from typing import Any

from momentem.run.verdict import judge
from momentem.sampling import resume, sample

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the commands to those of `momentem`."""
    start = commands.add_parser("sample", help="sample the target of a Python file")
    start.add_argument("file", metavar="MODEL", help="a Python file that defines `target`")
    start.add_argument("--out", metavar="RUN", required=True, help="a new folder for the run")
    start.add_argument("--draws", type=int, help="per chain (1,000, and more until they suffice)")
    start.add_argument("--warmup", type=int, default=1000, help="at most (1000)")
    start.add_argument("--chains", type=int, default=4, help="(4)")
    start.add_argument("--thin", type=int, default=1, help="keep every THIN-th draw (1)")
    start.add_argument("--seed", type=int, default=0, help="(0)")
    start.set_defaults(run=_sample)
    more = commands.add_parser("resume", help="go on with a run that was killed or is too short")
    more.add_argument("folder", metavar="RUN", help="written by `momentem sample` or sample(out=…)")
    more.add_argument("file", metavar="MODEL", help="the Python file that defines its `target`")
    more.add_argument("--draws", type=int, help="per chain, in all (as many as were asked for)")
    more.set_defaults(run=_resume)


def _read_model(file: str) -> tuple[Any, Any]:
    """Return the target and the sampler that a Python file defines."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"MODEL must be a Python file, got {file}")
    found = runpy.run_path(file, run_name="momentem.model")
    if "target" not in found:
        raise ValueError(
            f"{file} must define `target`, e.g. target = momentem.from_numpyro(model, x, y=y)"
        )
    return found["target"], found.get("sampler")


def _sample(given: argparse.Namespace) -> None:
    target, sampler = _read_model(given.file)
    sizes = {"num_warmup": given.warmup, "num_chains": given.chains, "thin": given.thin}
    trace = sample(target, sampler, given.draws, seed=given.seed, out=given.out, **sizes)
    _say(trace, given.out)


def _resume(given: argparse.Namespace) -> None:
    target, sampler = _read_model(given.file)
    _say(resume(given.folder, target, sampler, given.draws), given.folder)


def _say(trace: Any, folder: str) -> None:
    print(judge(trace).text())
    print(f"momentem show {folder}")

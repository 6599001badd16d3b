"""Numerical faults by sampler: a NaN or an infinity in value or gradient, met anywhere in a run.

    python benchmarks/faults.py                    all samplers
    python benchmarks/faults.py default nuts       some of them

start       everywhere: the run is refused, and the parameter is named
one start   where one chain is told to start: likewise
posterior   in a part of the posterior: divergences are counted in warm-up, and warned of in draws
way in      next to the start of one chain: counted, and the chain is named
one chain   between the start of one chain and the posterior: counted, and the chain is named

A fault is silent if nothing tells of it, and draws differ from those of a run without it.

What is bad is data (`injections`), so one compiled program serves all faults of a sampler.
"""

import re
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import injections
import kills
import momentem as mt

SIZES: dict[str, Any] = {"num_draws": 200, "num_warmup": 400, "num_chains": 3, "progress": False}
FAR = np.array([[0.0, 0.0], [40.0, 0.0], [0.1, 0.0]])


def hessian(position):
    return 1.01 * jnp.eye(len(position), dtype=position.dtype)


def of_kernel(kernel):
    return lambda t: mt.fixed(kernel(t), mt.Learnt(mt.diagonal_mass(jnp.ones(2)), jnp.array(0.2)))


# name -> (how it is made from a target, the batch size of the target)
SAMPLERS = {
    "default": (lambda t: None, None),
    "hmc": (lambda t: mt.hmc(t, 0.5, 4), None),
    "hmc_em": (lambda t: mt.hmc_em(t, 0.5, 4, e_step=mt.e_steps.constant(100)), None),
    "nuts": (lambda t: mt.nuts(t), None),
    "nphmc": (lambda t: mt.nphmc(t, 0.3, 4), None),
    "rhmc": (lambda t: mt.rhmc(t, mt.metrics.metric(hessian), 0.5, 4), None),
    "default, minibatches": (lambda t: None, 10),
    "sghmc": (lambda t: mt.sghmc(t, 0.2, 5), 10),
    "sghmc_em": (lambda t: mt.sghmc_em(t, 5), 10),
    "sgnht": (lambda t: mt.sgnht(t, 0.2, 5), 10),
    "sgnht_em": (lambda t: mt.sgnht_em(t, 5), 10),
    "sg_nphmc": (lambda t: mt.sg_nphmc(t, 0.2, 5), 10),
    "sg_nphmc_em": (lambda t: mt.sg_nphmc_em(t, 5), 10),
    "ccadl": (of_kernel(lambda t: mt.kernels.ccadl(t, 5)), 10),
    "matrix_sgnht": (of_kernel(lambda t: mt.kernels.matrix_sgnht(t, 5)), 10),
    "sgr_nphmc": (lambda t: mt.sgr_nphmc(t, mt.metrics.metric(hessian), 0.2, 5), 10),
}

ONE_CHAIN = r"chain 1|way in .*\[0, [1-9]\d*, 0\]"
REFUSED = "^error: a start must have .*x = "
PLACES = {  # where it is bad, where chains start, and the pattern of an answer that tells
    "start": ((-1e9, 1e9), None, REFUSED),
    "one start": ((35.0, 45.0), FAR, REFUSED),
    "posterior": ((0.5, 1e9), None, r"the first in chain \d at iteration \d+, near x"),
    "way in": ((38.0, 39.9), FAR, ONE_CHAIN),
    "one chain": ((4.0, 36.0), FAR, ONE_CHAIN),
}


def run(sampler, where, code, place):
    """Return what a run answers to a fault, and the hash of its draws."""
    make, batch_size = SAMPLERS[sampler]
    band, positions, _ = PLACES[place]
    target = injections.target(where, code, band, batch_size)
    moving = make(target)
    if place == "start" and moving is None:
        moving = mt.hmc(target, 0.5, 4)  # starts are refused before a sampler is asked
    given = None if positions is None else {"x": positions}
    told, trace = injections.answer_and_trace(
        lambda: mt.sample(target, moving, **SIZES, positions=given, spread=0.1)
    )
    if trace is None:
        return told, None
    data = [group for group in trace.children if group.endswith("_data")]  # they hold the fault
    return told, kills.sha(trace.drop_nodes(data))


def trials(sampler):
    """Yield every fault of a sampler, what was answered, and whether it tells, had no effect, or
    is silent."""
    for place, (_, positions, pattern) in PLACES.items():
        told, good = run(sampler, "value", 0, place)
        if positions is None:  # some steps are too long for a start that is far away
            yield f"{sampler}, nothing bad", told, "SPURIOUS" if told else "nothing told"
        for where in ("value", "gradient"):
            for code in (1, 2, 3):
                told, found = run(sampler, where, code, place)
                kind = "told" if re.search(pattern, told) else "SILENT"
                if not told and found == good:
                    kind = "no effect"
                yield f"{sampler}, {place}, {where} {injections.NAMES[code]}", told, kind


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    kinds = set()
    for sampler in sys.argv[1:] or SAMPLERS:
        for name, told, kind in trials(sampler):
            print(kind, "|", name, "|", told[:200], flush=True)
            kinds.add(kind)
    sys.exit(bool(kinds & {"SILENT", "SPURIOUS"}))

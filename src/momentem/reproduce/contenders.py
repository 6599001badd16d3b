"""The paper's ten samplers on one problem, and the same with M-steps that learn.

Dynamics are the exact ones (docs/methods); the rows that carry the paper's names learn as the paper
prints it: inverse second moment of the momenta, E-steps that grow by the printed interval, masses
that start at the identity.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from momentem import kernels
from momentem.em import e_steps, m_steps
from momentem.em.schedules import polynomial
from momentem.fixed_points import iterations
from momentem.masses import DenseMass
from momentem.reproduce.problems import Problem
from momentem.samplers import (
    hmc,
    hmc_em,
    rhmc,
    self_tuned,
    sg_nphmc,
    sg_nphmc_em,
    sghmc,
    sghmc_em,
    sgnht,
    sgnht_em,
    sgr_nphmc,
)
from momentem.types import Sampler

__all__ = ["PAPERS", "PLAIN", "TUNED", "Settings", "contenders"]

PAPERS = (
    "HMC",
    "HMC-EM",
    "RHMC",
    "SGHMC",
    "SGHMC-EM",
    "SG-NPHMC",
    "SG-NPHMC-EM",
    "SGR-NPHMC",
    "SGNHT",
    "SGNHT-EM",
)
PLAIN = {"HMC-EM": "HMC", "SGHMC-EM": "SGHMC", "SG-NPHMC-EM": "SG-NPHMC", "SGNHT-EM": "SGNHT"}
TUNED = {name: f"{name}, {'fisher' if name == 'HMC-EM' else 'noise'}" for name in PLAIN}


class Settings(NamedTuple):
    """What the paper says, or what was chosen where it does not."""

    num_steps: int = 10
    step_size: float = 1e-2  # of HMC
    stochastic_step_size: float = 1e-4
    whitened_step_size: float = 0.15  # of RHMC, and of HMC-EM with a mass that whitens
    anchored_step_size: float = 0.05  # of SGR-NPHMC, in whitened time
    friction: dict[str, float] = {"SGHMC": 10.0, "SGNHT": 1.0, "SG-NPHMC": 1.0, "SGR-NPHMC": 0.01}  # noqa: RUF012
    fixed_points: int = 1
    e_step: int = 300  # S_count
    nose_e_step: int = 200  # of SG-NPHMC-EM


def _identity(problem: Problem) -> DenseMass:
    return DenseMass.from_precision(jnp.diag(jnp.ones_like(problem.target.initial)))


def contenders(problem: Problem, settings: Settings) -> dict[str, Sampler]:
    """Samplers by name: the paper's ten, then those that learn by an M-step of ours."""
    target, noisy, metric = problem.target, problem.noisy, problem.metric
    L, eps, small = settings.num_steps, settings.step_size, settings.stochastic_step_size
    A = settings.friction
    implicit = iterations(settings.fixed_points)
    identity = _identity(problem)
    printed = m_steps.momentum_printed()

    def learning(size: int, test: Any = None) -> dict[str, Any]:
        return {
            "m_step": printed,
            "e_step": e_steps.growing_printed(size, test=test),
            "averaging": polynomial(),
            "mass": identity,
        }

    def em(kernel: Any, friction: float, **options: Any) -> Sampler:
        return self_tuned(kernel, noisy, friction, step_size=small, **options)

    nose = learning(settings.nose_e_step) | {"m_step": m_steps.with_thermostat(printed)}
    heated = learning(settings.e_step, e_steps.thermostatted())
    anchored = settings.anchored_step_size
    made = {
        "HMC": hmc(target, eps, L, identity),
        "HMC-EM": hmc_em(target, eps, L, **learning(settings.e_step)),
        "RHMC": rhmc(target, metric, settings.whitened_step_size, L, implicit),
        "SGHMC": sghmc(noisy, small, L, A["SGHMC"], identity),
        "SGHMC-EM": em(
            kernels.sghmc(noisy, L, A["SGHMC"]), A["SGHMC"], **learning(settings.e_step)
        ),
        "SG-NPHMC": sg_nphmc(noisy, small, L, A["SG-NPHMC"], identity),
        "SG-NPHMC-EM": em(kernels.sg_nphmc(noisy, L, A["SG-NPHMC"]), A["SG-NPHMC"], **nose),
        "SGR-NPHMC": sgr_nphmc(noisy, metric, anchored, L, A["SGR-NPHMC"], fixed_point=implicit),
        "SGNHT": sgnht(noisy, small, L, A["SGNHT"], identity),
        "SGNHT-EM": em(kernels.sgnht(noisy, L, A["SGNHT"]), A["SGNHT"], **heated),
    }
    heavy = DenseMass.from_precision(
        1e-4 * identity.precision
    )  # smaller steps than HMC's, at first
    tuned = {
        "HMC-EM": hmc_em(target, settings.whitened_step_size, L, heavy),
        "SGHMC-EM": sghmc_em(noisy, L),
        "SG-NPHMC-EM": sg_nphmc_em(noisy, L),
        "SGNHT-EM": sgnht_em(noisy, L),
    }
    return made | {TUNED[name]: sampler for name, sampler in tuned.items()}

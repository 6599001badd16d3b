"""The paper's ten samplers on one problem, and the same samplers with our M-steps.

All use our exact dynamics (docs/methods). Samplers with the paper's names learn as the paper prints
it: from the inverse second moment of the momenta, with E-steps that grow by the printed interval,
and with masses that start at the identity. They share step size and friction with the sampler that
they improve.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from momentem import kernels
from momentem.em import e_steps, m_steps
from momentem.em.schedules import latest, polynomial
from momentem.masses import DenseMass
from momentem.reproduce.problems import Problem
from momentem.riemannian.fixed_points import iterations
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

__all__ = ["NAMES", "PAPERS", "PLAIN", "TUNED", "Settings", "contender", "num_gradients"]

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
NAMES = (*PAPERS, *TUNED.values())


def num_gradients(name: str) -> int:
    """Return the number of gradients in a step: of one minibatch each, or of all data."""
    return 2 if name.startswith(("SG-NPHMC", "SGR-NPHMC")) else 1


class Settings(NamedTuple):
    """Settings of the samplers: the paper's, or our choice where the paper gives none."""

    step_sizes: dict[str, float]  # those of Riemannian samplers are in whitened time
    frictions: dict[str, float]
    num_steps: int = 10
    fixed_points: int = 1
    e_step: int = 300  # S_count
    nose_e_step: int = 200  # of SG-NPHMC-EM
    whitened_step_size: float = 0.157  # of HMC-EM with a whitening mass: pi / 2 in ten steps

    def set_sampler(self, name: str, step_size: float, friction: float) -> "Settings":
        """Return the settings with another step size and friction for one sampler."""
        return self._replace(
            step_sizes=self.step_sizes | {name: step_size},
            frictions=self.frictions | {name: friction},
        )


def contender(name: str, problem: Problem, settings: Settings) -> Sampler:
    """Return the sampler of one of NAMES on a problem."""
    target, noisy, metric = problem.target, problem.noisy, problem.metric
    L, eps, A = settings.num_steps, settings.step_sizes, settings.frictions
    implicit = iterations(settings.fixed_points)
    identity = DenseMass.from_inverse_mass(jnp.diag(jnp.ones_like(target.initial)))
    heavy = DenseMass.from_inverse_mass(1e-4 * identity.inverse_mass)  # small steps at first
    printed = m_steps.momentum_printed()

    def learning(size: int, test: Any = None) -> dict[str, Any]:
        return {
            "m_step": printed,
            "e_step": e_steps.growing_printed(size, test=test),
            "averaging": polynomial(),
            "mass": identity,
        }

    def em(kernel: Any, plain: str, **options: Any) -> Sampler:
        return self_tuned(kernel(noisy, L, A[plain]), step_size=eps[plain], **options)

    usual = learning(settings.e_step)
    nose = learning(settings.nose_e_step) | {"m_step": m_steps.with_thermostat(printed)}
    heated = learning(settings.e_step, e_steps.thermostatted())
    makers = {
        "HMC": lambda: hmc(target, eps["HMC"], L, identity),
        "HMC-EM": lambda: hmc_em(target, eps["HMC"], L, **usual),
        "HMC-EM, fisher": lambda: hmc_em(
            target,
            settings.whitened_step_size,
            L,
            heavy,
            e_step=e_steps.geometric(100),
            averaging=latest(),
        ),
        "RHMC": lambda: rhmc(target, metric, eps["RHMC"], L, implicit),
        "SGHMC": lambda: sghmc(noisy, eps["SGHMC"], L, A["SGHMC"], identity),
        "SGHMC-EM": lambda: em(kernels.sghmc, "SGHMC", **usual),
        "SGHMC-EM, noise": lambda: sghmc_em(noisy, L),
        "SG-NPHMC": lambda: sg_nphmc(noisy, eps["SG-NPHMC"], L, A["SG-NPHMC"], identity),
        "SG-NPHMC-EM": lambda: em(kernels.sg_nphmc, "SG-NPHMC", **nose),
        "SG-NPHMC-EM, noise": lambda: sg_nphmc_em(noisy, L),
        "SGR-NPHMC": lambda: sgr_nphmc(
            noisy, metric, eps["SGR-NPHMC"], L, A["SGR-NPHMC"], fixed_point=implicit
        ),
        "SGNHT": lambda: sgnht(noisy, eps["SGNHT"], L, A["SGNHT"], identity),
        "SGNHT-EM": lambda: em(kernels.sgnht, "SGNHT", **heated),
        "SGNHT-EM, noise": lambda: sgnht_em(noisy, L),
    }
    return makers[name]()

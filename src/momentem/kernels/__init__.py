"""Kernels: how one chain moves, given the mass and whatever else EM learns."""

from momentem.kernels._ccadl import ccadl
from momentem.kernels._hmc import hmc
from momentem.kernels._matrix_sgnht import matrix_sgnht
from momentem.kernels._nphmc import nphmc
from momentem.kernels._rotating import rotating_hmc
from momentem.kernels._sg_nphmc import sg_nphmc
from momentem.kernels._sghmc import sghmc
from momentem.kernels._sgnht import sgnht
from momentem.kernels.printed import sg_nphmc_printed, sghmc_printed, sgnht_printed
from momentem.kernels.wrappers import following, refreshed

__all__ = [
    "ccadl",
    "following",
    "hmc",
    "matrix_sgnht",
    "nphmc",
    "refreshed",
    "rotating_hmc",
    "sg_nphmc",
    "sg_nphmc_printed",
    "sghmc",
    "sghmc_printed",
    "sgnht",
    "sgnht_printed",
]

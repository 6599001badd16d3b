"""How one chain moves."""

from momentem.kernels.following import following
from momentem.kernels.hmc import hmc
from momentem.kernels.nphmc import nphmc
from momentem.kernels.printed import sg_nphmc_printed, sghmc_printed, sgnht_printed
from momentem.kernels.refreshed import refreshed
from momentem.kernels.rhmc import rhmc
from momentem.kernels.rotating import rotating_hmc
from momentem.kernels.sg_nphmc import sg_nphmc
from momentem.kernels.sghmc import sghmc
from momentem.kernels.sgnht import ccadl, matrix_sgnht, sgnht
from momentem.kernels.sgr_nphmc import sgr_nphmc

__all__ = [
    "ccadl",
    "following",
    "hmc",
    "matrix_sgnht",
    "nphmc",
    "refreshed",
    "rhmc",
    "rotating_hmc",
    "sg_nphmc",
    "sg_nphmc_printed",
    "sghmc",
    "sghmc_printed",
    "sgnht",
    "sgnht_printed",
    "sgr_nphmc",
]

"""How one chain moves."""

from momentem.kernels.hmc import hmc
from momentem.kernels.sghmc import sghmc
from momentem.kernels.sgnht import ccadl, matrix_sgnht, sgnht

__all__ = ["ccadl", "hmc", "matrix_sgnht", "sghmc", "sgnht"]

"""How one chain moves."""

from momentem.kernels.hmc import hmc

__all__ = ["hmc"]

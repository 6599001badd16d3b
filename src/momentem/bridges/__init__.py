"""Bridges to other libraries: targets from NumPyro and PyMC models, kernels from BlackJAX.

PyMC and BlackJAX are imported only when they are used.
"""

from momentem.bridges.blackjax import from_blackjax
from momentem.bridges.numpyro import from_numpyro
from momentem.bridges.pymc import from_pymc, pymc_labels

__all__ = [
    "from_blackjax",
    "from_numpyro",
    "from_pymc",
    "pymc_labels",
]

"""Bridges to other libraries: targets from NumPyro and PyMC models, kernels from BlackJAX, and what
a run has learnt for both.

PyMC and BlackJAX are imported only when they are used.
"""

from momentem.bridges._nuts import nuts
from momentem.bridges.blackjax import from_blackjax
from momentem.bridges.exports import to_blackjax, to_numpyro
from momentem.bridges.numpyro import from_numpyro
from momentem.bridges.pymc import from_pymc, pymc_labels

__all__ = [
    "from_blackjax",
    "from_numpyro",
    "from_pymc",
    "nuts",
    "pymc_labels",
    "to_blackjax",
    "to_numpyro",
]

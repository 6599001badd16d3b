"""To and from the tools people already use: models and kernels in, masses out and in again.

Nothing here imports PyMC or BlackJAX before it is used.
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

"""Targets: the posteriors that samplers draw from."""

from momentem.targets._dataset import dataset
from momentem.targets._density import Target, density
from momentem.targets._minibatch import NoisyGradient, StochasticTarget, blocks, with_replacement
from momentem.targets._starts import starts
from momentem.targets.control_variates import control_variate, mode
from momentem.targets.streams import stream

__all__ = [
    "NoisyGradient",
    "StochasticTarget",
    "Target",
    "blocks",
    "control_variate",
    "dataset",
    "density",
    "mode",
    "starts",
    "stream",
    "with_replacement",
]

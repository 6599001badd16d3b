"""What is sampled."""

from momentem.targets.dataset import dataset
from momentem.targets.density import Target, density
from momentem.targets.starts import starts

__all__ = ["Target", "dataset", "density", "starts"]

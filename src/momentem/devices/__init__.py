"""Several devices and several processes: the placement of arrays, and agreement of processes."""

from momentem.devices._mesh import mesh

__all__ = ["mesh"]

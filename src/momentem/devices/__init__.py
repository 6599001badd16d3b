"""Several devices, several processes: where arrays are, and what processes agree on."""

from momentem.devices._mesh import mesh

__all__ = ["mesh"]

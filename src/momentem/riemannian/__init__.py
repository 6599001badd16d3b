"""Riemannian kernels: the mass is a metric, a function of the position."""

from momentem.riemannian import fixed_points, metrics
from momentem.riemannian._rhmc import rhmc
from momentem.riemannian._sgr_nphmc import sgr_nphmc

__all__ = ["fixed_points", "metrics", "rhmc", "sgr_nphmc"]

"""Running a sampler: the front door, its progress, and what to make of the result."""

from momentem.run.diagnostics import SamplingWarning, summary
from momentem.run.sample import sample

__all__ = ["SamplingWarning", "sample", "summary"]

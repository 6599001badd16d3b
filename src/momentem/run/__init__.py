"""Running a sampler: the front door, its progress, the run log, and what to make of the result."""

from momentem.run.diagnostics import SamplingWarning, summary
from momentem.run.logs import load
from momentem.run.sample import resume, sample

__all__ = ["SamplingWarning", "load", "resume", "sample", "summary"]

"""Warm-up that tunes itself: step size, path length, and when to stop."""

from momentem.tuning.warmup import tuned_em

__all__ = ["tuned_em"]

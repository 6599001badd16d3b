"""Warm-up that tunes itself: step size, path length, and when to stop."""

from momentem.tuning.minibatches import tuned_by_minibatches
from momentem.tuning.warmup import tuned_em

__all__ = ["tuned_by_minibatches", "tuned_em"]

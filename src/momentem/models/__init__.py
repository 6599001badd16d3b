"""Models whose posteriors come ready to sample."""

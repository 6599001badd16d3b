"""Runs: the loop from a sampler to a trace, its warnings, and its log on disk."""

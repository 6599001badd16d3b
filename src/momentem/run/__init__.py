"""From a sampler to a trace."""

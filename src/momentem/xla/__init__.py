"""Work-arounds for weaknesses of XLA. Each can be deleted when XLA improves."""

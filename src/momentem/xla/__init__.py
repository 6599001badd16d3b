"""Work-arounds for what XLA does not do well yet. Each can be deleted when XLA learns."""

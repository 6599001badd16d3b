"""The paper's tables, made again by one command each (docs/reproduction.md)."""

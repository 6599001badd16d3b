"""Reproduction of the paper's tables, with one command each (docs/reproduction.md)."""

"""The paper's tables, made again by one command each (docs/reproduction.md)."""

from momentem.reproduce.tables import TABLES, reproduce

__all__ = ["TABLES", "reproduce"]

"""The command line."""

from momentem.cli._main import main

__all__ = ["main"]

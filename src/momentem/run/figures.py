"""Matplotlib figures that are written to files, without pyplot and its global state."""

from pathlib import Path
from typing import Any

__all__ = ["new_figure", "saved"]


def new_figure(**options: Any) -> Any:
    """Return a new figure with room for its labels."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need Matplotlib, which cannot be imported; install it with "
            "pip install 'momentem[plots]'"
        ) from error
    return Figure(layout="constrained", **options)


def saved(figure: Any, path: Path) -> Path:
    """Write a figure, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path

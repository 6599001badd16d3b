"""Figures that draw to files alone: Matplotlib's own, without pyplot and its global state."""

from pathlib import Path
from typing import Any

__all__ = ["new_figure", "saved"]


def new_figure(**options: Any) -> Any:
    """A figure with room for its labels."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib; install momentem[plots]") from error
    return Figure(layout="constrained", **options)


def saved(figure: Any, path: Path) -> Path:
    """Writes a figure, and says where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path

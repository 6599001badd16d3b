"""Tables that can be shown on the screen and written as Markdown and CSV."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

__all__ = ["Report", "with_error"]


class Report(NamedTuple):
    """A table: rows of text under a header, and notes."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]

    def show(self) -> None:
        """Print the table."""
        table = Table(title=self.title, caption="\n".join(self.notes), caption_justify="left")
        for i, column in enumerate(self.header):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        Console(width=200).print(table)

    def write(self, folder: Path) -> None:
        """Write NAME.md and NAME.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([self.header, *self.rows])
        cells = [self.header, ["---"] * len(self.header), *self.rows]
        lines = [f"# {self.title}", "", *["| " + " | ".join(row) + " |" for row in cells]]
        lines += ["", *[f"- {note}" for note in self.notes], ""]
        (folder / f"{self.name}.md").write_text("\n".join(lines), encoding="utf-8")


def with_error(values: np.ndarray) -> str:
    """Return the mean with its standard error, as text."""
    if len(values) < 2:
        return f"{values.mean():.3g}"
    return f"{values.mean():.3g} ± {values.std(ddof=1) / np.sqrt(len(values)):.1g}"

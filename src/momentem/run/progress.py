"""A progress bar, shown only in a terminal."""

__all__ = ["Progress"]


class Progress:
    """Progress bar that counts iterations and divergences on a line of the terminal."""

    def __init__(self, total: int, is_wanted: bool):
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[divergences]} divergences"),
            console=console,
            disable=not (is_wanted and console.is_terminal),
            refresh_per_second=2,  # a refresh takes a millisecond, a chunk a quarter of a second
        )
        self._task = self._bar.add_task("compiling", total=total, divergences=0)
        self._divergences = 0

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.stop()

    def advance(self, count: int, label: str, divergences: int) -> None:
        """Advance by `count` iterations of the phase `label`."""
        self._divergences += divergences
        self._bar.update(
            self._task, advance=count, description=label, divergences=self._divergences
        )

"""The progress of a run: a bar in a terminal, a line that is renewed in a notebook, and a line now
and then where output is piped.

What is left is estimated from the speed of the present phase. In warm-up it is an upper bound,
because a sampler that has settled ends warm-up early.
"""

import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from momentem.run.so_far import SoFar

__all__ = ["Progress", "describe_progress"]

NOTEBOOK_SECONDS = 0.5  # between renewals
PIPE_SECONDS = 30.0  # between lines


class Progress:
    """Progress of iterations and divergences, shown where there is someone to see it."""

    def __init__(self, total: int, is_wanted: bool):
        self._total, self._done, self._divergences = total, 0, 0
        self._label, self._begun, self._before = "compiling", time.monotonic(), 0
        self._so_far, self._acceptance = SoFar(), np.nan
        self._display = _choose_display(total) if is_wanted else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *details: object) -> None:
        if self._display is not None:
            self._display.close(self._text())

    def advance(self, count: int, label: str, divergences: int) -> None:
        """Advance by `count` iterations of the phase `label`."""
        if label != self._label:
            # the first chunk of a phase includes its compilation, which says nothing of its speed
            self._label, self._begun = label, time.monotonic()
            self._before = self._done + count
        self._done += count
        self._divergences += divergences
        if self._display is not None:
            self._display.show(self._text(), self._done)

    def observe(
        self, parameters: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> None:
        """Look at draws (draw, chain, …) and statistics, if someone sees it."""
        if self._display is None:
            return
        self._so_far.extend(parameters)
        if "acceptance_rate" in stats and stats["acceptance_rate"].size:
            self._acceptance = float(stats["acceptance_rate"].mean())

    def _text(self) -> str:
        speed = (self._done - self._before) / max(1e-9, time.monotonic() - self._begun)
        text = describe_progress(self._label, self._done, self._total, speed, self._divergences)
        if np.isfinite(self._acceptance):
            text += f", acceptance {self._acceptance:.2f}"
        found = self._so_far.estimates()
        if found is not None:
            text += f", R-hat {found[0]:.2f}, ESS {found[1]:,.0f}"
        return text


def describe_progress(label: str, done: int, total: int, speed: float, divergences: int) -> str:
    """Return a line on the progress of a run; `speed` is in iterations per second."""
    left = ""
    if speed > 0 and done < total:
        seconds = round((total - done) / speed)
        bound = "at most " if label == "warm-up" else ""
        left = f", {bound}{seconds // 60}:{seconds % 60:02d} left"
    return f"{label}: {done:,} of {total:,} iterations{left}, {divergences:,} divergences"


@runtime_checkable
class _Display(Protocol):
    def show(self, text: str, done: int) -> None: ...

    def close(self, text: str) -> None: ...


def _choose_display(total: int) -> _Display:
    if (shell := _find_notebook()) is not None:
        return _Notebook(shell)
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal(total)
    return _Pipe()


def _find_notebook() -> Any:
    """Return the shell of the notebook's kernel that this is, or None. Whoever has one has imported
    IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if type(shell).__name__ == "ZMQInteractiveShell" else None


class _Terminal:
    def __init__(self, total: int):
        from rich import progress
        from rich.console import Console

        # a refresh takes a millisecond, and a chunk a quarter of a second
        columns = progress.BarColumn(bar_width=12), progress.TextColumn("{task.description}")
        console = Console(stderr=True)
        self._bar = progress.Progress(*columns, console=console, refresh_per_second=2)
        self._task = self._bar.add_task("compiling", total=total)
        self._bar.start()

    def show(self, text: str, done: int) -> None:
        self._bar.update(self._task, completed=done, description=text)

    def close(self, text: str) -> None:
        self._bar.update(self._task, description=text)
        self._bar.stop()


class _Notebook:
    def __init__(self, shell: Any) -> None:
        self._publisher, self._last = shell.display_pub, time.monotonic()
        self._name = {"display_id": uuid.uuid4().hex}
        self._publish("compiling", update=False)

    def _publish(self, text: str, update: bool) -> None:
        self._publisher.publish({"text/plain": text}, transient=self._name, update=update)

    def show(self, text: str, done: int) -> None:
        del done
        if time.monotonic() - self._last > NOTEBOOK_SECONDS:
            self._last = time.monotonic()
            self._publish(text, update=True)

    def close(self, text: str) -> None:
        self._publish(text, update=True)


class _Pipe:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def show(self, text: str, done: int) -> None:
        del done
        if time.monotonic() - self._last > PIPE_SECONDS:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def close(self, text: str) -> None:
        del text

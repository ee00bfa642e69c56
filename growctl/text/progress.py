"""The progress bar of slow commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: float, total: float = 1.0, what: str | None = None) -> None:
        """Shows that `done` of `total` is done, and `what` is going on (None: the same as before)."""


@contextmanager
def progress_bar(what: str) -> Iterator[Advance]:
    """Shows a bar on standard error if it is a terminal; yields what moves it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from growctl.text.console import Terminal

    console = Terminal(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def advance(done: float, total: float = 1.0, what: str | None = None) -> None:
            progress.update(task, completed=done, total=total, description=what)

        yield advance

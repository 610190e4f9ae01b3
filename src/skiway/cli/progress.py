"""Progress of commands that may take long: a bar on a terminal, from the third second on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

__all__ = ["Bar", "collected", "progress"]

T = TypeVar("T")
QUIET_S: Final = 2.0
"""How long a command may take before it shows that it works."""


@contextmanager
def progress(label: str) -> Iterator[Bar]:
    """Show that the block works, if it takes longer than two seconds.

    The bar is on stderr, only on a terminal, and disappears at the end of the block. End it before you print.
    """
    shown = Bar(label)
    timer = threading.Timer(QUIET_S, shown.begin)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        shown.end()


def collected(label: str, items: Iterable[T]) -> list[T]:
    """All items, with their number as progress."""
    found: list[T] = []
    with progress(label) as bar:
        for each in items:
            found.append(each)
            bar.count(len(found))
    return found


class Bar:
    """A bar that moves without an end, since the amount of work is not known."""

    def __init__(self, label: str) -> None:
        self._label, self._done, self._is_over = label, 0, False
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._update: Callable[[str], None] | None = None

    def begin(self) -> None:
        """Show the bar, unless it has ended."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from skiway.cli.rendering import console

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
        with self._lock:
            if self._is_over:
                return
            bar = Progress(
                *columns,
                console=console(stderr=True),
                transient=True,
                redirect_stdout=False,  # it would send the result to stderr
                redirect_stderr=False,
            )
            self._stack.enter_context(bar)
            task = bar.add_task(self._text(), total=None)
            self._update = lambda text: bar.update(task, description=text)

    def count(self, done: int) -> None:
        """Set the number of things that are done."""
        self._done = done
        if (update := self._update) is not None:
            update(self._text())

    def end(self) -> None:
        """Remove the bar. It does not come back."""
        with self._lock:
            self._is_over, self._update = True, None
            self._stack.close()

    def _text(self) -> str:
        return f"{self._label}, {self._done:,} so far" if self._done else self._label

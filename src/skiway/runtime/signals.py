"""SIGTERM and SIGINT: the first asks to stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import queue
import signal
from types import FrameType
from typing import Final, Self

__all__ = ["StopSignals"]

STEP_S: Final = 0.5
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Listens from `with` on, so that a signal which comes during the start is not lost. Main thread only."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[int] = (
            queue.SimpleQueue()
        )  # not an Event: its lock may be held when we are called

    def wait(self) -> signal.Signals:
        """The signal, once it came."""
        while True:  # in steps: a signal that another thread takes does not wake this one
            with contextlib.suppress(queue.Empty):
                return signal.Signals(self._told.get(timeout=STEP_S))

    def __enter__(self) -> Self:
        for number in STOPPING:
            signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _reset()

    def _hear(self, number: int, _: FrameType | None) -> None:
        _reset()
        self._told.put(number)


def _reset() -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)

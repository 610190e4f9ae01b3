"""A file that tells where the doors are, there exactly while all of them are open."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, Protocol, Self

from skiway.errors import Unavailable

__all__ = ["Door", "StopSignals", "announced", "opened"]


@contextmanager
def announced(path: Path | None, addresses: Mapping[str, str]) -> Iterator[None]:
    """While inside, `path` holds the addresses as JSON; it appears whole or not at all. Without a path, nothing does."""
    if path is None:
        yield
        return
    text = json.dumps(dict(addresses)) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        raise Unavailable(f"the ready file {path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        _remove(path, text)


def _remove(path: Path, text: str) -> None:
    """Only what we wrote: another server may have put its own file there since."""
    try:
        if path.read_text() == text:
            path.unlink()
    except FileNotFoundError:
        return


# --------------------
# SIGTERM and SIGINT: the first asks to stop, the second ends the process at once.


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


# --------------------
# Doors: the ports of a process, and what is served behind them.
#
# A process opens its doors one after the other and, when told to stop, lets all of them drain at the same time.


class Door(Protocol):
    """One port."""

    def start(self) -> Mapping[str, str]:
        """Listen; the addresses to tell clients, by what is served there (`rpc`, `airport`, `http`)."""

    def drain(self) -> None:
        """Take no new calls, and return at once."""

    def close(self) -> None:
        """Wait for the calls that run, no longer than the door's patience after `drain`, and cancel the rest."""


@contextmanager
def opened(doors: Sequence[Door]) -> Iterator[Mapping[str, str]]:
    """All doors, listening; the addresses of all of them."""
    started: list[Door] = []
    addresses: dict[str, str] = {}
    try:
        for door in doors:
            addresses |= door.start()
            started.append(door)
        yield addresses
    finally:
        for door in started:
            door.drain()
        for door in reversed(started):
            door.close()

"""The lifecycle of a process: starting and draining its servers, the ready file, and signals that stop it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Protocol, Self

from skiway import __version__
from skiway.errors import Unavailable

__all__ = [
    "Announced",
    "Door",
    "StopSignals",
    "announced",
    "end_soon",
    "opened",
    "read_announced",
    "remove_stale",
    "repeating",
]

POLL_S: Final = 0.5
ABANDON_S: Final = 2.0
PID: Final = "pid"
VERSION: Final = "version"
STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def repeating(step: Callable[[], None], *, name: str, every_s: float, stop_s: float) -> Iterator[None]:
    """Call a function on a thread again and again for the duration of the block, with pauses.

    At the end, the last call has `stop_s` seconds to return.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            step()
            stop.wait(every_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(stop_s)


@contextmanager
def announced(path: Path | None, addresses: Mapping[str, str]) -> Iterator[None]:
    """Write the addresses, the process id and the version as JSON to the ready file `path`, atomically, for the duration of
    the block.
    """
    if path is None:
        yield
        return
    text = json.dumps({**addresses, PID: os.getpid(), VERSION: __version__}) + "\n"
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


@dataclass(frozen=True, slots=True)
class Announced:
    """A running server, as its ready file describes it. Older servers do not tell their version."""

    addresses: Mapping[str, str]
    pid: int
    version: str = ""


def read_announced(path: Path) -> Announced | None:
    """The server that has written a ready file; None if there is no file, or if the server has ended."""
    try:
        found = json.loads(path.read_text())
        pid, version = int(found.pop(PID)), str(found.pop(VERSION, ""))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Announced({name: str(address) for name, address in found.items()}, pid, version) if _runs(pid) else None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # it belongs to another user
        return True
    except (OSError, OverflowError):
        return False
    return True


def remove_stale(path: Path) -> None:
    """Remove the ready file of a server that was killed, so that nobody takes it for the one of a new server."""
    running = read_announced(path)
    is_stale = running is None or running.pid == os.getpid()  # the id of a server in a container is always the same
    if is_stale and os.access(path, os.R_OK):
        path.unlink(missing_ok=True)


def _remove(path: Path, text: str) -> None:
    """Remove the file if it is still ours: another server may have replaced it."""
    try:
        if path.read_text() == text:
            path.unlink()
    except FileNotFoundError:
        return


class StopSignals:
    """Waits for SIGTERM or SIGINT. A second signal ends the process at once. Main thread only.

    Signals are handled from the start of the `with` block, so that none is lost during startup.
    """

    def __init__(self) -> None:
        # A SimpleQueue is reentrant. An Event is not: the handler may run while the main thread holds its lock.
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait(self) -> signal.Signals:
        """Wait for a signal and return it."""
        while True:  # poll, because a signal delivered to another thread does not wake this one
            with contextlib.suppress(queue.Empty):
                return signal.Signals(self._received.get(timeout=POLL_S))

    def __enter__(self) -> Self:
        for number in STOPPING:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _reset()

    def _handle(self, number: int, _: FrameType | None) -> None:
        _reset()
        self._received.put(number)


def _reset() -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def end_soon(seconds: float = ABANDON_S) -> None:
    """End the process after some seconds, even if threads of abandoned calls still run: the interpreter waits for them.

    Call this when all parts are closed, as the last thing.
    """

    def end() -> None:
        time.sleep(seconds)
        os._exit(0)

    threading.Thread(target=end, name="end", daemon=True).start()


class Door(Protocol):
    """A server on one port."""

    def start(self) -> Mapping[str, str]:
        """Start listening. Returns the addresses by service (`rpc`, `airport`, `http`)."""

    def drain(self) -> None:
        """Stop accepting calls; returns immediately."""

    def close(self) -> None:
        """Wait for running calls until the drain period ends, then cancel the rest."""


@contextmanager
def opened(doors: Sequence[Door]) -> Iterator[Mapping[str, str]]:
    """Start the servers one after the other, and drain all of them at the same time at the end of the block.

    Yields the addresses of all of them.
    """
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

"""The lifecycle of a process: starting and draining its servers, the ready file, signals that stop it, and its readiness.

Readiness is whether the parts that a server needs do work. Health checks may come often, and a store that is down may take
long to say so. So results are kept for a moment, failures for a much shorter one so that recovery shows at once, and a check
that does not end in time counts as failed until it does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import queue
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Final, Protocol, Self

from skiway import __version__
from skiway.errors import Unavailable
from skiway.foundation.causes import cause_of
from skiway.metastore.platform import store_checks
from skiway.spark_jobs.session import has_spark_ended
from skiway.spark_jobs.worker import Worker
from skiway.storage import Stores

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


COLLECTIONS: Final = (50_000, 10, 10)
SWITCH_S: Final = 0.001


def favor_short_calls() -> None:
    """Let calls wait less for others: for collections of cyclic garbage, and for a thread that computes.

    A filter with 9,000 values has so many objects that parsing it led to collections of all objects of the server, which take
    0.1 s. They skip what exists now, and begin after more new objects. A short call changes threads about ten times, and each time
    waits until a computing thread has to pause.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    gc.enable()
    sys.setswitchinterval(SWITCH_S)


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


MAX_AGE_S: Final = 1.0
MAX_FAILURE_AGE_S: Final = 0.1
TIMEOUT_S: Final = 3.0
PROBE: Final = bytes(64 * 1024)

SPARE_FILES: Final = 8

log = logging.getLogger("skiway.runtime")


def checks_of(stores: Stores, worker: Worker | None, folders: Sequence[Path] = ()) -> dict[str, Callable[[], object]]:
    """The checks of a server, by the name of the part; each raises if its part does not work.

    The server writes to `folders`, so their disks must have room.
    """
    checks = {**store_checks(stores), "files": check_descriptors}
    if folders:
        checks["disk"] = lambda: check_room(*folders)
    return checks if worker is None else {**checks, "worker": lambda: _check_alive(worker), "spark": _check_spark}


def check_descriptors() -> None:
    """Raise `Unavailable` if the process can open hardly any more files, and so hardly accept connections."""
    opened: list[int] = []
    try:
        for _ in range(SPARE_FILES):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise Unavailable(
            f"fewer than {SPARE_FILES} of {limit} files can still be opened: close connections, or raise the limit with ulimit -n",
            key="files.exhausted",
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def check_room(*folders: Path) -> None:
    """Raise `Unavailable` if nothing can be written to one of the folders: its disk is full, or read-only."""
    for folder in folders:
        if folder.is_dir():  # else it is created with the first file
            _probe(folder)


def _probe(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(PROBE)
            os.fsync(probe.fileno())
    except OSError as error:
        cause = cause_of(error)
        reason = cause.sentence if cause is not None else f"{(error.strerror or str(error)).lower()}; check the disk"
        raise Unavailable(
            f"nothing can be written to {folder}: {reason}", key=cause.key if cause else "store.disk"
        ) from error


def _check_alive(worker: Worker) -> None:
    if not worker.is_alive:
        raise Unavailable("a thread of the worker has ended")


def _check_spark() -> None:
    """Spark starts with the first job that needs it. After its end, the worker starts it again."""
    if has_spark_ended():
        raise Unavailable("the Java process of Spark has ended, and was not started again yet")


class Readiness:
    """Runs the checks on threads of its own. `failed` names the parts that do not work."""

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        *,
        max_age_s: float = MAX_AGE_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks, self._max_age_s, self._timeout_s, self._clock = checks, max_age_s, timeout_s, clock
        self._threads = ThreadPoolExecutor(max(1, len(checks)), thread_name_prefix="readiness")
        self._running: dict[str, Future[object]] = {}
        self._lock = Lock()
        self._asked_at = float("-inf")
        self._failed: tuple[str, ...] = ()

    def failed(self) -> Sequence[str]:
        """The names of the parts that do not work; empty if the server can work."""
        with self._lock:
            max_age_s = min(self._max_age_s, MAX_FAILURE_AGE_S) if self._failed else self._max_age_s
            if self._clock() - self._asked_at >= max_age_s:
                failed = self._ask()
                for name in set(self._failed) - set(failed):
                    log.info("the %s works again", name)
                self._failed, self._asked_at = failed, self._clock()
            return self._failed

    def close(self) -> None:
        """End the threads, without waiting for checks that hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> tuple[str, ...]:
        for name, check in self._checks.items():
            if name not in self._running:
                self._running[name] = self._threads.submit(check)
        until = time.monotonic() + self._timeout_s
        return tuple(name for name in self._checks if not self._works(name, until))

    def _works(self, name: str, until: float) -> bool:
        try:
            self._running[name].result(max(0.0, until - time.monotonic()))
        except NotYet:
            if not self._running[name].done():
                self._report(name, f"no answer within {self._timeout_s:g} s")
                return False  # it goes on, and the next call asks for its result
            del self._running[name]
            return False
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the part does not work
            self._report(name, str(error))
            del self._running[name]
            return False
        del self._running[name]
        return True

    def _report(self, name: str, reason: str) -> None:
        if name not in self._failed:
            log.error("not ready: the %s does not work: %s", name, reason)

"""More processes that serve gRPC calls, on the port of the first one.

Python runs on one core per process. With `server.processes`, the first process starts others that listen on the same port; the
operating system distributes connections among them. They share the stores and serve calls only: HTTP, jobs, garbage
collection and webhooks stay in the first process, which starts a new one if one of them ends, and stops them all when it stops.
If it is killed, the others notice that and stop by themselves.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from skiway.config import Settings
from skiway.errors import Unavailable
from skiway.runtime.grpc_door import CANCEL_S, GrpcDoor
from skiway.telemetry.series import Family

__all__ = ["CallProcesses", "Serving", "run_process"]

START_S: Final = 60.0
ANSWER_S: Final = 2.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0

METRICS: Final = "metrics"
STOP: Final = "stop"

log = logging.getLogger("skiway.runtime")

Serving = Callable[[Settings, Path], AbstractContextManager[Callable[[], Sequence[Family]]]]
"""Serves calls for the duration of the block, and yields a function that collects the metrics of the process."""


def run_process(serving: Serving, settings: Settings, home: Path, control: Connection) -> None:
    """The main function of an additional process: serve calls until the first process says so, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    signal.signal(signal.SIGTERM, _stop)
    # An EOFError or BrokenPipeError means that the first process has ended.
    with suppress(_Stopped, EOFError, BrokenPipeError), serving(settings, home) as collect:
        control.send(True)
        while control.recv() == METRICS:
            control.send(collect())


class _Stopped(Exception):
    """Somebody has stopped this process."""


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


@dataclass(slots=True)
class _Member:
    """An additional process."""

    number: int
    process: SpawnProcess
    control: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever waits for an answer."""

    def tell(self, message: str) -> None:
        with self.lock, suppress(OSError):  # it has ended
            self.control.send(message)

    def metrics(self) -> Sequence[Family]:
        with self.lock, suppress(OSError, EOFError):
            while self.control.poll():  # an answer that came too late
                self.control.recv()
            self.control.send(METRICS)
            if self.control.poll(ANSWER_S):
                families: Sequence[Family] = self.control.recv()
                return families
        return ()


class CallProcesses:
    """The additional processes of a server, as one of its doors; `first` is its gRPC server, which must start before."""

    def __init__(self, serving: Serving, settings: Settings, home: Path, first: GrpcDoor) -> None:
        self._serving, self._settings, self._home, self._first = serving, settings, home, first
        self._spawning = multiprocessing.get_context("spawn")
        self._members: list[_Member] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="call-processes", daemon=True)

    def start(self) -> Mapping[str, str]:
        """Start all processes, and wait until they accept calls. They have no addresses of their own."""
        numbers = range(1, self._settings.server.processes)
        self._members = [self._started(number) for number in numbers]
        try:
            for member in self._members:
                self._wait_until_ready(member)
        except BaseException:
            self._end(0)
            raise
        if self._members:
            self._watching.start()
        return {}

    def drain(self) -> None:
        """Tell all processes to stop accepting calls; returns immediately."""
        self._stopping.set()
        with self._lock:
            for member in self._members:
                member.tell(STOP)

    def close(self) -> None:
        """Wait for the running calls of all processes, and kill those that exceed the drain period."""
        self._end(self._settings.server.grpc.drain_seconds + 2 * CANCEL_S)

    def metrics(self) -> Mapping[str, Sequence[Family]]:
        """The metrics of each process, by its number. A process that does not answer in time is missing."""
        with self._lock:
            members = list(self._members)
        return {str(member.number): found for member in members if (found := member.metrics())}

    def _started(self, number: int) -> _Member:
        ours, theirs = self._spawning.Pipe()
        grpc = replace(self._settings.server.grpc, address=self._first.address, share_port=True)
        settings = replace(self._settings, server=replace(self._settings.server, grpc=grpc))
        process = self._spawning.Process(
            target=run_process, args=(self._serving, settings, self._home, theirs), name=f"calls-{number}"
        )
        process.start()
        theirs.close()
        return _Member(number, process, ours)

    def _wait_until_ready(self, member: _Member) -> None:
        found = wait([member.control, member.process.sentinel], START_S)
        try:
            if member.control in found and member.control.recv():
                return
        except EOFError:
            pass
        raise Unavailable(f"process {member.number} of server.processes did not start: see the log")

    def _watch(self) -> None:
        """Start a new process in place of one that has ended: after a pause, which grows with every failure."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            with self._lock:
                ended = [member for member in self._members if not member.process.is_alive()]
            if not ended:
                pause_s = FIRST_PAUSE_S
                wait([member.process.sentinel for member in self._members], 0.5)
                continue
            for member in ended:
                code = member.process.exitcode
                log.error("process %d ended with code %s: starting a new one", member.number, code)
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            for member in ended:
                self._replace(member)

    def _replace(self, member: _Member) -> None:
        new = self._started(member.number)
        try:
            self._wait_until_ready(new)
        except Unavailable as error:
            log.error("%s", error)
            _kill([new])
            return
        member.control.close()
        with self._lock:
            self._members[self._members.index(member)] = new
            if self._stopping.is_set():
                new.tell(STOP)

    def _end(self, within_s: float) -> None:
        if self._watching.is_alive():
            self._watching.join(START_S)
        with self._lock:
            members = list(self._members)
        for member in members:
            member.process.join(within_s)
        slow = [member for member in members if member.process.is_alive()]
        if slow and within_s:
            log.warning("%d processes did not end in time; killing them", len(slow))
        _kill(slow)


def _kill(members: Iterable[_Member]) -> None:
    for member in members:
        member.process.kill()
        member.process.join()
        member.control.close()

"""Starts servers that are killed at a chosen operation of their stores or of the warehouse.

Run as `python launcher.py`, it reads one command per line from standard input. `skiway serve` takes seconds to import its
modules. This process imports them once and forks: each server is a process of its own, runs the real command, and is ready
in a moment. Its stores and its warehouse are the real ones, with a `KillPoint` in front of them.

    {"start": [arguments], "kill_point": {...}, "log": file}   responds with the process id; `clock` may name a file
    {"ended": process id}                                      responds with the exit code, or null while it runs
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import skiway.foundation.clock
from metastore.faults import CrashingBlobs, CrashingPointers
from runtime.preloaded import preload
from skiway.airport.server.tickets import TicketOffice
from skiway.cli.app import main
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.runtime import stores

preload()  # before the first fork


@dataclass
class KillPoint:
    """Kills the process before or after operation number `at` of the threads whose names begin with one of `threads`.

    Operations are counted from 1 and recorded in the file `trace` when they begin; with 0, the process is not killed. Only
    operations named in `only` count; if it is empty, all do.
    """

    threads: list[str]
    trace: str
    only: list[str] = field(default_factory=list)
    at: int = 0
    when: str = "before"
    numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def run(self, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        """Run the operation, or kill the process."""
        if not self._counts(operation.__name__):
            return operation(*arguments, **keywords)
        number = next(self.numbers)  # atomic, and its own, whatever other threads count meanwhile
        with Path(self.trace).open("a") as trace:
            trace.write(f"{operation.__name__}\n")
        self._kill_if_reached(number, "before")
        try:
            return operation(*arguments, **keywords)
        finally:  # a lost race is a step, too
            self._kill_if_reached(number, "after")

    def _counts(self, name: str) -> bool:
        return threading.current_thread().name.startswith(tuple(self.threads)) and name in (self.only or [name])

    def _kill_if_reached(self, number: int, when: str) -> None:
        if (number, when) == (self.at, self.when):
            os.kill(os.getpid(), signal.SIGKILL)


def become_server(arguments: list[str], kill_point: dict[str, Any] | None, log: str, clock: str | None) -> None:
    """Run the command in this process until it ends."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    no_input = os.open(os.devnull, os.O_RDONLY)
    for number, stream in ((no_input, 0), (out, 1), (out, 2)):
        os.dup2(number, stream)
    if kill_point is not None:
        install(KillPoint(**kill_point))
    if clock is not None:
        install_clock(Path(clock))
    sys.argv = ["skiway", *arguments]
    main()


def install(kill_point: KillPoint) -> None:
    """Put the kill point in front of all stores opened from now on, and of the warehouse."""
    open_pointers, open_blobs = stores.open_pointers, stores.open_blobs  # type: ignore[attr-defined]
    vars(stores).update(
        open_pointers=lambda url, **keywords: CrashingPointers(open_pointers(url, **keywords), kill_point),
        open_blobs=lambda url, **keywords: CrashingBlobs(open_blobs(url, **keywords), kill_point),
    )
    for name in ("create", "seal", "remove"):  # a file is created, completed, removed
        install_in_method(kill_point, TableFiles, name)


def install_clock(offset: Path) -> None:
    """Let the clock of this process differ from the machine's by the number of seconds in a file, which may change."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=float(offset.read_text() or 0))

    vars(skiway.foundation.clock)["datetime"] = Shifted
    TicketOffice.__init__.__kwdefaults__["clock"] = lambda: time.time() + float(offset.read_text() or 0)


def install_in_method(kill_point: KillPoint, kind: type, name: str) -> None:
    """Put the kill point in front of this method."""
    method = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments: kill_point.run(method, self, *arguments))


def fork_server(command: dict[str, Any]) -> int:
    """Fork a process that runs a server, and return its id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        become_server(command["start"], command["kill_point"], command["log"], command.get("clock"))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        os._exit(code)


def exit_code(child: int) -> int | None:
    """The exit code of the process, negative if a signal ended it; None while it runs."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def run_commands() -> None:
    """Run commands until standard input is closed, then kill all servers."""
    running: set[int] = set()
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            running.add(response := fork_server(command))
        elif (response := exit_code(command["ended"])) is not None:
            running.discard(command["ended"])
        print(json.dumps(response), flush=True)
    for child in running:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    run_commands()

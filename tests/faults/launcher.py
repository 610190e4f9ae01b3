"""Starts servers that die at a chosen operation of their stores, or of the warehouse: `python launcher.py`, told what to
do line by line.

The command `skiway serve` takes seconds to import what it needs. This process imports it once and forks: each server is
a process of its own, runs the real command, and is ready in a moment. Its stores, and what writes and removes files of
the warehouse, are the real ones behind a `Death`.

    {"start": [arguments], "death": {...}, "log": file}   answers with the process id
    {"ended": process id}                                  answers with the exit code, or null while it runs
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from metastore.faults import DyingBlobs, DyingPointers
from skiway.cli.app import main
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.runtime import stores

# What a server imports when it starts, imported before the first fork.
for module in (
    "skiway.runtime.process",
    "skiway.cli.server",
    "skiway.storage.pointers.sqlite",
    "skiway.storage.pointers.postgres",
    "skiway.storage.blobs.objects",
    "skiway.formats.iceberg.schema_changes",
    "skiway.formats.iceberg.manifest_files",
    "skiway.formats.iceberg.file_io",
    "skiway.formats.iceberg.commits",
    "skiway.rest.table_bodies",
    "pyiceberg.serializers",
    "pyiceberg.table.update",
    "psycopg",
):
    import_module(module)


@dataclass
class Death:
    """Kills the process before or after operation number `at` of the threads whose names begin with one of `threads`.

    Operations are counted from 1 and written down in the file `trace`, each when it begins; at 0, nobody dies. `only` are
    the names of those that count; without any, all do.
    """

    threads: list[str]
    trace: str
    only: list[str] = field(default_factory=list)
    at: int = 0
    when: str = "before"
    done: int = field(default=0, init=False)

    def run(self, operation: Any, *arguments: Any, **named: Any) -> Any:
        """Do the operation, or die."""
        if not self._counts(operation.__name__):
            return operation(*arguments, **named)
        self.done += 1
        with Path(self.trace).open("a") as trace:
            trace.write(f"{operation.__name__}\n")
        self._strike("before")
        result = operation(*arguments, **named)
        self._strike("after")
        return result

    def _counts(self, name: str) -> bool:
        return threading.current_thread().name.startswith(tuple(self.threads)) and name in (self.only or [name])

    def _strike(self, when: str) -> None:
        if (self.done, when) == (self.at, self.when):
            os.kill(os.getpid(), signal.SIGKILL)


def become_server(arguments: list[str], death: dict[str, Any] | None, log: str) -> None:
    """Run the command in this process, until its end."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(number, stream)
    if death is not None:
        put_under(Death(**death))
    sys.argv = ["skiway", *arguments]
    main()


def put_under(death: Death) -> None:
    """From now on, stores are opened with death watching."""
    open_pointers, open_blobs = stores.open_pointers, stores.open_blobs  # type: ignore[attr-defined]
    vars(stores).update(
        open_pointers=lambda url, **named: DyingPointers(open_pointers(url, **named), death),
        open_blobs=lambda url, **named: DyingBlobs(open_blobs(url, **named), death),
    )
    for name in ("create", "seal", "remove"):  # a file is begun, is complete and lasts, is gone
        put_method_under(death, TableFiles, name)


def put_method_under(death: Death, kind: type, name: str) -> None:
    """From now on, death watches this method."""
    method = getattr(kind, name)
    setattr(kind, name, lambda self, *arguments: death.run(method, self, *arguments))


def started(order: dict[str, Any]) -> int:
    """The id of a new process, which never comes back here."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 1
    try:
        become_server(order["start"], order["death"], order["log"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        os._exit(code)


def exit_code(child: int) -> int | None:
    """How the process ended, negative by a signal; None while it runs."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def serve_orders() -> None:
    """Do what is asked until nobody asks any more; no server outlives that."""
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "start" in order:
            running.add(answer := started(order))
        elif (answer := exit_code(order["ended"])) is not None:
            running.discard(order["ended"])
        print(json.dumps(answer), flush=True)
    for child in running:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    serve_orders()

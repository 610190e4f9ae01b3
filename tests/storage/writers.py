"""Writers for tests, as separate processes: `python writers.py race|crash|repeat <arguments as JSON>`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from skiway.errors import Conflict, SkiwayError
from skiway.storage import ABSENT, Delete, PointerStore, Put, open_pointers
from skiway.storage.pointers.sqlite import SqlitePointerStore


def start(task: str, **arguments: Any) -> subprocess.Popen[str]:
    """Start a process that runs `task`; its output can be read."""
    command = [sys.executable, str(Path(__file__)), task, json.dumps(arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def race(url: str, *, options: dict[str, str], keys: list[str], rounds: int, writers: int, name: str) -> dict[str, Any]:
    """Let writers set all keys up to version `rounds`, as fast as they can; returns the wins and error counts.

    Prints a line when it is ready, and waits for one to start. Continues until it has won once and has
    seen a write of another process, so that each of two processes takes part.
    """
    saw_other_process, has_won = Event(), Event()

    def write(writer: int) -> tuple[list[tuple[str, int, str]], Counter[str]]:
        won, errors = [], Counter[str]()
        done = False
        while not done:
            done = True
            for key in keys:
                current = store.get(key)
                version = current.version if current else ABSENT
                if current and not current.blob_uri.startswith(f"{name}-"):
                    saw_other_process.set()
                if version >= rounds and saw_other_process.is_set() and has_won.is_set():
                    continue
                done = False
                value = f"{name}-{writer}-{len(won)}"
                try:
                    won.append((key, store.compare_and_set(key, value, expect=version).version, value))
                    has_won.set()
                except SkiwayError as error:
                    errors[
                        "Conflict" if isinstance(error, Conflict) and error.key.startswith("pointer.") else repr(error)
                    ] += 1
        return won, errors

    with open_pointers(url, options=options) as store, ThreadPoolExecutor(writers) as pool:
        print("ready", flush=True)
        sys.stdin.readline()
        results = list(pool.map(write, range(writers)))
    errors: Counter[str] = sum((errors for _, errors in results), Counter())
    return {"won": [win for won, _ in results for win in won], "errors": dict(errors)}


def crash(url: str, *, statement: int, size: int) -> None:
    """Kill this process before the given SQL statement of one batch. Equal statements in sequence count once."""
    from sqlalchemy import Engine, event

    with open_pointers(url) as store:
        remaining, last = statement, ""

        def count_down(*_: Any) -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def of_driver(text: str) -> None:
            nonlocal last
            kind = text.split()[0]
            if kind not in (last, "PRAGMA"):
                last = kind
                count_down()

        if isinstance(store, SqlitePointerStore):
            store._writing._connection = store._writing._connect()
            store._writing._connection.set_trace_callback(of_driver)
        event.listen(Engine, "before_cursor_execute", count_down)
        event.listen(Engine, "commit", count_down)
        change_all(store, size, 1)


def repeat(url: str, *, size: int) -> None:
    """Apply batches repeatedly until killed."""
    with open_pointers(url) as store:
        version = store.get("/0000").version
        print("started", flush=True)
        while True:
            change_all(store, size, version)
            version += 1


def create_all(store: PointerStore, size: int) -> None:
    store.apply([Put(f"/{number:04d}", "before", expect=ABSENT) for number in range(size)])


def change_all(store: PointerStore, size: int, version: int) -> None:
    """Set `/0000` and all following keys, and alternately create and delete `/turn`."""
    puts = [Put(f"/{number:04d}", f"after {version}", expect=version) for number in range(size)]
    turn = Put("/turn", "", expect=ABSENT) if version % 2 else Delete("/turn", expect=1)
    store.apply([*puts, turn])


if __name__ == "__main__":
    programs: dict[str, Callable[..., Any]] = {"race": race, "crash": crash, "repeat": repeat}
    result = programs[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(result))

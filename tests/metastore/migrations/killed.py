"""Kill a migration with SIGKILL after each of its calls to the store, and complete it with another process.

Run as `python killed.py URL...`, with the URL of an empty pointer store for each number of calls, it prints the outcomes as
JSON. Each process is a fork of this one, which has only one thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from metastore.migrations import things
from skiway.metastore.migrations import migrate
from skiway.security import MemorySecrets
from skiway.storage import StoreCall, Stores, open_blobs, open_pointers
from skiway.storage.pointers import sql

setattr(sql, "FORMAT_VERSION", things.NEW.version)  # noqa: B010 - the module does not export it


def run_steps(url: str, *, kill_after: int = 0) -> None:
    calls = 0

    def count(_: StoreCall) -> None:
        nonlocal calls
        calls += 1
        if calls == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_pointers(url, on_call=count) as pointers:
        for _ in migrate(Stores(pointers, open_blobs("memory://")), MemorySecrets(), things.STEPS, settle_s=0):
            pass


def forked(work: Callable[[], object]) -> int:
    """Run `work` in another process; return the signal that ended it, or 0."""
    if (child := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def outcome(url: str, kill_after: int) -> dict[str, object]:
    def fill() -> None:
        with open_pointers(url) as pointers:
            things.fill(pointers)

    forked(fill)
    killed = forked(lambda: run_steps(url, kill_after=kill_after)) == signal.SIGKILL
    with open_pointers(url) as pointers:
        between = things.state(pointers)
    run_steps(url)
    with open_pointers(url) as pointers:
        return {"killed": killed, "between": repr(between), "done": things.state(pointers) == things.DONE}


if __name__ == "__main__":
    print(json.dumps([outcome(url, number) for number, url in enumerate(sys.argv[1:], start=1)]))

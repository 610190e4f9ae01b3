"""Ends the processes that a test run leaves behind, also when the run was killed with SIGKILL.

`start` gives the test process an environment variable that all its descendants inherit, and starts a watchdog that
waits at the end of a pipe. When the test process ends, however it ends, the pipe closes, and the watchdog terminates
every process that has the variable: servers, databases that became daemons, Java. It reads `/proc`; on other systems
than Linux there is no watchdog.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

VARIABLE = "PYTEST_RUN_OF_SKIWAY"
PATIENCE_S = 5.0


def start() -> None:
    """Watch over this process from now on. A run within a run is watched over by both watchdogs."""
    if sys.platform != "linux":
        return
    run = uuid.uuid4().hex
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {run}".strip()
    reading, writing = os.pipe()  # not inherited by others, so it closes when this process ends
    with contextlib.closing(os.fdopen(reading)) as end_of_pipe:
        process = subprocess.Popen([sys.executable, __file__, run], stdin=end_of_pipe, start_new_session=True)
    process.returncode = 0  # nobody waits for it: it outlives this process
    assert writing


def processes(run: str) -> list[int]:
    """The ids of all other processes that belong to the run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            ours = any(each.startswith(VARIABLE.encode()) and run.encode() in each for each in variables)
            if ours and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def terminate(run: str) -> None:
    """End all processes of the run: with SIGTERM, and those that take too long with SIGKILL."""
    deadline = time.monotonic() + PATIENCE_S
    asked: set[int] = set()
    while left := processes(run):
        late = time.monotonic() > deadline
        for each in left:
            if late or each not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(left)
        time.sleep(0.05)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    terminate(sys.argv[1])

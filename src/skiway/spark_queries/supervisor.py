"""The supervisor of a query or function: `python -m skiway.spark_queries.supervisor MEMORY_BYTES` starts the worker and ends it.

With `--protect=UID`, the worker cannot change attributes of files outside of its folder. If that is not possible, it does not
start, unless the supervisor runs as another user than UID, that of the server.

It passes its input on to the worker. The query ends when the input ends, because the server has closed it or was killed, when
the worker ends, or when the query uses too much memory or too many processes. Then the supervisor kills all processes of the
query, also those that left its session, because they become its own children; and it removes the files of the query. The worker
is confined and the supervisor is not, so no code of the query can stop the supervisor.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from skiway.spark_queries.confinement import protect_attributes

__all__ = ["MOST_PROCESSES", "OUT_OF_MEMORY", "TOO_MANY_PROCESSES", "UNPROTECTED", "main"]

OUT_OF_MEMORY: Final = 70
"""The exit code after a query has used too much memory."""

TOO_MANY_PROCESSES: Final = 71
"""The exit code after a query has started too many processes."""

UNPROTECTED: Final = 72
"""The exit code if the attributes of files cannot be protected."""

MOST_PROCESSES: Final = 200
"""How many processes a query may have. Spark has one for Java, and a few for Python in each task."""

_PROTECT: Final = "--protect="
_WATCH_S: Final = 0.25
_ADOPT_ORPHANS: Final = 36
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> None:
    """Run the worker until its end, or that of the input."""
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    protected_from: int | None = None
    if arguments[0].startswith(_PROTECT):
        protected_from, arguments = int(arguments[0].removeprefix(_PROTECT)), arguments[1:]
    most = int(arguments[0])
    command = arguments[1:] or [sys.executable, "-P", "-m", "skiway.spark_queries.worker"]
    folder = Path(tempfile.mkdtemp(prefix="skiway-spark-query-"))

    def protect() -> None:
        if protected_from is None:
            return
        try:
            protect_attributes(folder)
        except OSError as error:
            print(f"the attributes of files cannot be protected: {error}", file=sys.stderr, flush=True)  # noqa: T201
            if protected_from == os.geteuid():
                os._exit(UNPROTECTED)

    worker = subprocess.Popen(  # noqa: S603 - a fixed command, except in tests
        [*command, str(folder)],
        preexec_fn=protect,
        stdin=subprocess.PIPE,
        env=_environment(folder),
        cwd=folder,
    )
    ended = threading.Event()
    threading.Thread(target=_pass_on, args=(worker, ended), name="input", daemon=True).start()
    code: int | None = None
    while code is None and not ended.wait(_WATCH_S):
        code = worker.poll()
        if code is not None:
            break
        running = _descendants()
        if len(running) > MOST_PROCESSES:
            code = TOO_MANY_PROCESSES
        elif _used_bytes(running) > most:
            code = OUT_OF_MEMORY
    _kill_all()
    worker.wait()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(code if code is not None and code >= 0 else 1)  # the thread may wait for input


def _environment(folder: Path) -> dict[str, str]:
    """The variables of the worker: those that programs need to start, and none of the server's."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
    places = dict.fromkeys(("HOME", "TMPDIR", "SPARK_LOCAL_DIRS", "SPARK_CONF_DIR"), str(folder))
    return {**kept, **places, "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _pass_on(worker: subprocess.Popen[bytes], ended: threading.Event) -> None:
    assert worker.stdin is not None
    try:
        while data := os.read(0, 1 << 16):
            worker.stdin.write(data)
            worker.stdin.flush()
    except OSError:
        pass  # the worker has ended
    finally:
        ended.set()


def _descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                parent = int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(place.name))
    found, new = list[int](), [os.getpid()]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def _used_bytes(processes: Iterable[int]) -> int:
    """The memory of processes. Pages that they share are counted for each of them."""
    pages = 0
    for each in processes:
        try:
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * _PAGE


def _kill_all() -> None:
    """Kill everything below this process, until nothing is left that could start more.

    Processes are stopped before any is killed. So they start no new ones while others are killed.
    """
    while left := _descendants():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in left:
                try:
                    os.kill(each, number)
                except ProcessLookupError:
                    continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])

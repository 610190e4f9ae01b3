"""Start `skiway` commands, and scripts that use Skiway, by forking a process that has already imported it.

A new interpreter spends three seconds of CPU time on imports before `skiway serve` does anything. This module keeps one
process with the imports done and forks it for each command: a real process with its own process id, file descriptors,
environment and exit code, ready within a quarter of a second.

`PreloadedProcess` is a `subprocess.Popen`. Its child is forked twice, so that it becomes an orphan, and the test process
adopts it as a "child subreaper": from then on it can be waited for like any other child.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import skiway

MESSAGE_BYTES = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
IMPORTED_LATE = (
    "grpc._server",
    "grpc._interceptor",
    "pandas",  # PyArrow imports it for its first array, which takes more CPU time than starting a server
    "psycopg",
    "pyarrow.dataset",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "pyiceberg.io.pyarrow",
    "pyiceberg.serializers",
    "pyiceberg.table.deletion_vector",
    "pyiceberg.table.update",
    "pyiceberg.utils.truncate",
    "uvicorn.lifespan.off",
    "uvicorn.loops.asyncio",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""Modules of libraries that a server imports when it first needs them."""


def available() -> bool:
    """Whether commands are forked: on Linux, unless `SKIWAY_TESTS=all` requests a new interpreter for each."""
    import scope  # here, because the preloaded process runs this file as a script

    return sys.platform == "linux" and not scope.ALL


class PreloadedProcess(subprocess.Popen[str]):
    """A `skiway` command that runs in a fork of the preloaded process. `args` are those of `skiway`."""

    is_script = False

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        cwd, env, pipes = rest[4], rest[5], rest[9:15]
        order = {
            "arguments": list(args) if self.is_script else ["skiway", *args],
            "script": self.is_script,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(env or os.environ),
        }
        theirs = (pipes[0], pipes[3], pipes[5])  # -1 stands for the stream of this process
        streams = [stream if stream != -1 else number for number, stream in enumerate(theirs)]
        self.pid = _preloaded().fork(order, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class PreloadedScript(PreloadedProcess):
    """A Python script that runs in such a fork, like `python -W error`. `args` are its path and its arguments."""

    is_script = True


class _Preloaded:
    """The process that forks, and the socket it receives orders on."""

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def fork(self, order: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The id of the new process."""
        socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
        answer = self._socket.recv(MESSAGE_BYTES)
        assert answer, "the preloaded process has ended"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _preloaded() -> _Preloaded:
    preloaded = _Preloaded()
    atexit.register(preloaded.close)
    return preloaded


def wait_for_orders(orders: socket.socket) -> dict[str, Any]:
    """Return in a new process for each order, with its streams in place; exit when the test process is gone."""
    while True:
        message, streams, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 3)
        if not message:
            sys.exit()
        reading, writing = os.pipe()
        if middle := os.fork():
            os.waitpid(middle, 0)  # from now on the child is an orphan
            orders.send(os.read(reading, 100))
            for descriptor in (reading, writing, *streams):
                os.close(descriptor)
            continue
        if child := os.fork():
            os.write(writing, str(child).encode())
            os._exit(0)
        for descriptor in (reading, writing, orders.fileno()):
            os.close(descriptor)
        orders.detach()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        order: dict[str, Any] = json.loads(message)
        return order


def preload() -> None:
    """Import all of Skiway and what it imports late, so that no command has to import much."""
    for module in pkgutil.walk_packages(skiway.__path__, "skiway."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in IMPORTED_LATE:
        import_module(name)
    # Opening a store reads the entry points of all packages. No blob store, since its threads do not survive a fork.
    import_module("skiway.storage").open_pointers("memory://")


def enter(order: Mapping[str, Any]) -> None:
    """Take on the arguments, folder, environment and streams of a command."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None  # found again, in the new environment
    sys.argv = order["arguments"]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), "utf-8", line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w")), "utf-8", errors="backslashreplace", line_buffering=True
    )


def run_script() -> None:
    """Run the script in `sys.argv` as the main program, with warnings as errors."""
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    warnings.simplefilter("error")
    runpy.run_path(sys.argv[0], run_name="__main__")


def run(program: Callable[[], None]) -> None:
    """Run the program and exit without finalizing the interpreter, which native libraries do not survive in a fork."""
    code: object = 0
    try:
        program()
    except SystemExit as exited:
        code = exited.code or 0
    except BaseException:  # noqa: BLE001 - what the interpreter does
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    orders_ = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of this file
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC reads it when it is loaded
    preload()
    order_ = wait_for_orders(orders_)
    enter(order_)
    run(run_script if order_["script"] else import_module("skiway.cli").main)

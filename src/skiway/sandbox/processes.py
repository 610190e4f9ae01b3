"""Worker processes: they have none of the server's environment, answer on a pipe, and can be killed at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, Unavailable
from skiway.sandbox.messages import READY, read_until, write_message

__all__ = ["WorkerProcess", "memory_bytes"]

_START_S: Final = 60.0
_ENVIRONMENT: Final = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_UNITS: Final = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "B": 1}


class WorkerProcess:
    """A process that runs a module of this package. It is ready when the constructor returns."""

    def __init__(self, module: str, *arguments: object, descriptors: Sequence[int] = ()) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-I", "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,  # Ctrl-C in a terminal ends the server, which ends its workers
            pass_fds=descriptors,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        try:
            self.read(len(READY), time.monotonic() + _START_S)
        except (TimeoutError, EOFError, OSError) as error:
            self.kill()
            raise Unavailable(
                "a process for SQL could not be started: the server has too little memory, or is not installed completely",
                key="sandbox.start",
            ) from error

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request. A process that was forked from this one does not own it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def send(self, header: Mapping[str, Any], parts: list[pa.Buffer]) -> None:
        """Send a request; `OSError` if the process has ended."""
        write_message(self._requests, header, parts)

    def read(self, size: int, deadline: float) -> bytes:
        """Read as many bytes of an answer; `EOFError` if the process has ended, `TimeoutError` at the deadline."""
        return read_until(self._answers.fileno(), size, deadline)

    def stop(self) -> None:
        """Kill the process. Pipes stay open, so another thread may still use them."""
        if self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        if self._owner == os.getpid():
            self.stop()
            self._process.wait()
            for pipe in (self._requests, self._answers):
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()


def memory_bytes(text: str) -> int:
    """The number in a size such as `1GB` or `512MiB`."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().upper() or "B"
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError):
        raise InvalidArgument(f"{text!r} is not a size: write a number and a unit, such as 512MB or 1GB") from None

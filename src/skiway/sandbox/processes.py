"""Worker processes: they have none of the server's environment, answer on a pipe, and can be killed at any time.

If one ends by itself, the log has its exit code or signal, and the last lines that it wrote to its standard error. Only lines of
known forms are logged, because others could contain SQL or values.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, Unavailable
from skiway.sandbox.messages import OUT_OF_MEMORY, READY, read_until, write_message

__all__ = ["Ending", "WorkerProcess", "memory_bytes"]

log = logging.getLogger("skiway.sandbox")

_START_S: Final = 60.0
_END_S: Final = 10.0
"""How long a process may take to end after it has closed its pipes."""

_ENVIRONMENT: Final = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_UNITS: Final = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "B": 1}
_NO_MEMORY: Final = "std::bad_alloc"
_LOGGED_LINES: Final = 20
_ERROR_BYTES: Final = 1 << 16
"""How much a process can write to its standard error; the rest is lost. It is what a pipe of Linux holds."""

_LOGGED: Final = re.compile(
    r'File "[\w./<>-]{1,200}", line \d+,? in [\w.<>]{1,100}'  # of Python's tracebacks and faulthandler
    r"|Fatal Python error: [A-Z][\w ]{1,60}"
    r"|(Current thread|Thread) 0x[0-9a-f]+ .{0,40}\(most recent call first\):"
    r"|terminate called [\w ]{1,60}('[\w:<>]{1,100}')?"
    r"|what\(\): +(std::bad_alloc|Resource temporarily unavailable)"
    r"|(malloc|realloc|free)\(\): [\w ]{1,60}"
    r"|[\w.]{1,60}(Error|Exception|Exit|Interrupt)"
    r"|/\S+: No module named [\w.]{1,100}"
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code or signal."""

    how: str
    is_out_of_memory: bool


class WorkerProcess:
    """A process that runs a module of this package. It is ready when the constructor returns."""

    def __init__(self, module: str, *arguments: object, descriptors: Sequence[int] = ()) -> None:
        self._owner = os.getpid()
        ours, errors = os.pipe()
        for each in (ours, errors):
            os.set_blocking(each, False)  # nobody reads it while the process runs
        self._errors: IO[bytes] = os.fdopen(ours, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command
                [sys.executable, "-I", "-m", module, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal ends the server, which ends its workers
                pass_fds=descriptors,
            )
        except BaseException:
            self._errors.close()
            raise
        finally:
            os.close(errors)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        try:
            self.read(len(READY), time.monotonic() + _START_S)
        except (TimeoutError, EOFError, OSError) as error:
            if not isinstance(error, TimeoutError):
                self.ending()
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

    def ending(self) -> Ending:
        """How the process has ended, which is logged. Call it once, after a pipe was closed, and before `kill`."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it has closed its pipes, and cannot be used
            self.stop()
            code = self._process.wait()
        written = (self._errors.read(_ERROR_BYTES) or b"").decode("utf-8", "replace")
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        log.warning("a process for SQL ended with %s%s", how, _shown_lines(written))
        return Ending(how, code == OUT_OF_MEMORY or (code == -signal.SIGABRT and _NO_MEMORY in written))

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
            for pipe in (self._requests, self._answers, self._errors):
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shown_lines(written: str) -> str:
    """The last lines that are certainly not from a query or its values."""
    lines = [line.strip() for line in written.splitlines()]
    shown = [line for line in lines if _LOGGED.fullmatch(line)][-_LOGGED_LINES:]
    return "".join(f"\n    {line}" for line in shown)


def memory_bytes(text: str) -> int:
    """The number in a size such as `1GB` or `512MiB`."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().upper() or "B"
    try:
        return int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError):
        raise InvalidArgument(f"{text!r} is not a size: write a number and a unit, such as 512MB or 1GB") from None

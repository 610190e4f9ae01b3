"""Worker processes, the messages between them and the server, and the pool that runs SQL in them.

The processes have none of the server's environment, answer on a pipe, and can be killed at any time. A message is a JSON header and
tables as Arrow IPC streams, each with its length in front. A worker runs foreign SQL, so its messages are not trusted: lengths are
limited and tables are validated.

If a process ends by itself, the log has its exit code or signal, and the last lines that it wrote to its standard error. Only lines of
known forms are logged, because others could contain SQL or values.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, TimedOut, Unavailable

FILES_AT_ONCE: Final = 100
"""How many open files are sent in one message; the system allows 253."""

READY: Final = b"R"
"""What a process that runs queries writes when it has started."""

KEPT: Final = b"K"
"""The process has the files and views of the query from the last one."""

SEND_FILES: Final = b"F"
"""The process needs the files of the query."""

OUT_OF_MEMORY: Final = 80
"""The exit code of a process that had too little memory to go on."""

_SIZE: Final = 8
_READ_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = 16 * 1024 * 1024


class TooLarge(ValueError):
    """A message is larger than its reader accepts."""


def encode_table(table: pa.Table) -> pa.Buffer:
    """A table as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode_table(data: bytes) -> pa.Table:
    """The table in an IPC stream, which must be valid."""
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def write_message(to: IO[bytes], header: Mapping[str, Any], parts: list[pa.Buffer]) -> None:
    """Write a message; `parts` are encoded tables."""
    for part in (json.dumps(header).encode(), len(parts).to_bytes(_SIZE, "little"), *parts):
        to.write(len(part).to_bytes(_SIZE, "little"))
        to.write(part)
    to.flush()


def exactly(file: IO[bytes], size: int) -> bytes:
    """Read as many bytes from a file; `EOFError` if it ends before."""
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def read_until(descriptor: int, size: int, deadline: float) -> bytes:
    """Read as many bytes from a pipe; `EOFError` if it ends before, `TimeoutError` at the deadline."""
    data = bytearray()
    while len(data) < size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, min(_READ_BYTES, size - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def read_message(read: Callable[[int], bytes], max_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message with a function that returns exactly as many bytes as asked for, or raises `EOFError`."""
    header = json.loads(read(_length(read, _HEADER_BYTES)))
    count = int.from_bytes(read(_length(read, _SIZE)), "little")
    parts: list[bytes] = []
    for _ in range(count):
        size = _length(read, max_bytes)
        max_bytes -= size
        parts.append(read(size))
    return header, parts


def write_frame(to: IO[bytes], kind: bytes, payload: bytes | pa.Buffer) -> None:
    """Write a frame: a letter, the size and the content."""
    to.write(kind + len(payload).to_bytes(_SIZE, "little"))
    to.write(payload)
    to.flush()


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> tuple[bytes, bytes]:
    """Read a frame with a function as in `read_message`; raise `TooLarge` if the content has more than `max_bytes`."""
    return read(1), read(_length(read, max_bytes))


def _length(read: Callable[[int], bytes], limit: int) -> int:
    size = int.from_bytes(read(_SIZE), "little")
    if size > limit:
        raise TooLarge(f"{size} bytes, more than {limit}")
    return size


def file_identity(descriptor: int) -> list[int]:
    """What identifies the contents of an open file."""
    found = os.fstat(descriptor)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


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


WORKER: Final = "skiway.sandbox.worker"
_GRACE_S: Final = 2.0
"""How much longer than its limit SQL may take before its worker is killed: usually it can be interrupted."""


class Sandbox:
    """Runs foreign SQL over Arrow tables, with at most `memory_limit` and `timeout_s` for each call. It is thread-safe.

    `workers` calls run at a time; others wait. SQL can change nothing outside of its call.
    """

    def __init__(self, *, memory_limit: str = "1GB", timeout_s: float = 60.0, workers: int = 2) -> None:
        self.memory_limit, self.timeout_s = memory_limit, timeout_s
        self._memory_bytes = memory_bytes(memory_limit)
        self._workers = workers

    def select(
        self, rows: pa.Table, expression: str, *, of: Sequence[str] = (), what: str = "the SQL expression"
    ) -> pa.ChunkedArray:
        """The value of an expression for each row. Each of `of`, of which it is made, must be one expression itself."""
        (found,) = self._call({"select": expression, "expressions": list(of), "statements": []}, {"rows": rows}, what)
        return found.column(0)

    def run(
        self,
        statements: Sequence[str],
        *,
        expressions: Sequence[str] = (),
        what: str = "the SQL",
        **tables: pa.Table,
    ) -> list[pa.Table]:
        """The results of statements, which see `tables` by name. Each text must be exactly one statement.

        Each of `expressions` must be exactly one expression: they are parsed, and nothing else.
        """
        header = {"select": None, "expressions": list(expressions), "statements": list(statements)}
        return self._call(header, tables, what)

    def _call(self, header: Mapping[str, Any], tables: Mapping[str, pa.Table], what: str) -> list[pa.Table]:
        request = {**header, "tables": list(tables), "timeout_s": self.timeout_s}
        parts = [encode_table(table) for table in tables.values()]
        with _pool(self._memory_bytes, self._workers).worker() as worker:
            try:
                answer, found = worker.ask(request, parts, self.timeout_s + _GRACE_S, self._memory_bytes)
                if answer.get("error") == "memory":
                    worker.kill()  # it may not be able to return the memory
            except TimeoutError:
                raise self._late(what) from None
            except _Ended as ended:
                raise self._ended(what, ended.ending) from None
            except TooLarge:
                raise LimitExceeded(f"the result of {what} has more than {self.memory_limit}") from None
        match answer.get("error"):
            case None:
                try:
                    return [decode_table(part) for part in found]
                except pa.ArrowException as error:
                    reason = str(error).splitlines()[0]
                    raise InvalidArgument(f"{what} has invalid values: {reason}", key="sql.value") from error
            case "time":
                raise self._late(what)
            case "memory":
                raise self._too_large(what)
            case _:
                raise InvalidArgument(str(answer.get("message", "invalid SQL")))

    def _late(self, what: str) -> TimedOut:
        return TimedOut(f"{what} took longer than {self.timeout_s:g} s and was cancelled")

    def _ended(self, what: str, ending: Ending) -> SkiwayError:
        if ending.is_out_of_memory:
            return self._too_large(what)
        return Unavailable(f"the process of {what} ended unexpectedly with {ending.how}: try again", key="sql.ended")

    def _too_large(self, what: str) -> LimitExceeded:
        return LimitExceeded(f"{what} uses more than {self.memory_limit} of memory")


class _Pool:
    """The workers with one memory limit."""

    def __init__(self, memory_bytes: int, size: int) -> None:
        self._memory_bytes = memory_bytes
        self._free = threading.Semaphore(size)
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    @contextlib.contextmanager
    def worker(self) -> Iterator[_Worker]:
        """A worker for one call; it is kept for the next one unless the call ended in an error of the worker itself."""
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None or not worker.is_alive:
                if worker is not None:
                    worker.kill()  # closes its pipes
                worker = _Worker(self._memory_bytes)
            try:
                yield worker
            finally:
                if worker.is_alive:
                    with self._lock:
                        self._idle.append(worker)

    def close(self) -> None:
        with self._lock:
            for worker in self._idle:
                worker.kill()
            self._idle.clear()


_pool = cache(_Pool)


class _Ended(Exception):
    """A worker has ended during a call."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.how)
        self.ending = ending


class _Worker(WorkerProcess):
    def __init__(self, memory: int) -> None:
        super().__init__(WORKER, memory)

    def ask(
        self, header: Mapping[str, Any], parts: list[pa.Buffer], timeout_s: float, max_bytes: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and wait for the answer; after any failure the worker is killed."""
        deadline = time.monotonic() + timeout_s
        is_running, lock = True, threading.Lock()

        def expire() -> None:
            with lock:
                if is_running:  # otherwise the worker may already serve the next call
                    self.stop()

        watchdog = threading.Timer(timeout_s, expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            self.send(header, parts)
            return read_message(lambda size: self.read(size, deadline), max_bytes)
        except (EOFError, OSError):
            if time.monotonic() >= deadline:
                self.kill()
                raise TimeoutError from None
            ending = self.ending()
            self.kill()
            raise _Ended(ending) from None
        except BaseException:
            self.kill()
            raise
        finally:
            watchdog.cancel()
            with lock:
                is_running = False

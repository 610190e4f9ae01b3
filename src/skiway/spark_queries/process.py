"""The server's end of the process of a query or a function."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from skiway.airport.wire.sizes import check_message, check_values
from skiway.errors import InvalidArgument, LimitExceeded, Unavailable
from skiway.sandbox.processes import TooLarge, read_frame, read_until
from skiway.spark_queries.supervisor import MOST_PROCESSES, OUT_OF_MEMORY, TOO_MANY_PROCESSES, UNPROTECTED, unprotected

_MAX_MESSAGE: Final = 1 << 30
_END_S: Final = 20.0
_LOG_LINES: Final = 40
_MALFORMED: Final = (pa.ArrowException, ValueError, IndexError, OSError)
_MAX_LINE: Final = 1000
_MAX_ERROR: Final = 2000
_VARIABLES: Final = ("PATH", "JAVA_HOME", "PYTHONPATH", "TMPDIR")
"""What the processes get of the server's environment. None of it is secret."""

log = logging.getLogger("skiway.spark_queries")


class QueryProcess:
    """A query or function that runs in processes of its own. It begins at once, and sends its rows when they are read.

    Errors call it `noun`, and `section` has the settings that limit it. `on_line` gets each line that the processes print, and
    `output` says where callers find them.
    """

    def __init__(
        self,
        query: Mapping[str, Any],
        *,
        command: Sequence[str],
        memory_bytes: int,
        seconds: float,
        noun: str = "query",
        section: str = "sql.spark",
        on_line: Callable[[str], None] = lambda _: None,
        output: str = "the log of the server",
    ) -> None:
        self.deadline = time.monotonic() + seconds
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._noun, self._section, self._on_line, self._output = noun, section, on_line, output
        python = list(command) or [sys.executable]
        protection = [f"--protect={os.geteuid()}"] if query.get("confined") and query.get("protected", True) else []
        self._process = subprocess.Popen(  # noqa: S603 - the operator's command
            [*python, "-P", "-m", "skiway.spark_queries.supervisor", *protection, str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()
        self._columns: pa.Schema | None = None
        self._is_late = self._is_cancelled = False
        self._said = deque[str](maxlen=_LOG_LINES)
        self._secret = query["token"]
        self._reader = threading.Thread(target=self._drain, name="spark-query-output", daemon=True)
        self._reader.start()
        self._send(json.dumps(query).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The id of the supervisor."""
        return self._process.pid

    def columns(self) -> pa.Schema:
        """The columns, once Spark knows them."""
        with self._lock:
            if self._columns is None:
                kind, payload = self._message()
                if kind != b"S":
                    raise self._broken()
                try:
                    self._columns = pa.ipc.read_schema(pa.py_buffer(payload))
                except _MALFORMED:
                    raise self._broken() from None
            return self._columns

    def rows(self, most: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, at most `most` of them."""
        columns, seen = self.columns(), 0
        self._send(b"\n")
        while True:
            kind, payload = self._message()
            if kind == b".":
                return
            if kind != b"B":
                raise self._broken()
            try:
                batch = _batch(payload, columns)
            except _MALFORMED:
                raise self._broken() from None
            seen += batch.num_rows
            if most is not None and seen > most:
                raise LimitExceeded(
                    f"the query returns more than {most} rows, the limit of this server (sql.spark.max_rows): aggregate, or "
                    "write a condition or LIMIT",
                    key="spark.rows",
                )
            yield batch

    def cancel(self, *, late: bool = False) -> None:
        """End the query soon; its reader gets an error. Does not wait."""
        if self._is_cancelled:
            return
        self._is_late, self._is_cancelled = late, True
        with contextlib.suppress(OSError, ValueError):
            self._requests.close()  # the supervisor sees the end of its input
        timer = threading.Timer(_END_S, self._kill)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the query with all its processes and files."""
        self.cancel()
        self._process.wait()
        self._reader.join(_END_S)
        self._answers.close()

    def _kill(self) -> None:
        """Kill processes that have not ended by themselves."""
        if self._process.poll() is None:
            log.warning("the processes of a query on Spark did not end within %.0f s; killing them", _END_S)
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # its end is noticed when the answer is read
            self._requests.write(data)
            self._requests.flush()

    def _message(self) -> tuple[bytes, bytes]:
        descriptor, deadline = self._answers.fileno(), self.deadline + _END_S
        try:
            kind, payload = read_frame(lambda size: read_until(descriptor, size, deadline), _MAX_MESSAGE)
        except TooLarge:
            raise self._broken() from None
        except (EOFError, TimeoutError, OSError, ValueError) as error:
            raise self._ended() from error
        if kind == b"E":
            raise InvalidArgument(f"Spark rejects the {self._noun}: {_line(payload)}", key="spark.query")
        if kind == b"F":
            raise InvalidArgument(f"the {self._noun} failed: {_line(payload)}", key="spark.code")
        return kind, payload

    def _ended(self) -> Exception:
        if self._is_late:
            return LimitExceeded(
                f"the {self._noun} took longer than {self._seconds:g} s, the limit of this server "
                f"({self._section}.timeout_seconds)",
                key="spark.time",
            )
        if self._is_cancelled:
            return Unavailable(f"the {self._noun} was cancelled", key="spark.cancelled")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._reader.join(1.0)
        if self._process.returncode == OUT_OF_MEMORY:
            return LimitExceeded(
                f"the {self._noun} used more than {self._memory_bytes // 1_000_000} MB of memory, the limit of this server "
                f"({self._section}.memory_limit)",
                key="spark.memory",
            )
        if self._process.returncode == TOO_MANY_PROCESSES:
            return LimitExceeded(
                f"the {self._noun} started more than {MOST_PROCESSES} processes, the limit of this server",
                key="spark.processes",
            )
        if self._process.returncode == UNPROTECTED:
            return unprotected()
        return self._broken()

    def _broken(self) -> Unavailable:
        log.warning(
            "the process of a %s on Spark ended with %s: %s",
            self._noun,
            self._process.returncode,
            " | ".join(self._said),
        )
        return Unavailable(
            f"the process of the {self._noun} on Spark did not start, or has failed: {self._output} says why",
            key="spark.process",
        )

    def _drain(self) -> None:
        """Keep the last lines that the processes print, for the log. Of a long line, each part counts as one."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            while line := lines.readline(_MAX_LINE):
                said = line.decode(errors="replace").strip().replace(self._secret, "****")
                self._said.append(said)
                self._on_line(said)


def _batch(payload: bytes, columns: pa.Schema) -> pa.RecordBatch:
    """A batch that was made by a process that runs code of callers. Raise if it is malformed, or too large when decoded."""
    start = 8 if payload[:4] == b"\xff\xff\xff\xff" else 4
    size = int.from_bytes(payload[start - 4 : start], "little")
    check_message(payload[start : start + size], memoryview(payload)[start + size :], _MAX_MESSAGE)
    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), columns)
    batch.validate(full=True)
    check_values(batch.columns, _MAX_MESSAGE)
    return batch


def _line(payload: bytes) -> str:
    """An error that arrived from a process, as one line without characters that could change a terminal or a log."""
    text = " ".join(payload[:_MAX_ERROR].decode(errors="replace").split())
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)

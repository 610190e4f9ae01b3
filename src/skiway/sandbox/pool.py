"""The server's side of the sandbox: workers, started when they are needed and killed when they take too long."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, TimedOut, Unavailable
from skiway.sandbox.messages import TooLarge, decode_table, encode_table, read_message
from skiway.sandbox.processes import Ending, WorkerProcess, memory_bytes

__all__ = ["Sandbox"]

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

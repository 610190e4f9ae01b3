"""Queries of callers, streamed: the server's side.

A query runs in a worker process of its own kind. Its relations are Parquet files that DuckDB reads itself, those in object stores
through the server (`remote_files`), or scans: DuckDB asks for columns of a relation, and the server sends the rows through a
pipe. Rows of the result are streamed, too, so neither side holds more than a few batches, and a client that reads slowly slows
down the query.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, SkiwayError, TimedOut, Unavailable
from skiway.foundation.causes import invalid_values
from skiway.sandbox.processes import (
    FILES_AT_ONCE,
    KEPT,
    SEND_FILES,
    TooLarge,
    WorkerProcess,
    encode_table,
    file_identity,
    memory_bytes,
    read_frame,
)
from skiway.sandbox.relations import BoundQuery, Expression, NamedTable, Parsed, Relation, ScanServer, StoredQuery

WORKER: Final = "skiway.sandbox.query_worker"
_INSIDE: Final = "\0inside"
"""Owns the queries that run inside others."""

_INNER_QUERIES: Final = 4
"""How many queries may run inside others, for each that may run."""

_MAX_KEPT_FILES: Final = 64
"""How many files of its last query a process may keep open."""


class Queries:
    """Runs queries in worker processes, each with at most `memory_limit` and `timeout_s`. It is thread-safe.

    `workers` queries run at a time; one owner may use all but one of them, so that others do not wait for it. An idle process
    keeps the files of its last query open for `keep_s`, which saves time if the next query reads the same ones.
    """

    def __init__(
        self,
        *,
        memory_limit: str = "1GB",
        timeout_s: float = 300.0,
        workers: int = 4,
        threads: int = 2,
        wait_s: float = 10.0,
        keep_s: float = 30.0,
    ) -> None:
        self.memory_limit, self.timeout_s = memory_limit, timeout_s
        self._memory_bytes, self._threads = memory_bytes(memory_limit), threads
        self._workers, self._wait_s, self._keep_s = workers, wait_s, keep_s
        self._idle: list[QueryProcess] = []
        self._used: Counter[str] = Counter()
        self._changed = threading.Condition()
        atexit.register(self.close)

    def start(self, owner: str = "", *, inside: bool = False) -> QueryProcess:
        """A process for one query; close it afterwards. `LimitExceeded` if all stay busy.

        A query that runs `inside` another one, which reads its rows, does not wait for others: those may be waiting, too.
        """
        share, began = max(1, self._workers - 1), time.monotonic()
        with self._changed:
            if inside:
                owner = _INSIDE
                free = self._used[owner] < self._workers * _INNER_QUERIES
            else:
                free = self._changed.wait_for(
                    lambda: self._used.total() - self._used[_INSIDE] < self._workers and self._used[owner] < share,
                    self._wait_s,
                )
            if not free:
                raise LimitExceeded(
                    f"all {share} queries that may run at a time are running: try again later", key="sql.busy"
                )
            self._used[owner] += 1
            process = self._idle_process(owner)
        waited_s = time.monotonic() - began
        try:
            if process is not None and not process.is_alive:
                process.kill()
                process = None
            if process is None:
                process = QueryProcess(self, self._memory_bytes, self._threads, self._keep_s)
            process.begin(owner)
            process.waited_s = waited_s
        except BaseException:
            self._leave(owner)
            raise
        return process

    def _idle_process(self, owner: str) -> QueryProcess | None:
        """The idle process that the owner used last, because of the files that it keeps, or else the one that is idle longest."""
        if not self._idle:
            return None
        used = [number for number, each in enumerate(self._idle) if each.owner == owner]
        return self._idle.pop(used[-1] if used else 0)

    def give_back(self, process: QueryProcess, owner: str) -> None:
        """Take back a process, which is kept for the next query if it still works."""
        if process.is_alive:
            with self._changed:
                self._idle.append(process)
        self._leave(owner)

    def _leave(self, owner: str) -> None:
        with self._changed:
            self._used[owner] -= 1
            self._used += Counter()  # drops zeros
            self._changed.notify_all()

    def close(self) -> None:
        """Kill the idle processes."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()


class QueryProcess:
    """A worker process while it serves one query: `parse` it, `run` it, and `close`."""

    def __init__(self, queries: Queries, memory: int, threads: int, keep_s: float) -> None:
        self._queries, self._max_bytes = queries, memory
        self._socket, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess(
                WORKER, theirs.fileno(), memory, threads, keep_s, descriptors=[theirs.fileno()]
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._scans = ScanServer(self._socket)
        self._is_clean, self.owner = True, ""
        self._deadline = self.waited_s = 0.0
        self.profile = ""
        self._watchdog: threading.Timer | None = None
        self._turn, self._lock = 0, threading.Lock()
        self._is_cancelled = False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can serve a query."""
        return self._process.is_alive

    def begin(self, owner: str) -> None:
        """Start the time of a query."""
        self.owner, self._is_clean, self._is_cancelled, self.profile = owner, True, False, ""
        self._deadline = time.monotonic() + self._queries.timeout_s
        self._watchdog = threading.Timer(self._queries.timeout_s, self._stopper())
        self._watchdog.daemon = True
        self._watchdog.start()

    def canceller(self) -> Callable[[], None]:
        """A function that ends the current query, in any thread. It does nothing once the query has ended."""
        return self._stopper(is_cancelled=True)

    def _stopper(self, *, is_cancelled: bool = False) -> Callable[[], None]:
        """A function that ends the current query, but not the next one that the process serves."""
        turn = self._turn

        def stop() -> None:
            with self._lock:
                if self._turn == turn:
                    self._is_cancelled = self._is_cancelled or is_cancelled
                    self._process.stop()

        return stop

    def bind(self, sql: str, values: pa.Table | None, types: Sequence[str] = ()) -> BoundQuery:
        """The query with the values of one row instead of its parameters; with NULL if there are no values.

        Values are cast to `types`, those of the parameters, if that does not change them.
        """
        self._send({"bind": sql, "types": list(types)}, [] if values is None else [encode_table(values)])
        kind, payload = self._frame()
        if kind != b"P":
            raise self._error(kind, payload)
        found = json.loads(payload)
        return BoundQuery(found["sql"], found["parameters"])

    def parse(self, sql: str, *, prefix: str = "then") -> Parsed:
        """The tables of a query; `InvalidArgument` unless the text is exactly one query.

        The names of tables with a point in time begin with `prefix`, which must differ among texts that run together.
        """
        self._send({"parse": sql, "prefix": prefix}, [])
        kind, payload = self._frame()
        if kind != b"P":
            raise self._error(kind, payload)
        found = json.loads(payload)
        tables = [
            NamedTable(
                tuple(each["name"]), each.get("unit", ""), each.get("value", ""), each.get("as", ""), each["is_defined"]
            )
            for each in found["tables"]
        ]
        return Parsed(found["sql"], tables)

    def expressions(self, texts: Sequence[str], claims: Mapping[str, Any]) -> list[Expression]:
        """Compile expressions, in which `caller('name')` is the value of a claim; `InvalidArgument` if one is not allowed.

        Allowed are expressions that read nothing but the columns of one row.
        """
        self._send({"expressions": list(texts), "claims": dict(claims)}, [])
        kind, payload = self._frame()
        if kind != b"P":
            raise self._error(kind, payload)
        return [Expression(each["sql"], each["columns"]) for each in json.loads(payload)]

    def run(
        self,
        sql: str,
        relations: Sequence[Relation],
        *,
        default: Sequence[str],
        views: Sequence[StoredQuery] = (),
        describe: bool = False,
        plain: bool = False,
        explain: bool = False,
        parameters: bool = False,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns and the rows of a query.

        Names without a catalog are looked up in `default`, a catalog and optionally a schema. Each of `views` may read
        the relations and the views before it. With `describe`, there are no rows, and no file is opened. With `plain`,
        values that have extension types in Arrow, such as BOOLEAN and UUID, are returned in types that every client knows.
        With `explain`, the only row is DuckDB's plan, and nothing is read but the metadata of files. With `describe` and
        `parameters`, the rows are the types that DuckDB expects of the parameters, in their order; empty where it cannot tell.
        """
        header: dict[str, Any] = {
            "sql": sql,
            "default": list(default),
            "describe": describe,
            "plain": plain,
            "explain": explain,
            "parameters": parameters,
        }
        header["relations"] = []
        header["views"] = [{"name": list(each.name), "sql": each.sql} for each in views]
        parts: list[pa.Buffer] = []
        for each in relations:
            entry: dict[str, Any] = {"name": list(each.name)}
            if each.files:
                entry["files"] = [
                    {
                        "count": 0 if describe else len(group.files),
                        "remote": 0 if describe else len(group.remote),
                        "columns": [asdict(column) for column in group.columns],
                    }
                    for group in each.files
                ]
            else:
                entry["schema"] = len(parts)
                parts.append(each.schema.serialize())
            header["relations"].append(entry)
        self._scans.serve(relations)
        self._is_clean = False
        if describe:
            self._send(header, parts)
        else:
            self._send_with_files(header, parts, relations)
        kind, payload = self._frame()
        if kind != b"S":
            raise self._error(kind, payload)
        schema = pa.schema(map(_unregistered, pa.ipc.read_schema(pa.py_buffer(payload))))
        return schema, self._batches(schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            kind, payload = self._frame()
            if kind == b"B":
                try:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
                    batch.validate(full=True)  # the process runs foreign SQL
                except pa.ArrowException as error:
                    reason = invalid_values(error, schema.names)
                    raise InvalidArgument(f"the result has invalid values: {reason}", key="sql.value") from error
                yield batch
            elif kind == b".":
                self._scans.check()
                self._is_clean = True
                self.profile = payload.decode("utf-8", "replace")
                return
            else:
                raise self._error(kind, payload)

    def close(self) -> None:
        """Return the process, or kill it if the query has not ended."""
        if self._watchdog is None:
            return
        self._watchdog.cancel()
        self._watchdog = None
        with self._lock:
            self._turn += 1
        self._scans.serve(())
        if not self._is_clean or not self.is_alive:
            self.kill()
        self._queries.give_back(self, self.owner)

    def kill(self) -> None:
        """End the process at once, and close everything that belongs to it."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the thread that reads from it
        self._socket.close()

    def _send(self, header: Mapping[str, Any], parts: list[pa.Buffer]) -> None:
        try:
            self._process.send(header, parts)
        except OSError:
            raise self._ended() from None

    def _send_with_files(self, header: dict[str, Any], parts: list[pa.Buffer], relations: Sequence[Relation]) -> None:
        """Send a query, and its files unless the process has kept them: it has no access to their folders.

        A process keeps the files of its last query if DuckDB reads all of its relations itself. They are opened here for
        each query, so it is checked that the caller may read them, and that they have not been replaced.
        """
        files = [opens for each in relations for group in each.files for opens in group.files]
        is_direct = all(each.files and not any(group.remote for group in each.files) for each in relations)
        can_keep = is_direct and len(files) <= _MAX_KEPT_FILES
        with _opened(files if can_keep else ()) as descriptors:
            header["owner"] = self.owner
            header["identities"] = [file_identity(each) for each in descriptors] if can_keep else None
            self._send(header, parts)
            kind, payload = self._frame()
            if kind == KEPT:
                return
            if kind != SEND_FILES:
                raise self._error(kind, payload)
            if can_keep:
                self._send_files(descriptors)
                return
        upcoming = iter(files)
        while some := list(islice(upcoming, FILES_AT_ONCE)):
            with _opened(some) as descriptors:
                self._send_files(descriptors)

    def _send_files(self, descriptors: Sequence[int]) -> None:
        try:
            if descriptors:
                socket.send_fds(self._socket, [b"."], descriptors)
        except OSError:
            raise self._ended() from None

    def _frame(self) -> tuple[bytes, bytes]:
        try:
            return read_frame(lambda size: self._process.read(size, self._deadline), self._max_bytes)
        except TooLarge:
            self._is_clean = False
            raise self._too_large() from None
        except TimeoutError:
            self._is_clean = False
            raise self._late() from None
        except (EOFError, OSError):
            raise self._ended() from None

    def _error(self, kind: bytes, payload: bytes) -> SkiwayError:
        """The error of a query that failed. A scan that failed is the cause."""
        self._is_clean = kind == b"E"
        self._scans.check()
        if kind == b"M":
            return self._too_large()
        if kind == b"F":
            found = payload.decode("utf-8", "replace")
            return Unavailable(f"DuckDB failed while it ran the query: {found}: try again", key="sql.ended")
        return InvalidArgument(payload.decode("utf-8", "replace") or "invalid SQL", key="sql.invalid")

    def _ended(self) -> SkiwayError:
        """The error of a process that has ended: it was stopped, had too little memory, or crashed."""
        self._is_clean = False
        if self._is_cancelled:
            return Cancelled("the client cancelled the query", key="client.gone")
        self._scans.check()
        if time.monotonic() >= self._deadline:
            return self._late()
        ending = self._process.ending()
        if ending.is_out_of_memory:
            return self._too_large()
        return Unavailable(f"the process of the query ended unexpectedly with {ending.how}: try again", key="sql.ended")

    def _late(self) -> TimedOut:
        return TimedOut(
            f"the query took longer than {self._queries.timeout_s:g} s and was cancelled", key="sql.timeout"
        )

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(
            f"the query uses more than {self._queries.memory_limit} of memory: read fewer columns or rows, or aggregate less",
            key="sql.memory",
        )


def _unregistered(column: pa.Field) -> pa.Field:
    """A column whose type does not depend on whether a library has registered geometries with pyarrow since the last call."""
    metadata = dict(column.metadata or {})
    if isinstance(column.type, pa.ExtensionType):
        metadata[b"ARROW:extension:name"] = column.type.extension_name.encode()
        metadata[b"ARROW:extension:metadata"] = column.type.__arrow_ext_serialize__()
        column = column.with_type(column.type.storage_type)
    if metadata.get(b"ARROW:extension:name") == b"geoarrow.wkb":
        details = json.loads(metadata.get(b"ARROW:extension:metadata") or b"{}")
        metadata[b"ARROW:extension:metadata"] = json.dumps(details, sort_keys=True).encode()
    return column.with_metadata(metadata or None)


@contextlib.contextmanager
def _opened(files: Iterable[Callable[[], int]]) -> Iterator[list[int]]:
    """Open files, and close them after the block."""
    descriptors = list[int]()
    with contextlib.ExitStack() as opened:
        for opens in files:
            descriptors.append(opens())
            opened.callback(os.close, descriptors[-1])
        yield descriptors

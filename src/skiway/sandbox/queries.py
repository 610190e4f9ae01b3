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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, SkiwayError, TimedOut
from skiway.sandbox.messages import FILES_AT_ONCE, encode_table
from skiway.sandbox.processes import WorkerProcess, memory_bytes
from skiway.sandbox.remote_files import ReadableFile, RemoteFiles, serve_channel

__all__ = [
    "BoundQuery",
    "Expression",
    "FileColumn",
    "FileGroup",
    "NamedTable",
    "Parsed",
    "Queries",
    "QueryProcess",
    "Relation",
    "StoredQuery",
    "TableName",
]

WORKER: Final = "skiway.sandbox.query_worker"
_MAX_LINE: Final = 1 << 20
_MAX_SCANS: Final = 64
"""How many scans of one query may be open at a time."""

_INSIDE: Final = "\0inside"
"""Owns the queries that run inside others."""

_INNER_QUERIES: Final = 4
"""How many queries may run inside others, for each that may run."""

TableName = tuple[str, str, str]
"""Catalog, schema and table, as the query names them."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a table in Parquet files: its name and its type in DuckDB, and its name in the files.

    A column that the files do not have is the same `value`, as text, in all rows. `is_widened` means that the files have
    the column in another type.
    """

    name: str
    type: str
    stored_as: str | None = None
    value: str | None = None
    is_widened: bool = False


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Parquet files with the same columns. Each of `files` opens a file, and returns its descriptor.

    Each of `remote` opens a file of an object store, which the server reads for DuckDB.
    """

    files: Sequence[Callable[[], int]]
    columns: Sequence[FileColumn]
    remote: Sequence[Callable[[], ReadableFile]] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of a query. DuckDB reads `files` itself, if there are any, else `scan` returns batches of some columns."""

    name: TableName
    schema: pa.Schema
    scan: Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
    files: Sequence[FileGroup] = ()


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A view of a query. Names without a schema in its SQL are those of its own schema."""

    name: TableName
    sql: str


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that a query names; `unit` and `value` are its point in time, and `alias` is its name in the rewritten query.

    With `is_defined`, the name may be that of a common table expression of the query.
    """

    name: TableName
    unit: str = ""
    value: str = ""
    alias: str = ""
    is_defined: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query: its tables, and its text, in which tables with a point in time have other names."""

    sql: str
    tables: Sequence[NamedTable]


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query with constants instead of its parameters, and the names of these."""

    sql: str
    parameters: Sequence[str]


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression over the columns of a row, in DuckDB's own spelling, and the columns that it reads."""

    sql: str
    columns: Sequence[str]


class Queries:
    """Runs queries in worker processes, each with at most `memory_limit` and `timeout_s`. It is thread-safe.

    `workers` queries run at a time; one owner may use all but one of them, so that others do not wait for it.
    """

    def __init__(
        self,
        *,
        memory_limit: str = "1GB",
        timeout_s: float = 300.0,
        workers: int = 4,
        threads: int = 2,
        wait_s: float = 10.0,
    ) -> None:
        self.memory_limit, self.timeout_s = memory_limit, timeout_s
        self._memory_bytes, self._threads = memory_bytes(memory_limit), threads
        self._workers, self._wait_s = workers, wait_s
        self._idle: list[QueryProcess] = []
        self._used: Counter[str] = Counter()
        self._changed = threading.Condition()
        atexit.register(self.close)

    def start(self, owner: str = "", *, inside: bool = False) -> QueryProcess:
        """A process for one query; close it afterwards. `LimitExceeded` if all stay busy.

        A query that runs `inside` another one, which reads its rows, does not wait for others: those may be waiting, too.
        """
        share = max(1, self._workers - 1)
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
            process = self._idle.pop() if self._idle else None
        try:
            if process is not None and not process.is_alive:
                process.kill()
                process = None
            if process is None:
                process = QueryProcess(self, self._memory_bytes, self._threads)
            process.begin(owner)
        except BaseException:
            self._leave(owner)
            raise
        return process

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

    def __init__(self, queries: Queries, memory: int, threads: int) -> None:
        self._queries, self._max_bytes = queries, memory
        self._socket, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess(WORKER, theirs.fileno(), memory, threads, descriptors=[theirs.fileno()])
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._scans = _ScanServer(self._socket)
        self._is_clean, self._owner = True, ""
        self._deadline = 0.0
        self._watchdog: threading.Timer | None = None
        self._turn, self._lock = 0, threading.Lock()
        self._is_cancelled = False

    @property
    def is_alive(self) -> bool:
        """Whether it can serve a query."""
        return self._process.is_alive

    def begin(self, owner: str) -> None:
        """Start the time of a query."""
        self._owner, self._is_clean, self._is_cancelled = owner, True, False
        self._deadline = time.monotonic() + self._queries.timeout_s
        self._watchdog = threading.Timer(self._queries.timeout_s, self._process.stop)
        self._watchdog.daemon = True
        self._watchdog.start()

    def canceller(self) -> Callable[[], None]:
        """A function that ends the current query, in any thread. It does nothing once the query has ended."""
        turn = self._turn

        def cancel() -> None:
            with self._lock:
                if self._turn == turn:
                    self._is_cancelled = True
                    self._process.stop()

        return cancel

    def bind(self, sql: str, values: pa.Table | None) -> BoundQuery:
        """The query with the values of one row instead of its parameters; with NULL if there are no values."""
        self._send({"bind": sql}, [] if values is None else [encode_table(values)])
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
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns and the rows of a query.

        Names without a catalog are looked up in `default`, a catalog and optionally a schema. Each of `views` may read
        the relations and the views before it. With `describe`, there are no rows, and no file is opened. With `plain`,
        values that have extension types in Arrow, such as BOOLEAN and UUID, are returned in types that every client knows.
        With `explain`, the only row is DuckDB's plan, and nothing is read but the metadata of files.
        """
        header: dict[str, Any] = {
            "sql": sql,
            "default": list(default),
            "describe": describe,
            "plain": plain,
            "explain": explain,
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
                parts.append(encode_table(each.schema.empty_table()))
            header["relations"].append(entry)
        self._scans.serve(relations)
        self._is_clean = False
        self._send(header, parts)
        if not describe:
            self._send_files(opens for each in relations for group in each.files for opens in group.files)
        kind, payload = self._frame()
        if kind != b"S":
            raise self._error(kind, payload)
        schema = pa.ipc.read_schema(pa.py_buffer(payload))
        return schema, self._batches(schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        while True:
            kind, payload = self._frame()
            if kind == b"B":
                batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
                batch.validate(full=True)  # the process runs foreign SQL
                yield batch
            elif kind == b".":
                self._scans.check()
                self._is_clean = True
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
        self._queries.give_back(self, self._owner)

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

    def _send_files(self, files: Iterable[Callable[[], int]]) -> None:
        """Open files, and give them to the process: it has no access to their folders."""
        upcoming = iter(files)
        while some := list(islice(upcoming, FILES_AT_ONCE)):
            with contextlib.ExitStack() as opened:
                descriptors = []
                for opens in some:
                    descriptors.append(opens())
                    opened.callback(os.close, descriptors[-1])
                try:
                    socket.send_fds(self._socket, [b"."], descriptors)
                except OSError:
                    raise self._ended() from None

    def _frame(self) -> tuple[bytes, bytes]:
        try:
            head = self._process.read(9, self._deadline)
            size = int.from_bytes(head[1:], "little")
            if size > self._max_bytes:
                raise EOFError
            return head[:1], self._process.read(size, self._deadline)
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
        return InvalidArgument(payload.decode("utf-8", "replace") or "invalid SQL", key="sql.invalid")

    def _ended(self) -> SkiwayError:
        """The error of a process that has ended: it was killed by a limit, or crashed."""
        self._is_clean = False
        if self._is_cancelled:
            return Cancelled("the client cancelled the query", key="client.gone")
        self._scans.check()
        return self._late() if time.monotonic() >= self._deadline else self._too_large()

    def _late(self) -> TimedOut:
        return TimedOut(
            f"the query took longer than {self._queries.timeout_s:g} s and was cancelled", key="sql.timeout"
        )

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(
            f"the query uses more than {self._queries.memory_limit} of memory: read fewer columns or rows, or aggregate less",
            key="sql.memory",
        )


@dataclass
class _ScanServer:
    """Answers the requests of a process for rows: each gets a pipe, and a thread that writes the batches to it."""

    socket: socket.socket
    relations: Sequence[Relation] = ()
    failures: list[BaseException] = field(default_factory=list)
    context: Context = field(default_factory=Context)
    remote: RemoteFiles = field(default_factory=lambda: RemoteFiles(()))
    _open: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MAX_SCANS))

    def __post_init__(self) -> None:
        threading.Thread(target=self._answer, name="query-scans", daemon=True).start()

    def serve(self, relations: Sequence[Relation]) -> None:
        """Serve these relations from now on, in the context of the caller."""
        self.relations, self.failures, self.context = relations, [], copy_context()
        self.remote = RemoteFiles([opens for each in relations for group in each.files for opens in group.remote])

    def check(self) -> None:
        """Raise the first error of a scan, if there is one."""
        if self.failures:
            raise self.failures[0]

    def _answer(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError), self.socket.makefile("rb") as requests:
            while line := requests.readline(_MAX_LINE):
                wanted = json.loads(line)
                if "files" in wanted:  # a channel in which the process asks for ranges of the remote files of its query
                    channel, own = socket.socketpair()
                    self._hand_over(channel.detach(), partial(serve_channel, own, self.remote, self.failures))
                    continue
                relation = self.relations[int(wanted["relation"])]
                columns = [relation.schema.field(str(name)).name for name in wanted["columns"]]
                pipe, ours = os.pipe()
                self._hand_over(pipe, partial(_send, relation, columns, ours, self.failures))

    def _hand_over(self, descriptor: int, serve: Callable[[], None]) -> None:
        """Give one end of a connection to the process, and serve the other one on a thread, in the context of the caller."""
        self._open.acquire()
        try:
            socket.send_fds(self.socket, [b"."], [descriptor])
        finally:
            os.close(descriptor)

        def run() -> None:
            serve()
            self._open.release()

        threading.Thread(target=self.context.copy().run, args=(run,), name="query-scan", daemon=True).start()


def _send(relation: Relation, columns: Sequence[str], pipe: int, failures: list[BaseException]) -> None:
    """Write the rows of a scan to a pipe, until the process stops reading."""
    schema = pa.schema([relation.schema.field(name) for name in columns])
    batches = _until_failure(relation.scan, columns, failures)
    with (
        contextlib.suppress(OSError),  # the process may stop reading at any time
        contextlib.closing(batches),
        os.fdopen(pipe, "wb") as file,
        pa.ipc.new_stream(file, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def _until_failure(
    scan: Callable[[Sequence[str]], Iterable[pa.RecordBatch]], columns: Sequence[str], failures: list[BaseException]
) -> Generator[pa.RecordBatch]:
    """The batches of a scan. A failure is remembered before the pipe is closed, which would look like the end of the rows."""
    try:
        yield from scan(columns)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - raised to the caller by `check`
        failures.append(error)

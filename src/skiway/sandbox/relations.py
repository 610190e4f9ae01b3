"""What a query reads, and how it reaches the query's process: rows of scans through pipes, and ranges of remote files.

DuckDB asks for ranges of bytes of files in object stores, and the server reads them. So the process of the query has neither credentials
nor access to a network, and can read the given files only. It asks over channels, which are sockets; as many as it needs to read at
a time. A request is the number of a file, an offset and a size. The response is the number of bytes and the bytes; if there is no response,
the server has failed to read, and knows why. A request for a negative size returns the size of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import pyarrow as pa

_REQUEST: Final = struct.Struct("<qqq")
_COUNT: Final = struct.Struct("<q")
_PIECE_BYTES: Final = 4 << 20
"""How much the server reads at a time."""


class ReadableFile(Protocol):
    """An open file, such as one of Arrow. Several threads may read it."""

    def size(self) -> int:
        """The size in bytes."""

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Up to `nbytes` bytes from `offset` on."""


class RemoteFiles:
    """The files of one query by number. Each is opened once, when it is read first."""

    def __init__(self, openers: Sequence[Callable[[], ReadableFile]]) -> None:
        self._openers = openers
        self._locks = [threading.Lock() for _ in openers]
        self._opened: dict[int, ReadableFile] = {}

    def __getitem__(self, number: int) -> ReadableFile:
        if not 0 <= number < len(self._openers):
            raise IndexError(number)
        with self._locks[number]:
            if number not in self._opened:
                self._opened[number] = self._openers[number]()
            return self._opened[number]


def serve_channel(channel: socket.socket, files: RemoteFiles, failures: list[BaseException]) -> None:
    """Answer the requests that arrive in a channel, until it is closed. A failure is remembered, and closes it."""
    with channel, contextlib.suppress(OSError, EOFError):  # the process may end at any time
        while True:
            number, offset, size = _REQUEST.unpack(_exactly(channel, _REQUEST.size))
            try:
                file = files[number]
                end = file.size()
            except BaseException as error:  # noqa: BLE001 - raised to the caller of the query
                failures.append(error)
                return
            if size < 0:
                channel.sendall(_COUNT.pack(_COUNT.size) + _COUNT.pack(end))
                continue
            count = max(0, min(size, end - offset)) if offset >= 0 else 0
            channel.sendall(_COUNT.pack(count))
            if not _send_range(channel, file, offset, count, failures):
                return


def _send_range(
    channel: socket.socket, file: ReadableFile, offset: int, count: int, failures: list[BaseException]
) -> bool:
    """Send a range of a file in pieces; return whether all of it could be read."""
    while count > 0:
        try:
            piece = file.read_at(min(count, _PIECE_BYTES), offset)
            if not piece:
                raise EOFError("the file is shorter than before")
        except BaseException as error:  # noqa: BLE001 - raised to the caller of the query
            failures.append(error)
            return False
        channel.sendall(piece)
        offset, count = offset + len(piece), count - len(piece)
    return True


class Channel:
    """The other end of a channel, in the process of the query."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def size(self, number: int) -> int:
        """The size of a file."""
        found: int = _COUNT.unpack(self._ask(number, 0, -1))[0]
        return found

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a file from `offset` on."""
        return self._ask(number, offset, size)

    def close(self) -> None:
        """End the channel."""
        self._socket.close()

    def _ask(self, number: int, offset: int, size: int) -> bytes:
        self._socket.sendall(_REQUEST.pack(number, offset, size))
        (count,) = _COUNT.unpack(_exactly(self._socket, _COUNT.size))
        return _exactly(self._socket, count)


def _exactly(connected: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view, seen = memoryview(data), 0
    while seen < count:
        found = connected.recv_into(view[seen:])
        if not found:
            raise EOFError("the channel was closed")
        seen += found
    return bytes(data)


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


_MAX_LINE: Final = 1 << 20
_MAX_SCANS: Final = 64
"""How many scans of one query may be open at a time."""


@dataclass
class ScanServer:
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

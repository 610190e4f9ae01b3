"""The DuckDBs of a process that runs queries.

A query runs in a DuckDB of its own: its relations are created first, then access to everything but their files is disabled and
the configuration is locked, and then the query runs. A new DuckDB takes 10 ms of CPU, so the process has one ready, and keeps
that of the last query for a query over the same files.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from skiway.sandbox.messages import FILES_AT_ONCE, file_identity
from skiway.sandbox.query_relations import ServerScan, file_scan, scan_columns
from skiway.sandbox.remote_files import Channel
from skiway.sandbox.syntax import literal, quoted

if TYPE_CHECKING:
    from skiway.sandbox.query_files import ServerFiles

__all__ = ["Databases"]

_SETTINGS: Final = {
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_file_cache": "false",  # the system caches files, too, and a database may be kept
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_PLAIN: Final = "SET arrow_lossless_conversion = false"
_DESCRIPTORS: Final = "/proc/self/fd"


@dataclass
class _Database:
    """A DuckDB, and the files that it reads. `key` describes its relations and views, if it can be used again."""

    connection: duckdb.DuckDBPyConnection
    descriptors: list[int] = field(default_factory=list)
    remote: list[ServerFiles] = field(default_factory=list)
    key: str | None = None

    def close(self) -> None:
        self.connection.close()
        for each in self.descriptors:
            os.close(each)
        for opened in self.remote:
            opened.close()


class Databases:
    """A DuckDB that parses queries, those that describe them, one for the next query, and that of the last query."""

    def __init__(self, server: socket.socket, memory_bytes: int, threads: int) -> None:
        self._server, self._lock = server, threading.Lock()
        self._config: dict[str, Any] = {**_SETTINGS, "memory_limit": f"{memory_bytes}B", "threads": str(threads)}
        self.parser = self._new_parser()
        self._describers = dict[bool, duckdb.DuckDBPyConnection]()  # for plain results, and for others
        self._next: _Database | None = None
        self._last: _Database | None = None

    def _new_parser(self, *, plain: bool = False) -> duckdb.DuckDBPyConnection:
        """A DuckDB that can reach nothing: the points in time of a query are expressions, which are evaluated."""
        parser = duckdb.connect(":memory:", config={**self._config, "threads": "1"})
        if plain:
            parser.execute(_PLAIN)
        parser.from_arrow(pa.table({"warm": pa.nulls(1)})).fetchall()  # loads what DuckDB loads late
        parser.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()
        _lock(parser)
        return parser

    def prepare(self) -> None:
        """Connect to a DuckDB before its query arrives."""
        if self._next is None:
            self._next = _Database(duckdb.connect(":memory:", config=self._config))

    def forget(self) -> None:
        """Close the DuckDB of the last query."""
        if self._last is not None:
            self._last.close()
            self._last = None

    def has_kept(self, header: Mapping[str, Any]) -> bool:
        """Whether the DuckDB of the last query has the relations and views of this one. Otherwise, it is closed."""
        if self._last is not None and self._last.key == _key(header, header["identities"]):
            return True
        self.forget()
        return False

    @contextmanager
    def used(self, header: Mapping[str, Any], parts: Sequence[bytes]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for a query. Its DuckDB is kept if the block succeeds and other queries may use it, too."""
        database, self._last = self._last, None
        if database is None:
            database, self._next = self._next or _Database(duckdb.connect(":memory:", config=self._config)), None
        try:
            if database.key is None:
                self._bind(database, header, parts)
            own = (
                database.connection.cursor() if database.key else nullcontext(database.connection)
            )  # which has the scans
            with own as connection:
                connection.execute(f"USE {_place(connection, header['default'])}")
                yield connection
        except BaseException:
            database.close()
            raise
        if database.key is None:
            database.close()
        else:
            self._last = database

    @contextmanager
    def describing(self, header: Mapping[str, Any], parts: Sequence[bytes]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to describe a query. Its DuckDB is used again, so what the query creates is removed afterwards."""
        plain = header["plain"]
        database = self._describers.pop(plain, None) or self._new_parser(plain=plain)
        try:
            with database.cursor() as cursor:
                self._create_relations(cursor, header, parts, [], [])
                _create_views(cursor, header)
                cursor.execute(f"USE {_place(cursor, header['default'])}")
                yield cursor
        finally:
            try:
                _remove_all(database)
                self._describers[plain] = database
            except duckdb.Error:
                database.close()

    def _bind(self, database: _Database, header: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        """Receive the files of a query, and create its relations and views."""
        connection = database.connection
        counts = [group["count"] for each in header["relations"] for group in each.get("files", ())]
        database.descriptors.extend(_received(self._server, sum(counts)))
        files = [f"{_DESCRIPTORS}/{each}" for each in database.descriptors]
        remote = self._remote_paths(database, header)
        if header["plain"]:
            connection.execute(_PLAIN)
        self._create_relations(connection, header, parts, files, remote)
        _lock(connection, [*files, *remote])
        _create_views(connection, header)
        if header["identities"] is not None:
            database.key = _key(header, [file_identity(each) for each in database.descriptors])

    def _create_relations(
        self,
        database: duckdb.DuckDBPyConnection,
        header: Mapping[str, Any],
        parts: Sequence[bytes],
        files: Sequence[str],
        remote: Sequence[str],
    ) -> None:
        upcoming, further = iter(files), iter(remote)
        for number, relation in enumerate(header["relations"]):
            if "files" in relation:
                groups = [
                    file_scan(group, [*islice(upcoming, group["count"]), *islice(further, group["remote"])])
                    for group in relation["files"]
                ]
                _create(database, relation["name"], " UNION ALL ".join(groups))
            else:
                schema = pa.ipc.read_schema(pa.py_buffer(parts[relation["schema"]]))
                scan = ServerScan(schema, number, self._server, self._lock)
                database.register(f"scan_{number}", scan)
                _create(database, relation["name"], f"SELECT {scan_columns(scan.schema)} FROM temp.main.scan_{number}")  # noqa: S608 - quoted

    def _remote_paths(self, database: _Database, header: Mapping[str, Any]) -> list[str]:
        """The paths under which DuckDB opens the remote files of a query."""
        count = sum(group["remote"] for each in header["relations"] for group in each.get("files", ()))
        if not count:
            return []
        from skiway.sandbox.query_files import ServerFiles, remote_path

        def connect() -> Channel:
            with self._lock:
                self._server.sendall(b'{"files": true}\n')
                return Channel(socket.socket(fileno=socket.recv_fds(self._server, 1, 1)[1][0]))

        database.remote.append(ServerFiles(connect))
        database.connection.register_filesystem(database.remote[0])
        return [remote_path(number) for number in range(count)]


def _key(header: Mapping[str, Any], identities: Sequence[Sequence[int]] | None) -> str | None:
    """What the relations and views of a query depend on; None if other queries must not use them."""
    if identities is None:
        return None
    return json.dumps([header["owner"], header["relations"], header["views"], header["plain"], identities])


def _lock(database: duckdb.DuckDBPyConnection, files: Sequence[str] = ()) -> None:
    """Allow access to these files, and to nothing else from now on."""
    if files:
        database.execute(f"SET allowed_paths = {literal(files)}")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _create_views(database: duckdb.DuckDBPyConnection, header: Mapping[str, Any]) -> None:
    """Create the views of a query, each after those that it reads."""
    for view in header["views"]:
        database.execute(f"USE {_place(database, view['name'][:-1])}")
        _create(database, view["name"], view["sql"])


def _create(database: duckdb.DuckDBPyConnection, name: Sequence[str], query: str) -> None:
    place = _place(database, name[:-1])
    database.execute(f"CREATE VIEW {place}.{quoted(name[-1])} AS {query}")


def _place(database: duckdb.DuckDBPyConnection, path: Sequence[str]) -> str:
    """Create a catalog, and the schema in it, unless they exist; return the name of the last one."""
    catalog = quoted(path[0])
    database.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {catalog}")
    if len(path) == 1:
        return catalog
    database.execute(f"CREATE SCHEMA IF NOT EXISTS {catalog}.{quoted(path[1])}")
    return f"{catalog}.{quoted(path[1])}"


def _remove_all(database: duckdb.DuckDBPyConnection) -> None:
    """Remove all catalogs, schemas and views. DuckDB's first catalog is `memory`, which cannot be detached."""
    catalogs = "SELECT database_name FROM duckdb_databases() WHERE NOT internal AND database_name <> 'memory'"
    for (name,) in database.execute(catalogs).fetchall():
        database.execute(f"DETACH {quoted(name)}")
    views = "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal AND database_name = 'memory'"
    for schema, name in database.execute(views).fetchall():
        database.execute(f"DROP VIEW memory.{quoted(schema)}.{quoted(name)}")
    schemas = "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal AND database_name = 'memory' AND schema_name <> 'main'"
    for (name,) in database.execute(schemas).fetchall():
        database.execute(f"DROP SCHEMA memory.{quoted(name)}")


def _received(server: socket.socket, count: int) -> Iterator[int]:
    """The descriptors of the files that the server sends."""
    while count > 0:
        found = socket.recv_fds(server, 1, FILES_AT_ONCE)[1]
        if not found:
            raise EOFError
        count -= len(found)
        yield from found

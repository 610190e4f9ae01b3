"""The DuckDBs of a process that runs queries, and the relations in them: Parquet files, and scans whose rows the server sends.

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
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from skiway.sandbox.processes import FILES_AT_ONCE, file_identity
from skiway.sandbox.relations import Channel
from skiway.sandbox.syntax import literal, quoted

if TYPE_CHECKING:
    from skiway.sandbox.file_system import ServerFiles


def file_scan(group: Mapping[str, Any], paths: Sequence[str]) -> str:
    """A query over files with the same columns.

    Without `can_have_nan`, DuckDB would skip row groups with NaN, which is greater than the maximum in their statistics.
    With a schema, DuckDB reads the row groups of a file with one thread, which takes twice as long on two cores. So there is
    one only if types have to be converted, for which filters on the original columns could not be used.

    Without paths, the result has no rows: describing a query opens no files.
    """
    columns = group["columns"]
    if not paths:
        return f"SELECT {', '.join(map(_no_value, columns))} WHERE false"
    stored = [each for each in columns if each["stored_as"] is not None]
    has_schema = any(each["is_widened"] for each in stored)
    options = ", can_have_nan = true, hive_partitioning = false"
    if has_schema:
        options += f", schema = MAP {{{', '.join(map(_definition, stored))}}}"
    shown = ", ".join(_shown(each, has_schema=has_schema) for each in columns)
    return f"SELECT {shown} FROM read_parquet({literal(paths)}{options})"  # noqa: S608 - quoted


def _no_value(column: Mapping[str, Any]) -> str:
    return f"CAST(NULL AS {column['type']}) AS {quoted(column['name'])}"


def _definition(column: Mapping[str, Any]) -> str:
    name, kind = literal(column["name"]), literal(column["type"])
    return f"{literal(column['stored_as'])}: {{name: {name}, type: {kind}, default_value: NULL}}"


def _shown(column: Mapping[str, Any], *, has_schema: bool) -> str:
    """A column of the table, from the files or with the same value in all rows."""
    name = quoted(column["name"])
    if column["stored_as"] is None:
        value = "NULL" if column["value"] is None else literal(column["value"])
    elif has_schema:
        return name
    else:
        value = quoted(column["stored_as"])
    return f"CAST({value} AS {column['type']}) AS {name}"


def scan_columns(schema: pa.Schema) -> str:
    """The columns of an Arrow scan, in which DuckDB compares the values itself unless Arrow does the same.

    DuckDB leaves conditions on plain columns to Arrow, those of joins as well, and hands over the values as Python objects. Arrow does not
    treat NaN as the greatest number, and Python lacks nanoseconds, infinite and very old dates, and a library for time zones.
    Expressions are not left to Arrow. Of those that return the column itself, `coalesce` is fast, and a list has all types.
    """
    return ", ".join(map(_compared, schema))


def _compared(field: pa.Field) -> str:
    name = quoted(field.name)
    kinds, of = pa.types, field.type
    is_text = kinds.is_string(of) or kinds.is_large_string(of) or kinds.is_string_view(of)
    is_number = (kinds.is_integer(of) and not kinds.is_uint64(of)) or kinds.is_decimal128(of)
    if is_text or is_number or kinds.is_boolean(of):
        return name
    has_parts = of.num_fields > 0 or kinds.is_dictionary(of) or isinstance(of, pa.BaseExtensionType)
    return f"[{name}][1] AS {name}" if has_parts else f"coalesce({name}, {name}) AS {name}"


def columns_to_read(schema: pa.Schema, columns: Sequence[str], condition: Any) -> list[str]:
    """The columns that DuckDB wants of a dataset, and then others that its condition may name, as from DuckDB 2.0 on."""
    text = "" if condition is None else str(condition)
    return [*columns, *(name for name in schema.names if name in text and name not in columns)]


class ServerScan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """A dataset for DuckDB: its rows come from the server, which sends the columns that DuckDB needs through a pipe."""

    def __init__(self, schema: pa.Schema, number: int, server: socket.socket, lock: threading.Lock) -> None:
        self._schema, self._number, self._server, self._lock = schema, number, server, lock

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:  # noqa: A002
        names = self._schema.names if columns is None else list(columns)
        read = columns_to_read(self._schema, names, filter)
        with self._lock:
            self._server.sendall(json.dumps({"relation": self._number, "columns": read}).encode() + b"\n")
            pipe = socket.recv_fds(self._server, 1, 1)[1][0]
        reader = pa.ipc.open_stream(pa.PythonFile(open(pipe, "rb"), "r"))  # noqa: PTH123, SIM115 - closed by Arrow
        return ds.Scanner.from_batches(
            pa.RecordBatchReader.from_batches(reader.schema, reader), columns=names, filter=filter
        )


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

    def _new(self) -> _Database:
        connection = duckdb.connect(":memory:", config=self._config)
        connection.execute(
            "SET enable_profiling = 'no_output'"
        )  # of this connection, before the configuration is locked
        return _Database(connection)

    def prepare(self) -> None:
        """Connect to a DuckDB before its query arrives."""
        if self._next is None:
            self._next = self._new()

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
            database, self._next = self._next or self._new(), None
        try:
            if database.key is None:
                self._bind(database, header, parts)
            connection = database.connection  # which has the scans, and measures
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
                self._create_relations(cursor, header, parts, [], [], empty=header["parameters"])
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
        *,
        empty: bool = False,
    ) -> None:
        """Create the relations as views; or as empty tables, because DuckDB 2.0 serializes no plan with a dataset."""
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
                query = f"SELECT {scan_columns(scan.schema)} FROM temp.main.scan_{number}"  # noqa: S608 - quoted
                _create(database, relation["name"], query, empty=empty)

    def _remote_paths(self, database: _Database, header: Mapping[str, Any]) -> list[str]:
        """The paths under which DuckDB opens the remote files of a query."""
        count = sum(group["remote"] for each in header["relations"] for group in each.get("files", ()))
        if not count:
            return []
        from skiway.sandbox.file_system import ServerFiles, remote_path

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


def _create(database: duckdb.DuckDBPyConnection, name: Sequence[str], query: str, *, empty: bool = False) -> None:
    kind, end = ("TABLE", " LIMIT 0") if empty else ("VIEW", "")
    database.execute(f"CREATE {kind} {_place(database, name[:-1])}.{quoted(name[-1])} AS {query}{end}")


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
    for kind in ("view", "table"):
        listed = (
            f"SELECT schema_name, {kind}_name FROM duckdb_{kind}s() WHERE NOT internal AND database_name = 'memory'"  # noqa: S608
        )
        for schema, name in database.execute(listed).fetchall():
            database.execute(f"DROP {kind} memory.{quoted(schema)}.{quoted(name)}")
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

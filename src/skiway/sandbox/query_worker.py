"""The process of a query: `python -m skiway.sandbox.query_worker SOCKET MEMORY_BYTES THREADS` serves requests until its input ends.

A request parses a query, replaces its parameters by values, compiles expressions, or runs a query over relations. Each query
has a DuckDB of its own: its relations are created first, then access to everything but their files is disabled and the
configuration is locked, and then the query runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from skiway.sandbox.expressions import RefusedExpression, compiled
from skiway.sandbox.messages import FILES_AT_ONCE, READY, decode_table, exactly, read_message
from skiway.sandbox.remote_files import Channel
from skiway.sandbox.worker import REQUEST_BYTES, end_with_server, first_line, limit_process

if TYPE_CHECKING:
    from skiway.sandbox.query_files import ServerFiles

__all__ = ["main"]

_SETTINGS: Final = {
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_BATCH_ROWS: Final = 16_384
_DESCRIPTORS: Final = "/proc/self/fd"
_MAX_DESCRIPTORS: Final = 4096
"""Of open files: each file of a table is opened twice, by the server and by DuckDB."""

_TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "regexp_split_to_table"}
)
"""The table functions that a query may call: they read nothing but their arguments."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the server closes the pipe."""
    end_with_server()
    server = socket.socket(fileno=int(arguments[0]))
    memory_bytes, threads = int(arguments[1]), int(arguments[2])
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    config: dict[str, Any] = {**_SETTINGS, "memory_limit": f"{memory_bytes}B", "threads": str(threads)}
    parser = duckdb.connect(":memory:", config={**config, "threads": "1"})
    parser.from_arrow(pa.table({"warm": pa.nulls(1)})).fetchall()  # loads what DuckDB loads late
    parser.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()
    _lock(parser)  # the points in time of a query are expressions, which are evaluated
    limit_process(memory_bytes, descriptors=_MAX_DESCRIPTORS)
    responses.write(READY)
    responses.flush()
    while True:
        with duckdb.connect(":memory:", config=config) as database:  # connects before the query arrives
            is_used = False
            while not is_used:
                try:
                    header, parts = read_message(lambda size: exactly(requests, size), REQUEST_BYTES)
                except EOFError:
                    return
                is_used = "sql" in header
                _answer(database if is_used else parser, header, parts, server, responses)


def _answer(
    database: duckdb.DuckDBPyConnection,
    header: Mapping[str, Any],
    parts: Sequence[bytes],
    server: socket.socket,
    responses: BinaryIO,
) -> None:
    files: list[str] = []
    remote: list[ServerFiles] = []
    try:
        if "parse" in header:
            _write(responses, b"P", json.dumps(_parsed(database, header["parse"], header["prefix"])).encode())
            return
        if "bind" in header:
            row = decode_table(parts[0]) if parts else None
            _write(responses, b"P", json.dumps(_with_values(database, header["bind"], row)).encode())
            return
        if "expressions" in header:
            found = compiled(database, header["expressions"], header["claims"])
            _write(responses, b"P", json.dumps(found).encode())
            return
        counts = [group["count"] for each in header["relations"] for group in each.get("files", ())]
        files.extend(_received(server, sum(counts)))
        relation = _bound(database, header, parts, server, files, remote)
        if header["explain"]:
            relation = database.from_arrow(pa.table({"plan": [relation.explain()]}))
        reader = (relation.limit(0) if header["describe"] else relation).to_arrow_reader(_BATCH_ROWS)
        schema = _with_unique_names(reader.schema)
        _write(responses, b"S", schema.serialize())
        for batch in reader:
            if batch.num_rows:
                _write(responses, b"B", pa.RecordBatch.from_arrays(batch.columns, schema=schema).serialize())
        _write(responses, b".", b"")
    except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError):
        _write(responses, b"M", b"")
    except (_Refused, RefusedExpression) as error:
        _write(responses, b"E", str(error).encode())
    except (duckdb.Error, pa.ArrowException, OSError, EOFError) as error:
        _write(responses, b"E", first_line(error).encode())
    finally:
        for each in files:
            os.close(int(each.rpartition("/")[2]))
        for opened in remote:
            opened.close()


def _write(to: BinaryIO, kind: bytes, payload: bytes | pa.Buffer) -> None:
    to.write(kind + len(payload).to_bytes(8, "little"))
    to.write(payload)
    to.flush()


class _Refused(Exception):
    """The query is not one that may run here."""


# -- parsing -----------------------------------------------------------------------------------------------------------


def _parsed(database: duckdb.DuckDBPyConnection, sql: str, prefix: str) -> dict[str, Any]:
    """The tables that a query names, with the points in time that it reads, and the query with a name for each of these.

    These names begin with `prefix`.
    """
    tree = _tree(database, sql)
    for node in _nodes(tree):
        if node.get("type") == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise _Refused(f"table function {name} cannot be used here: queries read tables of the lake")
    tables: list[dict[str, Any]] = []
    defined = {str(each["key"]).lower() for node in _nodes(tree) for each in (node.get("cte_map") or {}).get("map", ())}
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            is_defined = not node.get("schema_name") and node["table_name"].lower() in defined
            found: dict[str, Any] = {
                "name": [node.get("catalog_name") or "", node.get("schema_name") or "", node["table_name"]],
                "is_defined": is_defined,
            }
            if node.get("at_clause"):
                found |= {"unit": node["at_clause"]["unit"], "value": _value(database, node["at_clause"]["expr"])}
                node["alias"] = node.get("alias") or node["table_name"]
                node["at_clause"] = None
                found["as"] = node["table_name"] = f"{prefix} {len(tables)}"
                node["catalog_name"], node["schema_name"] = "memory", "main"
            tables.append(found)
    rewritten = any("as" in each for each in tables)
    text = _one(database, "SELECT json_deserialize_sql(?)", json.dumps(tree)) if rewritten else sql
    return {"tables": tables, "sql": text}


def _tree(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """The syntax tree of a text that is exactly one query."""
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise _Refused(f"expected one query, found {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = str(statements[0].type).rpartition(".")[2].partition(":")[0]
        raise _Refused(f"{kind} is not a query: only SELECT can run here")
    tree: dict[str, Any] = json.loads(_one(database, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error"):
        raise _Refused(str(tree.get("error_message", "this is not a query")))
    return tree


def _with_values(database: duckdb.DuckDBPyConnection, sql: str, row: pa.Table | None) -> dict[str, Any]:
    """The query with constants instead of its parameters, and their names. Without a row, all values are NULL.

    The columns of the row are matched by name if they have the names of the parameters, else by position.
    """
    tree = _tree(database, sql)
    found = [(str(node["identifier"]), node) for node in _nodes(tree) if node.get("class") == "PARAMETER"]
    names = sorted({name for name, _ in found}, key=_position)
    if not names and row is None:
        return {"sql": sql, "parameters": []}
    columns: Sequence[str] = names if row is None else row.column_names
    if len(columns) != len(names):
        raise _Refused(
            f"the query has {len(names)} parameters, but {len(columns)} values were bound: bind one for each"
        )
    if row is not None and row.num_rows != 1:
        raise _Refused(f"{row.num_rows} rows of parameters were bound: a query takes exactly one")
    by_name = len(set(columns)) == len(names) and set(columns) == set(names)
    values = {
        name: "NULL" if row is None else _constant(database, row.column(name if by_name else number))
        for number, name in enumerate(names)
    }
    columns_of_queries = {id(each) for node in _nodes(tree) for each in node.get("select_list") or ()}
    for name, node in found:
        shown = node["alias"] or (f"${name}" if id(node) in columns_of_queries else "")  # DuckDB's own name
        node.clear()
        node.update(_expression(database, values[name]), alias=shown)
    return {"sql": _one(database, "SELECT json_deserialize_sql(?)", json.dumps(tree)), "parameters": names}


def _position(name: str) -> tuple[int, int, str]:
    """The order of parameters: numbers first."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _constant(database: duckdb.DuckDBPyConnection, column: pa.ChunkedArray) -> str:
    """The value in a column of one row, as an expression."""
    shown = database.from_arrow(pa.table({"value": column})).project("CAST(value AS VARCHAR), typeof(value)").fetchone()
    assert shown is not None
    text, kind = shown
    if text is None:
        return "NULL" if kind == '"NULL"' else f"CAST(NULL AS {kind})"
    if "\0" in text:
        raise _Refused("a parameter has the character NUL, which no query can contain: encode it, or bind a BLOB")
    return f"CAST({_literal(text)} AS {kind})"


def _expression(database: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The syntax tree of an expression."""
    tree = json.loads(_one(database, "SELECT json_serialize_sql(?)", f"SELECT {text}"))
    found: dict[str, Any] = tree["statements"][0]["node"]["select_list"][0]
    return found


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from _nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _value(database: duckdb.DuckDBPyConnection, expression: Any) -> str:
    """The value of a constant expression, as text."""
    if any(node.get("class") == "SUBQUERY" for node in _nodes(expression)):
        raise _Refused("AT needs a constant, such as VERSION => 5: it cannot contain a query")
    template = json.loads(_one(database, "SELECT json_serialize_sql('SELECT 1')"))
    template["statements"][0]["node"]["select_list"] = [expression]
    return _one(
        database, f"SELECT CAST(({_one(database, 'SELECT json_deserialize_sql(?)', json.dumps(template))}) AS VARCHAR)"
    )


def _one(database: duckdb.DuckDBPyConnection, sql: str, *parameters: str) -> str:
    found = database.execute(sql, parameters).fetchone()
    assert found is not None
    return str(found[0])


# -- running -----------------------------------------------------------------------------------------------------------


def _bound(
    database: duckdb.DuckDBPyConnection,
    header: Mapping[str, Any],
    parts: Sequence[bytes],
    server: socket.socket,
    files: Sequence[str],
    remote: list[ServerFiles],
) -> duckdb.DuckDBPyRelation:
    """The query over its relations, of which some are files. The file system of remote files is added to `remote`."""
    lock = threading.Lock()
    upcoming = iter(files)
    paths = _remote_paths(database, header, server, lock, remote)
    further = iter(paths)
    if header["plain"]:
        database.execute("SET arrow_lossless_conversion = false")
    for number, relation in enumerate(header["relations"]):
        if "files" in relation:
            groups = [
                _file_scan(group, [*islice(upcoming, group["count"]), *islice(further, group["remote"])])
                for group in relation["files"]
            ]
            _create(database, relation["name"], " UNION ALL ".join(groups))
        else:
            scan = _Scan(decode_table(parts[relation["schema"]]).schema, number, server, lock)
            database.register(f"scan_{number}", scan)
            _create(database, relation["name"], f"SELECT {_columns(scan.schema)} FROM temp.main.scan_{number}")  # noqa: S608 - quoted
    _lock(database, [*files, *paths])
    for view in header["views"]:  # each after those that it reads
        database.execute(f"USE {_place(database, view['name'][:-1])}")
        _create(database, view["name"], view["sql"])
    database.execute(f"USE {_place(database, header['default'])}")
    return database.sql(header["sql"])


def _remote_paths(
    database: duckdb.DuckDBPyConnection,
    header: Mapping[str, Any],
    server: socket.socket,
    lock: threading.Lock,
    remote: list[ServerFiles],
) -> list[str]:
    """The paths under which DuckDB opens the remote files of a query."""
    count = sum(group["remote"] for each in header["relations"] for group in each.get("files", ()))
    if not count:
        return []
    from skiway.sandbox.query_files import ServerFiles, remote_path

    def connect() -> Channel:
        with lock:
            server.sendall(b'{"files": true}\n')
            return Channel(socket.socket(fileno=socket.recv_fds(server, 1, 1)[1][0]))

    remote.append(ServerFiles(connect))
    database.register_filesystem(remote[0])
    return [remote_path(number) for number in range(count)]


def _lock(database: duckdb.DuckDBPyConnection, files: Sequence[str] = ()) -> None:
    """Allow access to these files, and to nothing else from now on."""
    if files:
        database.execute(f"SET allowed_paths = {_literal(files)}")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _create(database: duckdb.DuckDBPyConnection, name: Sequence[str], query: str) -> None:
    place = _place(database, name[:-1])
    database.execute(f"CREATE VIEW {place}.{_quoted(name[-1])} AS {query}")


def _place(database: duckdb.DuckDBPyConnection, path: Sequence[str]) -> str:
    """Create a catalog, and the schema in it, unless they exist; return the name of the last one."""
    catalog = _quoted(path[0])
    database.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {catalog}")
    if len(path) == 1:
        return catalog
    database.execute(f"CREATE SCHEMA IF NOT EXISTS {catalog}.{_quoted(path[1])}")
    return f"{catalog}.{_quoted(path[1])}"


def _received(server: socket.socket, count: int) -> Iterator[str]:
    """The paths under which DuckDB opens the files that the server sends."""
    while count > 0:
        found = socket.recv_fds(server, 1, FILES_AT_ONCE)[1]
        if not found:
            raise EOFError
        count -= len(found)
        yield from (f"{_DESCRIPTORS}/{each}" for each in found)


def _file_scan(group: Mapping[str, Any], paths: Sequence[str]) -> str:
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
    return f"SELECT {shown} FROM read_parquet({_literal(paths)}{options})"  # noqa: S608 - quoted


def _no_value(column: Mapping[str, Any]) -> str:
    return f"CAST(NULL AS {column['type']}) AS {_quoted(column['name'])}"


def _definition(column: Mapping[str, Any]) -> str:
    name, kind = _literal(column["name"]), _literal(column["type"])
    return f"{_literal(column['stored_as'])}: {{name: {name}, type: {kind}, default_value: NULL}}"


def _shown(column: Mapping[str, Any], *, has_schema: bool) -> str:
    """A column of the table, from the files or with the same value in all rows."""
    name = _quoted(column["name"])
    if column["stored_as"] is None:
        value = "NULL" if column["value"] is None else _literal(column["value"])
    elif has_schema:
        return name
    else:
        value = _quoted(column["stored_as"])
    return f"CAST({value} AS {column['type']}) AS {name}"


def _columns(schema: pa.Schema) -> str:
    """The columns of a scan.

    DuckDB would leave comparisons to Arrow, which fails for extension types and does not treat NaN as the greatest number.
    Wrapping a column in a list and taking it out again makes DuckDB compare the values itself.
    """
    return ", ".join(
        f"[{_quoted(field.name)}][1] AS {_quoted(field.name)}" if _is_compared_here(field.type) else _quoted(field.name)
        for field in schema
    )


def _is_compared_here(data_type: pa.DataType) -> bool:
    children = (data_type.field(i).type for i in range(data_type.num_fields))
    extension = isinstance(data_type, pa.BaseExtensionType)
    return extension or pa.types.is_floating(data_type) or any(map(_is_compared_here, children))


class _Scan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """A dataset for DuckDB: its rows come from the server, which sends the columns that DuckDB needs through a pipe."""

    def __init__(self, schema: pa.Schema, number: int, server: socket.socket, lock: threading.Lock) -> None:
        self._schema, self._number, self._server, self._lock = schema, number, server, lock

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:  # noqa: A002
        names = self._schema.names if columns is None else list(columns)
        with self._lock:
            self._server.sendall(json.dumps({"relation": self._number, "columns": names}).encode() + b"\n")
            pipe = socket.recv_fds(self._server, 1, 1)[1][0]
        reader = pa.ipc.open_stream(pa.PythonFile(open(pipe, "rb"), "r"))  # noqa: PTH123, SIM115 - closed by Arrow
        return ds.Scanner.from_batches(
            pa.RecordBatchReader.from_batches(reader.schema, reader), columns=names, filter=filter
        )


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """A schema in which names that are equal, apart from their case, have numbers, as in DuckDB's subqueries."""
    taken: set[str] = set()
    fields = []
    for field in schema:
        name, number = field.name, 0
        while name.lower() in taken:
            number += 1
            name = f"{field.name}_{number}"
        taken.add(name.lower())
        fields.append(field.with_name(name))
    return pa.schema(fields)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str | Sequence[str]) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"[{', '.join(map(_literal, value))}]"


if __name__ == "__main__":
    main(sys.argv[1:])

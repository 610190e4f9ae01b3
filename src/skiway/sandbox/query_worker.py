"""The process of a query: `python -m skiway.sandbox.query_worker SOCKET MEMORY_BYTES THREADS` serves requests until its input ends.

A request parses a query, compiles expressions, or runs a query over relations. Each query has a DuckDB of its own: its
relations are created first, then access to everything but their files is disabled and the configuration is locked, and
then the query runs.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from skiway.sandbox.expressions import RefusedExpression, compiled
from skiway.sandbox.messages import READY, decode_table, exactly, read_message
from skiway.sandbox.worker import REQUEST_BYTES, first_line, limit_process

__all__ = ["main"]

_SETTINGS: Final = {
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_BATCH_ROWS: Final = 16_384
_DESCRIPTORS: Final = 512
_TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "regexp_split_to_table"}
)
"""The table functions that a query may call: they read nothing but their arguments."""

_FILE_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "BOOLEAN": ("BOOLEAN",),
    "INTEGER": ("INT32",),
    "BIGINT": ("INT32", "INT64"),
    "FLOAT": ("FLOAT",),
    "DOUBLE": ("FLOAT", "DOUBLE"),
    "VARCHAR": ("BYTE_ARRAY UTF8",),
    "BLOB": ("BYTE_ARRAY",),
    "DATE": ("INT32 DATE",),
    "TIMESTAMP": ("INT64 TIMESTAMP_MICROS local",),
    "TIMESTAMP WITH TIME ZONE": ("INT64 TIMESTAMP_MICROS",),
}
"""The types in a Parquet file that DuckDB reads as a type of a table, as the table's own format would."""

_FILE_COLUMNS: Final = """
    SELECT DISTINCT field_id, num_children, concat_ws(' ', type, converted_type,
        CASE WHEN logical_type LIKE 'TimestampType(isAdjustedToUTC=0%' THEN 'local' END) AS type
    FROM parquet_schema(?) WHERE type IS NOT NULL OR field_id IS NOT NULL
"""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the server closes the pipe."""
    server = socket.socket(fileno=int(arguments[0]))
    memory_bytes, threads = int(arguments[1]), int(arguments[2])
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    config: dict[str, Any] = {**_SETTINGS, "memory_limit": f"{memory_bytes}B", "threads": str(threads)}
    parser = duckdb.connect(":memory:", config={**config, "threads": "1"})
    parser.from_arrow(pa.table({"warm": pa.nulls(1)})).fetchall()  # loads what DuckDB loads late
    parser.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()
    _lock(parser)  # the points in time of a query are expressions, which are evaluated
    limit_process(memory_bytes, descriptors=_DESCRIPTORS)
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
    try:
        if "parse" in header:
            _write(responses, b"P", json.dumps(_parsed(database, header["parse"], header["prefix"])).encode())
            return
        if "expressions" in header:
            found = compiled(database, header["expressions"], header["claims"])
            _write(responses, b"P", json.dumps(found).encode())
            return
        relation = _bound(database, header, parts, server)
        if relation is None:
            _write(responses, b"F", b"")
            return
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
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        _write(responses, b"E", first_line(error).encode())


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
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise _Refused(f"expected one query, found {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = str(statements[0].type).rpartition(".")[2].partition(":")[0]
        raise _Refused(f"{kind} is not a query: only SELECT can run here")
    tree = json.loads(_one(database, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error"):
        raise _Refused(str(tree.get("error_message", "this is not a query")))
    for node in _nodes(tree):
        if node.get("type") == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise _Refused(f"table function {name} cannot be used here: queries read tables of the lake")
    tables: list[dict[str, Any]] = []
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            found: dict[str, Any] = {
                "name": [node.get("catalog_name") or "", node.get("schema_name") or "", node["table_name"]]
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
    database: duckdb.DuckDBPyConnection, header: Mapping[str, Any], parts: Sequence[bytes], server: socket.socket
) -> duckdb.DuckDBPyRelation | None:
    """The query over its relations; None if files of one of them cannot be read here."""
    lock = threading.Lock()
    allowed: list[str] = []
    for number, relation in enumerate(header["relations"]):
        if "files" in relation:
            if not _is_readable(database, relation):
                return None
            allowed += relation["files"]
            _create(database, relation["name"], _file_scan(relation))
        else:
            scan = _Scan(decode_table(parts[relation["schema"]]).schema, number, server, lock)
            database.register(f"scan_{number}", scan)
            _create(database, relation["name"], f"SELECT {_columns(scan.schema)} FROM temp.main.scan_{number}")  # noqa: S608 - quoted
    _lock(database, allowed)
    for view in header["views"]:  # each after those that it reads
        database.execute(f"USE {_place(database, view['name'][:-1])}")
        _create(database, view["name"], view["sql"])
    database.execute(f"USE {_place(database, header['default'])}")
    return database.sql(header["sql"])


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


def _is_readable(database: duckdb.DuckDBPyConnection, relation: Mapping[str, Any]) -> bool:
    """Whether DuckDB reads the files as the table's format would: columns have ids, and types that convert without a loss."""
    wanted = {number: _FILE_TYPES[kind] for number, _, kind in relation["columns"]}
    for number, children, kind in database.execute(_FILE_COLUMNS, [relation["files"]]).fetchall():
        if number is None or (number in wanted and (children or kind not in wanted[number])):
            return False
    return True


def _file_scan(relation: Mapping[str, Any]) -> str:
    columns = ", ".join(
        f"{int(number)}: {{name: {_literal(name)}, type: {_literal(kind)}, default_value: NULL}}"
        for number, name, kind in relation["columns"]
    )
    # Without `can_have_nan`, DuckDB skips row groups with NaN, which is greater than the maximum in their statistics.
    return f"SELECT * FROM read_parquet({_literal(relation['files'])}, schema = MAP {{{columns}}}, can_have_nan = true)"  # noqa: S608 - quoted


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

"""The process of a query: `python -m skiway.sandbox.query_worker SOCKET MEMORY_BYTES THREADS KEEP_S` serves requests until its input ends.

A request parses a query, tells the types of its parameters or replaces them by values, compiles expressions, or runs a query over
relations.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import duckdb
import pyarrow as pa

from skiway.sandbox.parameters import parameter_types, with_values
from skiway.sandbox.processes import KEPT, READY, SEND_FILES, decode_table, exactly, read_message, write_frame
from skiway.sandbox.syntax import (
    Refused,
    cast_columns,
    compiled_expressions,
    parsed_query,
    type_ids,
    type_with,
)
from skiway.sandbox.worker import NO_MEMORY, REQUEST_BYTES, end_with_server, limit_process, run_worker, shown_error

if TYPE_CHECKING:
    from skiway.sandbox.databases import Databases

_BATCH_ROWS: Final = 16_384
_MAX_DESCRIPTORS: Final = 4096
"""Of open files: each file of a table is opened twice, by the server and by DuckDB."""

_MAX_DEPTH: Final = 10_000
"""Of Python, for the syntax trees of queries: DuckDB accepts expressions with 1000 levels, which have several in its JSON."""

MAX_PROFILE: Final = 1 << 18
"""The bytes of a profile; longer ones are cut off, and then cannot be read."""

_REFUSED: Final = {"variant", "type"}
_CONVERTED: Final = {"enum": "VARCHAR"}
_CONVERTED_IF_PLAIN: Final = {
    "bignum": "VARCHAR",
    "bit": "VARCHAR",
    "hugeint": "DECIMAL(38,0)",
    "time with time zone": "VARCHAR",
    "ubigint": "DECIMAL(20,0)",
    "uhugeint": "DECIMAL(38,0)",
    "uinteger": "BIGINT",
    "usmallint": "INTEGER",
    "utinyint": "SMALLINT",
}
"""Without these casts, clients would get other values: times without their offset, and digits that do not fit.

Such as the driver for JDBC: it returns the largest unsigned numbers as -1.
"""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the server closes the pipe."""
    from skiway.sandbox.databases import Databases  # when pandas is out of reach, see `run_worker`

    end_with_server()
    server = socket.socket(fileno=int(arguments[0]))
    memory_bytes, keep_s = int(arguments[1]), float(arguments[3])
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    databases = Databases(server, memory_bytes, int(arguments[2]))
    limit_process(memory_bytes, descriptors=_MAX_DESCRIPTORS)
    sys.setrecursionlimit(_MAX_DEPTH)
    responses.write(READY)
    responses.flush()
    while True:
        databases.prepare()
        if not select.select([requests], [], [], keep_s)[0]:  # nothing is buffered: the server waits for each response
            databases.forget()
        try:
            header, parts = read_message(lambda size: exactly(requests, size), REQUEST_BYTES)
        except EOFError:
            return
        _answer(databases, header, parts, responses)


def _answer(databases: Databases, header: Mapping[str, Any], parts: Sequence[bytes], responses: BinaryIO) -> None:
    try:
        if "parse" in header:
            found: Any = parsed_query(databases.parser, header["parse"], header["prefix"])
        elif "bind" in header:
            found = with_values(
                databases.parser, header["bind"], decode_table(parts[0]) if parts else None, header["types"]
            )
        elif "expressions" in header:
            found = compiled_expressions(databases.parser, header["expressions"], header["claims"])
        else:
            write_frame(responses, b".", _run(databases, header, parts, responses))
            return
        write_frame(responses, b"P", json.dumps(found).encode())
    except NO_MEMORY:
        write_frame(responses, b"M", b"")
    except Refused as error:
        write_frame(responses, b"E", str(error).encode())
    except (duckdb.InternalException, duckdb.FatalException) as error:
        write_frame(responses, b"F", shown_error(error).encode())
    except (duckdb.Error, pa.ArrowException, OSError, EOFError) as error:
        is_memory = str(error).startswith("Out of Memory Error")  # of Arrow, which DuckDB reports as its own error
        write_frame(responses, *((b"M", b"") if is_memory else (b"E", shown_error(error).encode())))


def _run(databases: Databases, header: Mapping[str, Any], parts: Sequence[bytes], responses: BinaryIO) -> bytes:
    """Send the columns and the rows of a query, and return what DuckDB measured."""
    if header["describe"]:
        with databases.describing(header, parts) as database:
            if header["parameters"]:
                relation = database.from_arrow(
                    pa.table({"type": pa.array(parameter_types(database, header["sql"]), pa.string())})
                )
            else:
                relation = _sendable(database.sql(header["sql"]).limit(0), plain=header["plain"])
            _send_rows(relation, responses)
        return b""
    write_frame(responses, KEPT if databases.has_kept(header) else SEND_FILES, b"")
    with databases.used(header, parts) as database:
        relation = database.sql(header["sql"])
        if header["explain"]:
            relation = database.from_arrow(pa.table({"plan": [relation.explain()]}))
        _send_rows(_sendable(relation, plain=header["plain"]), responses)
        return database.get_profiling_information("json").encode()[:MAX_PROFILE]


def _sendable(relation: duckdb.DuckDBPyRelation, *, plain: bool) -> duckdb.DuckDBPyRelation:
    """The relation with its values in types that Arrow has, and with `plain` in types that every client knows."""
    converted = _CONVERTED | (_CONVERTED_IF_PLAIN if plain else {})
    types = []
    for name, kind in zip(relation.columns, relation.types, strict=True):
        if not _REFUSED.isdisjoint(type_ids(kind)):
            raise Refused(
                f"column {name!r} has type {kind}, which Arrow does not have: cast it to another type, such as VARCHAR"
            )
        try:
            types.append(type_with(kind, converted))
        except ValueError as error:
            raise Refused(f"column {name!r} cannot be sent: {error}") from error
    return cast_columns(relation, types)


def _send_rows(relation: duckdb.DuckDBPyRelation, responses: BinaryIO) -> None:
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    schema = _with_unique_names(reader.schema)
    write_frame(responses, b"S", schema.serialize())
    for batch in reader:
        if batch.num_rows:
            write_frame(responses, b"B", pa.RecordBatch.from_arrays(batch.columns, schema=schema).serialize())


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """A schema in which names that are equal, apart from their case, have numbers, as in DuckDB's subqueries."""
    taken: set[str] = set()
    numbers = Counter[str]()
    fields = []
    for field in schema:
        name, own = field.name, field.name.lower()
        while name.lower() in taken:
            numbers[own] += 1
            name = f"{field.name}_{numbers[own]}"
        taken.add(name.lower())
        fields.append(field.with_name(name))
    return pa.schema(fields)


if __name__ == "__main__":
    run_worker(main)

"""Relations of a query as SQL of DuckDB: Parquet files, and scans whose rows the server sends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from skiway.sandbox.syntax import literal, quoted

__all__ = ["ServerScan", "file_scan", "scan_columns"]


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


class ServerScan(ds.Dataset):  # type: ignore[misc]  # which has no types
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

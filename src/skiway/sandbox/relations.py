"""What a query reads and what is known about it: relations, views, names of tables, and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from skiway.sandbox.remote_files import ReadableFile

__all__ = [
    "BoundQuery",
    "Expression",
    "FileColumn",
    "FileGroup",
    "NamedTable",
    "Parsed",
    "Relation",
    "StoredQuery",
    "TableName",
]

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

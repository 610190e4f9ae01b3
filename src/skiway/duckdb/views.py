"""Views over tables of a lake, by their names, in a DuckDB connection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from skiway.duckdb.engine import quoted
from skiway.duckdb.scans import LakeScan, Source
from skiway.errors import SkiwayError
from skiway.foundation.resources import schema_name

if TYPE_CHECKING:
    import duckdb


class LakeName(NamedTuple):
    """The full name of a table in SQL."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)


def sql_name(path: Sequence[str]) -> LakeName:
    """Return the name in SQL of a table of the metastore."""
    return LakeName(path[0], schema_name(path[1:-1]), path[-1])


class LakeViews:
    """Creates the views. Each of them reads the current rows of its table whenever a query reads it."""

    _numbers = count()

    def __init__(self, connection: duckdb.DuckDBPyConnection, failures: list[SkiwayError]) -> None:
        self._connection, self._failures = connection, failures
        self._shown: dict[LakeName, tuple[str, pa.Schema]] = {}

    @property
    def names(self) -> list[LakeName]:
        """The names of the views."""
        return list(self._shown)

    def show(self, name: LakeName, source: Source) -> None:
        """Create the view of a table, unless it exists with the same columns."""
        scan, schema = self._shown.get(name, ("", None))
        if schema is not None and schema.equals(source.schema, check_metadata=True):
            return
        scan = scan or f"skiway_table_{next(self._numbers)}"
        self._connection.register(scan, LakeScan(source, self._failures))
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.catalog)}.{quoted(name.schema)}").fetchall()
        view = f"CREATE OR REPLACE VIEW {name} AS SELECT {source.sql} FROM {scan}"  # noqa: S608 - all quoted
        self._connection.execute(view).fetchall()
        self._shown[name] = scan, source.schema

    def drop(self, name: LakeName) -> None:
        """Drop the view of a table."""
        scan, _ = self._shown.pop(name)
        self._connection.execute(f"DROP VIEW IF EXISTS {name}").fetchall()
        self._connection.unregister(scan)

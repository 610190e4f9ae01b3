"""Tables of a lake as pyarrow datasets, which DuckDB asks for the columns and the rows that it needs, and views over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from skiway.client import Rows
from skiway.duckdb.engine import quoted
from skiway.duckdb.expressions import predicate_of
from skiway.errors import SkiwayError
from skiway.foundation.resources import schema_name
from skiway.sandbox.databases import columns_to_read, scan_columns

if TYPE_CHECKING:
    import duckdb

    from skiway.client import AirportClient, Predicate
    from skiway.client.airport.calls import Table

ROWID: Final = "rowid"
STREAMS: Final = 4
"""How many parts of a scan are read at the same time."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table to scan: its client, what every scan is restricted to, the time to travel to, and whether to include row ids."""

    client: AirportClient
    table: Table
    where: Predicate | None = None
    limit: int | None = None
    at: dict[str, str] = field(default_factory=dict)
    row_ids: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The visible columns, with the row id last if it is included."""
        visible = [self.table.schema.field(self.table.position(name)) for name in self.table.columns]
        return pa.schema([*visible, pa.field(ROWID, pa.int64())] if self.row_ids else visible)

    @property
    def sql(self) -> str:
        """The columns for a SELECT from this source."""
        return scan_columns(self.schema)

    def rows(self, columns: Sequence[str], where: Predicate | None = None) -> Rows:
        """Scan the given columns of the matching rows."""
        parts = [each for each in (self.where, where) if each is not None]
        both = parts[0] & parts[1] if len(parts) == 2 else next(iter(parts), None)
        name = (self.table.schema_name, self.table.name)
        at: dict[str, Any] = self.at
        return self.client.scan(name, columns=columns, where=both, limit=self.limit, streams=STREAMS, **at)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a table function of the lake. The function runs whenever the rows are read."""

    client: AirportClient
    function: tuple[str, str]
    arguments: Sequence[Any]
    named: dict[str, Any]
    schema: pa.Schema

    @classmethod
    def bind(
        cls, client: AirportClient, function: tuple[str, str], arguments: Sequence[Any], named: dict[str, Any]
    ) -> FunctionCall:
        """Ask the server for the columns of a call."""
        with client.call(function, *arguments, named=named) as rows:
            return cls(client, function, arguments, named, rows.schema)

    @property
    def sql(self) -> str:
        """The columns for a SELECT from this call."""
        return scan_columns(self.schema)

    def rows(self, columns: Sequence[str], where: Predicate | None = None) -> Rows:
        """Run the function and return the given columns of the matching rows."""
        return self.client.call(self.function, *self.arguments, named=self.named, columns=columns, where=where)


class LakeScan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """A pyarrow dataset for DuckDB, which uses its schema and calls `scanner` with the columns and the filter it needs.

    DuckDB replaces an exception in its threads by an error of its own; `failures` collects the original exceptions.
    """

    def __init__(
        self, source: Source | FunctionCall, failures: list[SkiwayError]
    ) -> None:  # without super(), which needs a C++ dataset
        self._source = source
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self._source.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - the name in pyarrow
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner that streams the rows and applies DuckDB's filter, which DuckDB does not apply again."""
        names = self.schema.names if columns is None else list(columns)
        where = None if filter is None else predicate_of(filter, self.schema)
        try:
            rows = self._source.rows(columns_to_read(self.schema, names, filter), where)
        except SkiwayError as error:
            self._failures.append(error)
            raise
        reader = pa.RecordBatchReader.from_batches(rows.schema, self._collect_failures(rows))
        return ds.Scanner.from_batches(reader, columns=names, filter=filter)

    def _collect_failures(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        try:
            with rows:
                yield from rows
        except SkiwayError as error:
            self._failures.append(error)
            raise


# -- views -------------------------------------------------------------------------------------------------------------


class LakeName(NamedTuple):
    """The full name of a table in SQL."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)

    @property
    def shown(self) -> str:
        """The name for messages."""
        return ".".join(part if part.isidentifier() else quoted(part) for part in self)


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

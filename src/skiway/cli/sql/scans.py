"""Tables as SQL names them, and as the server does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from sqlglot import exp

from skiway.errors import InvalidArgument, SkiwayError

if TYPE_CHECKING:
    from skiway.client import AirportClient, Predicate, Rows
    from skiway.client.airport.catalog import Table

__all__ = ["LakeName", "LakeScan", "Source", "lake_name", "lake_tables", "quoted", "spoken"]


class LakeName(NamedTuple):
    """A table by its catalog, its schema and its own name."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)


def lake_name(table: exp.Table, default_catalog: str) -> LakeName:
    """What a statement means that changes `table`; it must name a schema."""
    if not table.db or not table.name:
        raise InvalidArgument(f"{table.sql('duckdb')} is no table of the lake: write catalog.schema.table")
    return LakeName(table.catalog or default_catalog, table.db, table.name)


def lake_tables(statement: exp.Expr) -> list[exp.Table]:
    """The tables of the lake that a statement reads: those with a schema. Files and what WITH defines have none."""
    return [
        each
        for each in statement.find_all(exp.Table)
        if each.db and each.name and isinstance(each.this, exp.Identifier)
    ]


def spoken(path: Sequence[str]) -> LakeName:
    """A table of the metastore as DuckDB names it."""
    from skiway.lake.schema import schema_name

    return LakeName(path[0], schema_name(path[1:-1]), path[-1])


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


# --------------------
# A table of the lake as DuckDB reads it: a dataset that is scanned anew for the columns that are asked for.


ROWID = "rowid"


@dataclass(frozen=True, slots=True)
class Source:
    """A table in one state, and what is known before DuckDB looks: a filter that all its rows have to pass."""

    client: AirportClient
    table: Table
    where: Predicate | None = None
    at: dict[str, str] = field(default_factory=dict)
    row_ids: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The visible columns; with the row id last, where it is wanted."""
        shown = [self.table.schema.field(self.table.position(name)) for name in self.table.columns]
        return pa.schema([*shown, pa.field(ROWID, pa.int64())] if self.row_ids else shown)

    def rows(self, columns: Sequence[str]) -> Rows:
        """The rows that pass, just these columns."""
        name = (self.table.schema_name, self.table.name)
        at: dict[str, Any] = self.at
        return self.client.scan(name, columns=columns, where=self.where, plan=False, **at)


class LakeScan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """What DuckDB takes for a dataset of pyarrow's: it asks for a schema, and for a scanner with columns and a filter.

    An error inside DuckDB's threads arrives as text of DuckDB's; the error itself is kept in `failures`.
    """

    def __init__(self, source: Source, failures: list[SkiwayError]) -> None:  # pyarrow's own takes what we have not
        self._source = source
        self._failures = failures

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._source.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - as pyarrow calls it
        **_: Any,
    ) -> ds.Scanner:
        """The rows as a stream; the filter is DuckDB's own, which it does not apply again."""
        try:
            wanted = self.schema.names if columns is None else list(columns)
            rows = self._source.rows(wanted)
        except SkiwayError as error:
            self._failures.append(error)
            raise
        reader = pa.RecordBatchReader.from_batches(rows.schema, self._watched(rows))
        return ds.Scanner.from_batches(reader, columns=wanted, filter=filter)

    def _watched(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        try:
            with rows:
                yield from rows
        except SkiwayError as error:
            self._failures.append(error)
            raise

"""Tables of the lake in DuckDB: their names in SQL, and datasets that scan them on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from skiway.cli.sql.engine import quoted
from skiway.errors import SkiwayError

if TYPE_CHECKING:
    from skiway.client import AirportClient, Predicate, Rows
    from skiway.client.airport.catalog import Table

__all__ = ["LakeName", "LakeScan", "Source", "sql_name"]


ROWID = "rowid"


class LakeName(NamedTuple):
    """The full name of a table in SQL."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self)


def sql_name(path: Sequence[str]) -> LakeName:
    """Return the name in SQL of a table of the metastore."""
    from skiway.schema_names import schema_name

    return LakeName(path[0], schema_name(path[1:-1]), path[-1])


@dataclass(frozen=True, slots=True)
class Source:
    """A table to scan: its client, the filter to push down, the time to travel to, and whether to include row ids."""

    client: AirportClient
    table: Table
    where: Predicate | None = None
    at: dict[str, str] = field(default_factory=dict)
    row_ids: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The visible columns, with the row id last if it is included."""
        visible = [self.table.schema.field(self.table.position(name)) for name in self.table.columns]
        return pa.schema([*visible, pa.field(ROWID, pa.int64())] if self.row_ids else visible)

    def rows(self, columns: Sequence[str]) -> Rows:
        """Scan the given columns of the matching rows."""
        name = (self.table.schema_name, self.table.name)
        at: dict[str, Any] = self.at
        return self.client.scan(name, columns=columns, where=self.where, **at)


class LakeScan(ds.Dataset):  # type: ignore[misc]  # which has no types
    """A pyarrow dataset for DuckDB, which uses its schema and calls `scanner` with the columns and the filter it needs.

    DuckDB replaces an exception in its threads by an error of its own; `failures` collects the original exceptions.
    """

    def __init__(
        self, source: Source, failures: list[SkiwayError]
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
        try:
            names = self.schema.names if columns is None else list(columns)
            rows = self._source.rows(names)
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

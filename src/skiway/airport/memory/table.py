"""Tables of a catalog in memory: the one of now, and those of the past."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import filters
from skiway.airport.catalog import HasStatistics, Table, TimeTravel
from skiway.airport.ddl import DynamicTable
from skiway.airport.memory import ddl
from skiway.airport.memory.ddl import altered
from skiway.airport.memory.rows import CHUNK_ROWS, Rows
from skiway.airport.memory.snapshots import TableState
from skiway.airport.memory.statements import DeleteRows, InsertRows, UpdateRows
from skiway.airport.memory.statistics import column_statistics
from skiway.airport.memory.transactions import Database
from skiway.airport.scan import ScanOptions, TimePoint, project_schema
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.writing import Operation, Statement, Writable, Write
from skiway.errors import InvalidArgument

__all__ = ["MemoryTable", "PastTable"]

_STATEMENTS: Final[dict[Operation, Callable[..., Statement]]] = {
    "insert": InsertRows,
    "update": UpdateRows,
    "delete": DeleteRows,
}


class _Readable(Table, HasStatistics):
    """What the table of now and those of the past have in common."""

    def __init__(self, database: Database, schema_name: str, state: TableState) -> None:
        self.name = state.definition.name
        self.comment = state.definition.comment
        self._database = database
        self._schema_name = schema_name

    @abstractmethod
    def _state(self) -> TableState:
        """The table as it is read."""

    @property
    def schema(self) -> pa.Schema:
        """All columns, the row id last, with their comments and defaults."""
        return self._state().definition.schema

    def scan(self, options: ScanOptions) -> pa.RecordBatchReader:
        """The rows, in batches that share the table's memory unless a filter made them smaller."""
        if options.batch_size is not None and options.batch_size < 1:
            raise InvalidArgument(f"batches of {options.batch_size} rows were asked for: ask for at least one row")
        rows = self._state().rows
        schema = project_schema(rows.schema, options.columns)
        batches = _scanned(
            rows,
            schema.names,
            condition=filters.to_arrow(options.filter, rows.schema) if options.filter else None,
            limit=None if options.filter else options.limit,  # the filter may be said in part: cut off no row it keeps
            size=min(options.batch_size or CHUNK_ROWS, CHUNK_ROWS),
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def row_count(self) -> int:
        """How many rows there are."""
        return len(self._state().rows)

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:  # noqa: ARG002
        """Exact statistics of the rows there are."""
        state = self._state()
        return column_statistics(state, state.definition.column(column), self._database.sandbox)

    def to_arrow(self) -> pa.Table:
        """All rows without their ids, nothing copied."""
        state = self._state()
        return state.rows.table(state.definition.visible.names)


class PastTable(_Readable):
    """A table as it was; it can be read and nothing else."""

    def __init__(self, database: Database, schema_name: str, state: TableState) -> None:
        super().__init__(database, schema_name, state)
        self._was = state

    def _state(self) -> TableState:
        return self._was


class MemoryTable(_Readable, TimeTravel, Writable, DynamicTable):
    """The table of that name, as the request that asks sees it: newest, or within its transaction."""

    def _state(self) -> TableState:
        return self._database.session().snapshot.open_table(self._schema_name, self.name)

    def at(self, point: TimePoint) -> PastTable | None:
        """The table of this name at a version or a time."""
        snapshot = self._database.store.at(point)
        state = snapshot.table(self._schema_name, self.name) if snapshot else None
        return PastTable(self._database, self._schema_name, state) if state else None

    def write(self, write: Write) -> Statement:
        """Begin an INSERT, UPDATE or DELETE."""
        session = self._database.session()
        table = session.snapshot.open_table(self._schema_name, self.name)
        make = _STATEMENTS[write.operation]
        return make(write, schema=self._schema_name, table=table, session=session, sandbox=self._database.sandbox)

    # -- ALTER TABLE --------------------------------------------------------------------------------------------------

    def add_column(self, field: pa.Field, *, if_not_exists: bool = False) -> None:
        """A new last column."""
        self._alter(lambda t: ddl.add_column(t, field, self._database.sandbox, if_not_exists=if_not_exists))

    def remove_column(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Remove a column."""
        self._alter(lambda t: ddl.remove_column(t, name, if_exists=if_exists, cascade=cascade))

    def rename_column(self, name: str, new_name: str) -> None:
        """Give a column another name."""
        self._alter(lambda t: ddl.rename_column(t, name, new_name, self._database.sandbox))

    def change_column_type(self, field: pa.Field, expression: str) -> None:
        """Give a column another type; without an expression its values are cast."""
        self._alter(lambda t: ddl.change_column_type(t, field, expression, self._database.sandbox))

    def set_not_null(self, name: str) -> None:
        """Refuse NULLs from now on."""
        self._alter(lambda t: ddl.set_not_null(t, name, self._database.sandbox))

    def drop_not_null(self, name: str) -> None:
        """Allow NULLs."""
        self._alter(lambda t: ddl.drop_not_null(t, name))

    def set_default(self, name: str, expression: str) -> None:
        """The SQL for values that INSERT leaves out; "" for none."""
        self._alter(lambda t: ddl.set_default(t, name, expression, self._database.sandbox))

    def add_constraint(self, constraint: str) -> None:
        """One more rule, as SQL."""
        self._alter(lambda t: ddl.add_constraint(t, constraint, self._database.sandbox))

    def add_field(self, path: Sequence[str], field: pa.Field, *, if_not_exists: bool = False) -> None:
        """A new last member of the struct at `path`."""
        self._alter(lambda t: ddl.add_field(t, path, field, self._database.sandbox, if_not_exists=if_not_exists))

    def rename_field(self, path: Sequence[str], new_name: str) -> None:
        """Give the struct member at `path` another name."""
        self._alter(lambda t: ddl.rename_field(t, path, new_name))

    def remove_field(self, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False) -> None:
        """Remove the struct member at `path`."""
        self._alter(lambda t: ddl.remove_field(t, path, if_exists=if_exists, cascade=cascade))

    def _alter(self, edit: Callable[[TableState], TableState]) -> None:
        self._database.session().apply(altered(self._schema_name, self.name, edit))


def _scanned(
    rows: Rows, columns: Sequence[str], *, condition: pc.Expression | None, limit: int | None, size: int
) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in rows.batches():
        part = _matching(batch, condition).select(columns)
        part = part if left is None else part.slice(0, left)
        for start in range(0, part.num_rows, size):
            yield part.slice(start, size)
        if left is not None:
            left -= part.num_rows
            if left <= 0:
                return


def _matching(batch: pa.RecordBatch, condition: pc.Expression | None) -> pa.RecordBatch:
    if condition is None:
        return batch
    try:
        return batch.filter(condition)
    except pa.ArrowException:  # an overflow on the way, say: the client filters once more, more rows are always right
        return batch

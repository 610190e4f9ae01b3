"""INSERT, UPDATE and DELETE statements, which collect batches and commit them as one change.

NOT NULL and CHECK constraints are checked for each batch, keys at the commit. An UPDATE or DELETE remembers the stamps of
its rows when it begins. If another statement changes or deletes one of them before the commit, it fails with `Conflict` and
changes nothing. An INSERT never conflicts, unless the table itself is altered.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import to_column
from skiway.airport.memory.definitions import Sandbox, TableDefinition, check_keys, check_rows, default_expression
from skiway.airport.memory.rows import Found, Rows
from skiway.airport.memory.transactions import Session, Snapshot, TableState, change_numbers
from skiway.airport.tables import Statement, Write, rowid_index
from skiway.errors import Conflict, InvalidArgument, NotFound, NullRowId


class _RowStatement(Statement):
    """The base of all statements: the table when the statement began, and one change at the commit."""

    def __init__(self, write: Write, *, schema: str, table: TableState, session: Session, sandbox: Sandbox) -> None:
        self._returning = write.options.returning
        self._schema = schema
        self._initial = table
        self._session = session
        self._sandbox = sandbox
        self._stamp = next(change_numbers)

    @property
    def _definition(self) -> TableDefinition:
        return self._initial.definition

    def abort(self) -> None:
        """Do nothing: changes are only made by `commit`."""

    def _apply(self) -> None:
        self._session.apply(self._change)

    def _change(self, snapshot: Snapshot) -> Snapshot:
        name = self._definition.name
        table = snapshot.table(self._schema, name)
        if table is None or table.revision != self._initial.revision:
            raise Conflict(f"table {self._schema}.{name} was altered or dropped since this statement began: retry it")
        return snapshot.with_table(self._schema, table.with_rows(self._edit(table)))

    @abstractmethod
    def _edit(self, table: TableState) -> Rows:
        """The rows of the table after this statement."""


# -- INSERT -----------------------------------------------------------------------------------------------------------


class InsertRows(_RowStatement):
    """An INSERT. Missing columns get their defaults."""

    def __init__(self, write: Write, **context: Any) -> None:
        super().__init__(write, **context)
        self._columns = _columns(self._definition, write.schema)
        self._batches: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Collect new rows and assign their row ids."""
        self._session.stay_alive()
        visible = [
            to_column(rows.column(source), field)
            if source is not None
            else fill_column(field, rows.num_rows, self._sandbox)
            for field, source in zip(self._definition.columns, self._columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(visible, schema=self._definition.visible)
        check_rows(self._definition, batch, self._sandbox)
        self._batches.append(self._initial.with_row_ids(batch))
        return batch if self._returning else None

    def commit(self) -> int:
        """Append the rows to the newest version of the table."""
        count: int = sum(batch.num_rows for batch in self._batches)
        if count:
            self._apply()
        return count

    def _edit(self, table: TableState) -> Rows:
        rows = table.rows.append(self._batches, self._stamp)
        check_keys(self._definition, rows, self._sandbox, written=self._batches)
        return rows


def fill_column(field: pa.Field, count: int, sandbox: Sandbox) -> pa.Array:
    """`count` values for a missing column: its default, evaluated for each row, or NULL."""
    default = default_expression(field)
    if default is None:
        return pa.nulls(count, field.type)
    return sandbox.evaluate(pa.table({"": pa.arange(0, count)}), default, field)


# -- UPDATE and DELETE ------------------------------------------------------------------------------------------------


class _ByRowId(_RowStatement):
    """The base of UPDATE and DELETE, which identify rows by their ids."""

    def __init__(self, write: Write, **context: Any) -> None:
        super().__init__(write, **context)
        self._rowid = rowid_index(write.operation, write.schema)
        self._ids: list[pa.Array] = []
        self._stamps: list[pa.Array] = []

    def commit(self) -> int:
        """Change the rows in the newest version of the table. Each row counts once."""
        if not any(map(len, self._ids)):
            return 0
        self._apply()
        return int(pc.count_distinct(pa.concat_arrays(self._ids)).as_py())

    def _find(self, rows: pa.RecordBatch) -> Found:
        """Find rows in the initial version of the table, and remember their ids and stamps."""
        self._session.stay_alive()
        ids = _row_ids(rows.column(self._rowid))
        location = self._initial.rows.find(ids)
        if location.positions.null_count:
            self._raise_missing(ids.filter(location.positions.is_null()))
        self._ids.append(ids)
        self._stamps.append(self._initial.rows.stamps(location))
        return location

    def _raise_missing(self, ids: pa.Array) -> None:
        newest = self._session.snapshot.table(self._schema, self._definition.name)
        if newest is not None and newest.rows.find(ids).positions.null_count < len(ids):
            raise Conflict(f"row {ids[0]} of {self._definition.name} was inserted after this statement began: retry it")
        raise NotFound(f"table {self._definition.name!r} has no row with id {ids[0]}", key="row", row=str(ids[0]))

    def _locate(self, table: TableState, ids: pa.Array, stamps: pa.Array) -> Found:
        """Find rows in the newest version of the table; `Conflict` if a row was changed since the statement began."""
        location = table.rows.find(ids)
        unchanged = pc.equal(table.rows.stamps(location), stamps).fill_null(False)
        if not pc.all(unchanged, min_count=0).as_py():
            changed = ids.filter(pc.invert(unchanged))[0]
            raise Conflict(
                f"row {changed} of {self._definition.name} was changed or deleted by another statement since this one "
                "began: retry it"
            )
        return location

    def _last_of_each(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Ids, stamps and input positions without duplicates. If a row occurs twice, the last occurrence wins."""
        ids, stamps = pa.concat_arrays(self._ids), pa.concat_arrays(self._stamps)
        positions = pa.arange(0, len(ids))
        if pc.count_distinct(ids).as_py() < len(ids):
            last = pa.table({"id": ids, "position": positions}).group_by("id").aggregate([("position", "max")])
            positions = last.column("position_max").combine_chunks()
        return ids.take(positions), stamps.take(positions), positions


class UpdateRows(_ByRowId):
    """An UPDATE of some columns."""

    def __init__(self, write: Write, **context: Any) -> None:
        super().__init__(write, **context)
        self._columns = _columns(self._definition, write.schema, rowid=self._rowid)
        self._after: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Collect new values of rows."""
        before = self._initial.rows.take(self._find(rows))
        columns = [
            to_column(rows.column(source), field) if source is not None else before.column(index)
            for index, (field, source) in enumerate(zip(self._definition.columns, self._columns, strict=True))
        ]
        after = pa.RecordBatch.from_arrays([*columns, self._ids[-1]], schema=self._definition.schema)
        check_rows(self._definition, after, self._sandbox)
        self._after.append(after)
        return self._echo(rows) if self._returning else None

    def _edit(self, table: TableState) -> Rows:
        ids, stamps, positions = self._last_of_each()
        after = pa.concat_batches(self._after).take(positions)
        rows = table.rows.replaced(self._locate(table, ids, stamps), after, self._stamp)
        check_keys(self._definition, rows, self._sandbox, written=[after])
        return rows

    def _echo(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The input rows with the row id last, because the client reads columns by position."""
        order = [*(i for i in range(rows.num_columns) if i != self._rowid), self._rowid]
        return rows.select(order)


class DeleteRows(_ByRowId):
    """A DELETE."""

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Collect the ids of rows to delete."""
        location = self._find(rows)
        return _visible(self._definition, self._initial.rows.take(location)) if self._returning else None

    def _edit(self, table: TableState) -> Rows:
        ids, stamps, _ = self._last_of_each()
        return table.rows.removed(self._locate(table, ids, stamps))


# -- input ------------------------------------------------------------------------------------------------------------


def _columns(definition: TableDefinition, schema: pa.Schema, *, rowid: int | None = None) -> list[int | None]:
    """For each column of the table, the index of the input column, or None."""
    sources: list[int | None] = [None] * len(definition.columns)
    for index, name in enumerate(schema.names):
        if index == rowid:
            continue
        position = definition.position(name)
        if position is None:
            shown = ", ".join(map(repr, definition.visible.names))
            raise InvalidArgument(f"table {definition.name!r} has no column {name!r}; it has {shown}")
        if sources[position] is not None:
            raise InvalidArgument(f"column {name!r} of table {definition.name!r} occurs twice in the input")
        sources[position] = index
    return sources


def _row_ids(column: pa.Array) -> pa.Int64Array:
    if column.null_count:
        raise NullRowId
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise NotFound(f"a row id is out of range: {error}") from error


def _visible(definition: TableDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=definition.visible)

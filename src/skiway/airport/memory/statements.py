"""INSERT, UPDATE and DELETE, each collecting batches until it is committed as one change.

NOT NULL and CHECK are looked at as rows come, keys when all are there. An UPDATE or DELETE names rows by id, and says at
the commit what it saw of them when it began: if somebody else changed or removed one since, it fails with `Conflict`
and changes nothing. An INSERT never conflicts, unless the table itself was altered.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import to_column
from skiway.airport.memory.definitions import TableDefinition, check_keys, check_rows, default_of
from skiway.airport.memory.rows import Found, Rows
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import Snapshot, TableState, change_numbers
from skiway.airport.memory.transactions import Session
from skiway.airport.scan import find_rowid_column
from skiway.airport.writing import Statement, Write
from skiway.errors import Conflict, InvalidArgument, NotFound, NullRowId

__all__ = ["DeleteRows", "InsertRows", "UpdateRows", "filled"]

_ROWID_TYPES: Final = (pa.int64(), pa.int32(), pa.uint64())


class _RowStatement(Statement):
    """What all three share: the table as it was when the statement began, and one change at the end."""

    def __init__(self, write: Write, *, schema: str, table: TableState, session: Session, sandbox: Sandbox) -> None:
        self._returning = write.options.returning
        self._schema = schema
        self._began = table
        self._session = session
        self._sandbox = sandbox
        self._stamp = next(change_numbers)

    @property
    def _definition(self) -> TableDefinition:
        return self._began.definition

    def abort(self) -> None:
        """Nothing was changed so far, so nothing is to be undone."""

    def _apply(self) -> None:
        self._session.apply(self._change)

    def _change(self, snapshot: Snapshot) -> Snapshot:
        name = self._definition.name
        table = snapshot.table(self._schema, name)
        if table is None or table.revision != self._began.revision:
            raise Conflict(
                f"table {self._schema}.{name} was altered or dropped since this statement began: run it again"
            )
        return snapshot.with_table(self._schema, table.with_rows(self._edit(table)))

    @abstractmethod
    def _edit(self, table: TableState) -> Rows:
        """The table's rows after this statement."""


# -- INSERT -----------------------------------------------------------------------------------------------------------


class InsertRows(_RowStatement):
    """New rows; columns left out get their defaults."""

    def __init__(self, write: Write, **place: Any) -> None:
        super().__init__(write, **place)
        self._columns = _columns(self._definition, write.schema)
        self._batches: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new rows; they get their ids here."""
        self._session.stay_alive()
        visible = [
            to_column(rows.column(source), field) if source is not None else filled(field, rows.num_rows, self._sandbox)
            for field, source in zip(self._definition.columns, self._columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(visible, schema=self._definition.visible)
        check_rows(self._definition, batch, self._sandbox)
        self._batches.append(self._began.numbered(batch))
        return batch if self._returning else None

    def commit(self) -> int:
        """Add the rows to the newest version."""
        count: int = sum(batch.num_rows for batch in self._batches)
        if count:
            self._apply()
        return count

    def _edit(self, table: TableState) -> Rows:
        rows = table.rows.append(self._batches, self._stamp)
        check_keys(self._definition, rows, self._sandbox, written=self._batches)
        return rows


def filled(field: pa.Field, count: int, sandbox: Sandbox) -> pa.Array:
    """`count` values of a column that nobody gave: its default, evaluated for each row, or NULL."""
    default = default_of(field)
    if default is None:
        return pa.nulls(count, field.type)
    return sandbox.evaluate(pa.table({"": pa.arange(0, count)}), default, field)


# -- UPDATE and DELETE ------------------------------------------------------------------------------------------------


class _ByRowId(_RowStatement):
    """Statements about rows that exist."""

    def __init__(self, write: Write, **place: Any) -> None:
        super().__init__(write, **place)
        self._rowid = _rowid_column(write)
        self._ids: list[pa.Array] = []
        self._stamps: list[pa.Array] = []

    def commit(self) -> int:
        """Change the rows in the newest version; each counts once."""
        if not any(map(len, self._ids)):
            return 0
        self._apply()
        return int(pc.count_distinct(pa.concat_arrays(self._ids)).as_py())

    def _find(self, rows: pa.RecordBatch) -> Found:
        """Where the rows named are in the table as it was when the statement began; remembers what was seen there."""
        self._session.stay_alive()
        ids = _row_ids(rows.column(self._rowid))
        found = self._began.rows.find(ids)
        if found.positions.null_count:
            self._refuse_missing(ids.filter(found.positions.is_null()))
        self._ids.append(ids)
        self._stamps.append(self._began.rows.stamps(found))
        return found

    def _refuse_missing(self, ids: pa.Array) -> None:
        newest = self._session.snapshot.table(self._schema, self._definition.name)
        if newest is not None and newest.rows.find(ids).positions.null_count < len(ids):
            raise Conflict(f"row {ids[0]} of {self._definition.name} came after this statement began: run it again")
        raise NotFound(f"table {self._definition.name!r} has no row with id {ids[0]}", key="row", row=str(ids[0]))

    def _located(self, table: TableState, ids: pa.Array, stamps: pa.Array) -> Found:
        """Where the rows are now; `Conflict` if one is not what this statement saw."""
        found = table.rows.find(ids)
        unchanged = pc.equal(table.rows.stamps(found), stamps).fill_null(False)
        if not pc.all(unchanged, min_count=0).as_py():
            lost = ids.filter(pc.invert(unchanged))[0]
            raise Conflict(
                f"row {lost} of {self._definition.name} was changed or deleted by another statement since this one "
                "began: run it again"
            )
        return found

    def _last_of_each(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Ids, stamps and places in the input, one for each row: of a row named twice the last mention counts."""
        ids, stamps = pa.concat_arrays(self._ids), pa.concat_arrays(self._stamps)
        places = pa.arange(0, len(ids))
        if pc.count_distinct(ids).as_py() < len(ids):
            last = pa.table({"id": ids, "place": places}).group_by("id").aggregate([("place", "max")])
            places = last.column("place_max").combine_chunks()
        return ids.take(places), stamps.take(places), places


class UpdateRows(_ByRowId):
    """Other values for some columns of existing rows."""

    def __init__(self, write: Write, **place: Any) -> None:
        super().__init__(write, **place)
        self._columns = _columns(self._definition, write.schema, rowid=self._rowid)
        self._after: list[pa.RecordBatch] = []

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new values of rows."""
        before = self._began.rows.take(self._find(rows))
        columns = [
            to_column(rows.column(source), field) if source is not None else before.column(index)
            for index, (field, source) in enumerate(zip(self._definition.columns, self._columns, strict=True))
        ]
        after = pa.RecordBatch.from_arrays([*columns, self._ids[-1]], schema=self._definition.schema)
        check_rows(self._definition, after, self._sandbox)
        self._after.append(after)
        return self._echo(rows) if self._returning else None

    def _edit(self, table: TableState) -> Rows:
        ids, stamps, places = self._last_of_each()
        after = pa.concat_batches(self._after).take(places)
        rows = table.rows.replaced(self._located(table, ids, stamps), after, self._stamp)
        check_keys(self._definition, rows, self._sandbox, written=[after])
        return rows

    def _echo(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as they came, which is also how they are kept: the client reads them by position, row id last."""
        order = [*(i for i in range(rows.num_columns) if i != self._rowid), self._rowid]
        return rows.select(order)


class DeleteRows(_ByRowId):
    """Rows to remove."""

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the ids of rows."""
        found = self._find(rows)
        return _visible(self._definition, self._began.rows.take(found)) if self._returning else None

    def _edit(self, table: TableState) -> Rows:
        ids, stamps, _ = self._last_of_each()
        return table.rows.removed(self._located(table, ids, stamps))


# -- input ------------------------------------------------------------------------------------------------------------


def _columns(definition: TableDefinition, given: pa.Schema, *, rowid: int | None = None) -> list[int | None]:
    """For each column of the table, which column of the input holds it, or None."""
    sources: list[int | None] = [None] * len(definition.columns)
    for index, name in enumerate(given.names):
        if index == rowid:
            continue
        place = definition.position(name)
        if place is None:
            shown = ", ".join(map(repr, definition.visible.names))
            raise InvalidArgument(f"table {definition.name!r} has no column {name!r}; it has {shown}")
        if sources[place] is not None:
            raise InvalidArgument(f"column {name!r} of table {definition.name!r} is given twice")
        sources[place] = index
    return sources


def _rowid_column(write: Write) -> int:
    index = find_rowid_column(write.schema)
    if index is None:
        raise InvalidArgument(f"{write.operation.upper()} requires rowid column")
    if write.schema.field(index).type not in _ROWID_TYPES:
        raise InvalidArgument(f"rowid must be integer type, not {write.schema.field(index).type}")
    return index


def _row_ids(column: pa.Array) -> pa.Int64Array:
    if column.null_count:
        raise NullRowId
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise NotFound(f"a row id is larger than any that was given out: {error}") from error


def _visible(definition: TableDefinition, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=definition.visible)

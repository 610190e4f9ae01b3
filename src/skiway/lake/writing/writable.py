"""A table of the lake with all statements that change it. On a table of a connector they are rejected.

MERGE is updates, deletes and inserts in one commit, or in that of an explicit transaction. Unlike UPDATE, it fails if others have
changed the table in between: rows that they inserted could match.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import DmlOptions, DynamicTable, Statement, Writable, Write, current_request
from skiway.errors import ConstraintViolation, NotFound, Unsupported
from skiway.formats.extension_types import WkbType, coordinate_system
from skiway.formats.iceberg.changes import evolution
from skiway.formats.iceberg.changes.commits import overwrite
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.lake.context import FirstInsert
from skiway.lake.policies import ConcealedChange
from skiway.lake.reading.columns import ROWID, Columns
from skiway.lake.reading.state import TableState
from skiway.lake.reading.table import LakeTable, under_policies
from skiway.lake.transactions import is_explicit
from skiway.lake.writing.inserting import BUFFER_BYTES, Changes, InsertRows, Target
from skiway.lake.writing.rewriting import DeleteRows, UpdateRows
from skiway.metastore.transactions.staged_writes import NewWrite
from skiway.sql.queries import MERGE_ACTION, MERGE_ROWID

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_DELETED = "$deleted"


class MergeRows(UpdateRows):
    """Changes and inserts rows. Batches are those of a `MergeQuery`; `counts` has the number of rows by action."""

    _kind = "merge"

    def __init__(self, changes: Changes, state: TableState) -> None:
        announced = state.table.columns.announced
        super().__init__(changes, Write("update", announced, DmlOptions()), state)
        self._alone = True
        self._inserts = DataFileWriter(self._base.files, self._base.metadata, buffer_bytes=BUFFER_BYTES)
        self._writers.append(self._inserts)
        self._columns = [name for name in announced.names if name != ROWID]
        self.counts: Counter[str] = Counter()

    def apply(self, rows: pa.RecordBatch) -> None:
        """Take rows to insert, to update and to delete."""
        actions = rows.column(MERGE_ACTION)
        self.counts.update({each["values"]: each["counts"] for each in pc.value_counts(actions).to_pylist()})
        is_new = pc.equal(actions, "insert")
        self._inserts.write(self._stored(rows.filter(is_new)))
        changed = rows.filter(pc.invert(is_new))
        if changed.num_rows:
            values = self._stored(changed)
            deleted = pc.equal(changed.column(MERGE_ACTION), "delete")
            self._take(self._with_rowid(changed), values.append_column(_DELETED, deleted))

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._incoming.stored(self._incoming.announced(self._with_rowid(rows)))

    def _with_rowid(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the table, and the row id last, as an UPDATE has them."""
        return rows.select([*self._columns, MERGE_ROWID])

    def _check_named(self, count: int) -> None:
        if count != self.counts["update"] + self.counts["delete"]:
            raise several_matches(self._changes.record.display_name)

    def _changed(
        self, rows: pa.RecordBatch, here: np.ndarray, positions: np.ndarray, new: pa.RecordBatch
    ) -> pa.RecordBatch:
        deleted = positions[new.column(_DELETED).to_numpy(zero_copy_only=False)]
        kept = pa.array(~np.isin(here, deleted, assume_unique=True))
        return super()._changed(rows, here, positions, new).filter(kept)


class MergeIntoEmpty:
    """The same for a table without a snapshot, in which nothing can match."""

    def __init__(self, changes: Changes, *, known: Columns) -> None:
        base = changes.load()
        given = pa.schema([field for field in known.announced if field.name != ROWID])

        def commit(files: Sequence[DataFile], rows: int) -> None:
            if is_explicit():
                changes.stage(NewWrite(base, files, rows, expected_snapshot_id=0))
            else:
                changes.commit(overwrite([], files, based_on=None, alone=True, operation="append"))

        target = Target(changes.record.display_name, base.files, base.metadata, commit)
        self._insert = InsertRows(target, Write("insert", given, DmlOptions()), known=known)
        self._columns = given.names
        self.counts: Counter[str] = Counter()

    def apply(self, rows: pa.RecordBatch) -> None:
        """Take rows to insert."""
        self.counts["insert"] += rows.num_rows
        self._insert.apply(rows.select(self._columns))

    def commit(self) -> int:
        """Commit the rows, and return how many others were changed."""
        self._insert.commit()
        return 0

    def abort(self) -> None:
        """Delete the files that were written."""
        self._insert.abort()


def several_matches(table: str) -> ConstraintViolation:
    """The error of a MERGE with an ambiguous result."""
    return ConstraintViolation(
        f"a row of table {table!r} matches more than one row of the source, so its new values are ambiguous: make the "
        "source unique, for example with SELECT DISTINCT ON",
        key="merge.ambiguous",
        table=table,
    )


class WritableTable(LakeTable, Writable, DynamicTable):
    """INSERT, UPDATE, DELETE, MERGE and ALTER TABLE, each of which is one commit."""

    @property
    def _changes(self) -> Changes:
        return Changes(self.known.context, self.known.record)

    def created_as(self, columns: pa.Schema) -> WritableTable:
        """The table as the client knows it that has just created it with these columns."""
        return WritableTable(self.known.created_as(columns))

    def write(self, write: Write) -> Statement:
        """Start a statement."""
        if write.operation == "insert":
            self._row_changes.check_allowed(may_stage=True)
            self._refuse_returning(write)
            return self._insert(write)
        changes = self._changes_under_policies(write)
        changes.check_allowed(may_stage=True)
        state = self.known.state()
        if state is None:
            return NothingToChange(self.name)
        statement = (UpdateRows if write.operation == "update" else DeleteRows)(changes, write, state)
        if self.known.restriction is None:
            return statement
        return ConcealedChange(statement, under_policies(self.known, self))

    def _changes_under_policies(self, write: Write) -> Changes:
        """The changes of UPDATE and DELETE. Raise if they could reveal what policies hide from the caller.

        Row ids name rows, so the caller must see all of them. It must not change what decides about the values that it sees.
        """
        restriction = self.known.restriction
        if restriction is None or restriction.filters or restriction.missing:
            return self._changes  # which refuse callers under policies
        self._refuse_returning(write)
        if write.operation == "update":
            under_policies(self.known, self).check_update(write.schema.names)
        return self._row_changes

    def merging(self) -> MergeRows | MergeIntoEmpty:
        """Start a MERGE, which reads the table in the same state."""
        self._changes.check_allowed(may_stage=True)
        state = self.known.state()
        if state is None:
            return MergeIntoEmpty(self._changes, known=self.known.columns)
        return MergeRows(self._changes, state)

    @property
    def _row_changes(self) -> Changes:
        """Changes of rows by callers who may be under policies."""
        return Changes(self.known.context, self.known.record, within_policies=True)

    def _refuse_returning(self, write: Write) -> None:
        """Raise if policies restrict the caller, who would see values of other columns than it writes."""
        if write.options.returning and self.known.restriction is not None:
            raise self.known.restriction.refused(f"{write.operation.upper()} cannot return rows: remove RETURNING")

    def _insert(self, write: Write) -> Statement:
        def start() -> Statement:
            return InsertRows(Target.of(self._row_changes), write, known=self.known.columns)

        request = current_request()
        transactions, transaction = self.known.context.transactions, request.transaction_id
        created_at = self.known.record.created_at.ToDatetime(UTC)
        if self.known.is_created_by_caller and transactions.began_before(transaction, created_at):
            changes = self._row_changes
            return FirstInsert(start, lambda: changes.undo_create(request.session_id))
        return start()

    # -- ALTER TABLE --------------------------------------------------------------------------------------------------

    def add_column(self, field: pa.Field, *, if_not_exists: bool = False) -> None:
        """Add a column at the end, which is NULL in existing rows."""
        if if_not_exists and self._column(field.name) is not None:
            return
        _refuse_rules(field)
        self._alter(evolution.AddColumn(field.name, _type(field), _comment(field)))

    def remove_column(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:  # noqa: ARG002
        """Drop a column."""
        found = self._column(name)
        if found is None and if_exists:
            return
        self._alter(evolution.DropColumn(found or name))

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column."""
        self._alter(evolution.RenameColumn(self._column(name) or name, new_name))

    def change_column_type(self, field: pa.Field, expression: str) -> None:
        """Widen a column's type. Existing values stay, so an expression that changes them is rejected."""
        name = self._column(field.name) or field.name
        if expression and not _is_plain_cast(expression, name):
            raise Unsupported(
                f"column {name!r} cannot be converted by {expression!r}: a type can only be widened, which keeps the values; "
                "add a column, UPDATE it and drop the old one instead",
                key="column.change",
            )
        self._alter(evolution.WidenColumn(name, _type(field)))

    def set_not_null(self, name: str) -> None:
        """Raise `Unsupported`, unless the column is NOT NULL already: Iceberg columns can only become optional."""
        found = self._column(name)
        if found is None or self.schema.field(found).nullable:
            raise Unsupported(
                f"column {name!r} cannot become NOT NULL, because Iceberg does not support it: create the table again with "
                "NOT NULL",
                key="column.change",
            )

    def drop_not_null(self, name: str) -> None:
        """Allow NULLs in a column."""
        self._alter(evolution.MakeOptional(self._column(name) or name))

    def set_default(self, name: str, expression: str) -> None:
        """Raise `Unsupported`: managed tables have no defaults."""
        raise _unsupported(f"DEFAULT {expression} of column {name!r}")

    def add_constraint(self, constraint: str) -> None:
        """Raise `Unsupported`: managed tables have no constraints but NOT NULL."""
        raise _unsupported(constraint)

    def add_field(self, path: Sequence[str], field: pa.Field, *, if_not_exists: bool = False) -> None:
        """Add a member at the end of the struct at `path`."""
        if if_not_exists and self._has_member(path, field.name):
            return
        _refuse_rules(field)
        self._alter(evolution.AddColumn((*self._stored_path(path), field.name), _type(field), _comment(field)))

    def rename_field(self, path: Sequence[str], new_name: str) -> None:
        """Rename the struct member at `path`."""
        self._alter(evolution.RenameColumn(self._stored_path(path), new_name))

    def remove_field(self, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False) -> None:  # noqa: ARG002
        """Drop the struct member at `path`."""
        if if_exists and not self._has_member(path[:-1], path[-1]):
            return
        self._alter(evolution.DropColumn(self._stored_path(path)))

    def _alter(self, change: evolution.ColumnChange) -> None:
        self._changes.check_allowed()
        self._changes.commit(evolution.evolve([change]))

    def _column(self, name: str) -> str | None:
        """The stored name of a column, which is looked up case-insensitively."""
        return next((known for known in self.known.columns.stored.names if known.casefold() == name.casefold()), None)

    def _has_member(self, path: Sequence[str], name: str) -> bool:
        return self._member(self._stored_path(path), name) is not None

    def _stored_path(self, path: Sequence[str]) -> tuple[str, ...]:
        """The stored names along a path of struct members, which are looked up case-insensitively."""
        stored: tuple[str, ...] = ()
        for step in path:
            found = self._member(stored, step)
            stored = (*stored, step if found is None else found.name)
        return stored

    def _member(self, path: Sequence[str], name: str) -> pa.Field | None:
        """The member of the struct at a stored path with this name in any case."""
        fields: list[pa.Field] = list(self.known.columns.stored)
        for step in path:
            found = next((field for field in fields if field.name == step), None)
            fields = list(found.type) if found is not None and pa.types.is_struct(found.type) else []
        return next((field for field in fields if field.name.casefold() == name.casefold()), None)


class NothingToChange(Statement):
    """UPDATE or DELETE of a table without a snapshot."""

    def __init__(self, table: str) -> None:
        self._table = table

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Raise `NotFound`, because no row id can be valid."""
        raise NotFound(f"table {self._table!r} has no row with id {rows.column(rows.num_columns - 1)[0]}", key="row")

    def commit(self) -> int:
        """Return 0, because no row was changed."""
        return 0

    def abort(self) -> None:
        """Do nothing."""


def _type(field: pa.Field) -> pa.DataType:
    """The type, taking extension types in the metadata into account."""
    if coordinate_system(field) is not None:
        return WkbType.of(field)
    return pa.uuid() if (field.metadata or {}).get(b"ARROW:extension:name") == b"arrow.uuid" else field.type


def _comment(field: pa.Field) -> str | None:
    comment = (field.metadata or {}).get(b"comment")
    return comment.decode() if comment else None


def _refuse_rules(field: pa.Field) -> None:
    if not field.nullable:
        raise ConstraintViolation(
            f"column {field.name!r} cannot be added as NOT NULL: it is NULL in existing rows", key="column.not_null"
        )
    if (field.metadata or {}).get(b"default"):
        raise _unsupported(f"a default of column {field.name!r}")


def _unsupported(what: str) -> Unsupported:
    return Unsupported(
        f"{what} is not supported: managed tables are Iceberg tables, which have NOT NULL, but no defaults, keys, UNIQUE or "
        "CHECK",
        key="table.feature",
    )


def _is_plain_cast(expression: str, name: str) -> bool:
    column = rf'(?:"{re.escape(name)}"|{re.escape(name)})'
    cast = rf"(?:CAST\(\s*{column}\s+AS\s+[^()]+(?:\([^()]*\))?\s*\)|{column}(?:::.+)?)"
    return re.fullmatch(rf"\s*\(?\s*{cast}\s*\)?\s*", expression, re.IGNORECASE) is not None

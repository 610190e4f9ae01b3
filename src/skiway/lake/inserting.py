"""Rows as clients send them, made rows of the table as it is now.

A client sends the columns that it knows, in the types of its session. Columns are matched by id with those of now: they
may be called otherwise, or be wider. One that was dropped cannot be written any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.airport import Statement, Write
from skiway.airport.conversion import to_column
from skiway.errors import Conflict, ConstraintViolation, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.formats.iceberg.commits import append
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.types import arrow_schema
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.schemas import field_id
from skiway.lake.changes import Changes
from skiway.lake.columns import ROWID, Columns, table_changed

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["BUFFER_BYTES", "REFUSALS", "Incoming", "InsertRows", "Target"]


class Incoming:
    """Converts the batches of one statement; `given` is their schema, `known` the columns that the client knows."""

    def __init__(self, table: str, given: pa.Schema, *, known: Columns, now: pa.Schema) -> None:
        self._table = table
        names_now = {field_id(field): field for field in now}
        self.columns: list[tuple[int, pa.Field, pa.Field]] = []  # place in the input, as announced, as it is now
        for place, name in enumerate(given.names):
            if name != ROWID:
                at = _position(known.stored, name, table)
                found = names_now.get(field_id(known.stored.field(at)))
                if found is None:
                    raise table_changed(table, f"column {name!r} was dropped")
                self.columns.append((place, known.announced.field(at), found))

    @property
    def names(self) -> Sequence[str]:
        """What the columns that come are called now."""
        return [now.name for _, _, now in self.columns]

    def announced(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the types that the client was told; what does not fit them, or may not be NULL, is refused."""
        columns = [to_column(rows.column(place), told) for place, told, _ in self.columns]
        for column, (_, told, now) in zip(columns, self.columns, strict=True):
            if column.null_count and not now.nullable:
                raise ConstraintViolation(
                    f"NOT NULL constraint failed: {self._table}.{told.name}", key="column.not_null", column=told.name
                )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([told for _, told, _ in self.columns]))

    def stored(self, announced: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows under the names of now."""
        return announced.rename_columns(list(self.names))


def _position(schema: pa.Schema, name: str, table: str) -> int:
    for place, known in enumerate(schema.names):
        if known.casefold() == name.casefold():
            return place
    raise InvalidArgument(
        f"table {table!r} has no column {name!r}; it has {', '.join(schema.names)}", key="column.unknown", column=name
    )


# --------------------
# INSERT: rows stream into data files as they come, and all files are committed at once.


BUFFER_BYTES: Final = 32 << 20
"""How much of a statement waits in memory; many may run at once."""

REFUSALS: Final = (Conflict, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed)
"""Errors after which a commit is known not to have happened; after others its files may be in use."""


@dataclass(frozen=True)
class Target:
    """Where rows go: the table and the state of it that they are written for, and what commits their files."""

    name: str
    files: TableFiles
    metadata: TableMetadata
    commit: Callable[[Sequence[DataFile]], object]
    also_without_rows: bool = False

    @classmethod
    def of(cls, changes: Changes) -> Target:
        """An existing table, to which rows are appended, whatever is there by then."""
        base = changes.load()
        return cls(changes.record.display_name, base.files, base.metadata, lambda files: changes.commit(append(files)))


class InsertRows(Statement):
    """New rows. What waits in memory is bounded; files that are not committed are removed."""

    def __init__(self, target: Target, write: Write, *, known: Columns) -> None:
        self._target = target
        self._returning = write.options.returning
        now = arrow_schema(target.metadata.schema()).arrow
        self._incoming = Incoming(target.name, write.schema, known=known, now=now)
        self._check_required(now, target.name)
        self._writer = DataFileWriter(target.files, target.metadata, buffer_bytes=BUFFER_BYTES)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new rows."""
        taken = self._incoming.announced(rows)
        self._writer.write(self._incoming.stored(taken))
        return taken if self._returning else None

    def commit(self) -> int:
        """Make the rows visible."""
        with self._writer:  # which removes what it wrote if anything goes wrong on the way
            files = self._writer.close()
        if files or self._target.also_without_rows:
            try:
                self._target.commit(files)
            except REFUSALS:
                self._writer.abort()
                raise
        return self._writer.row_count

    def abort(self) -> None:
        """Remove what was written."""
        self._writer.abort()

    def _check_required(self, now: pa.Schema, table: str) -> None:
        missing = [field.name for field in now if not field.nullable and field.name not in self._incoming.names]
        if missing:
            raise ConstraintViolation(
                f"NOT NULL constraint failed: {table}.{missing[0]} is not given: DETACH and ATTACH again to see it",
                key="column.not_null",
                column=missing[0],
            )

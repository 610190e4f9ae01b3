"""INSERT: rows stream into data files as they come, and all files are committed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.airport import Statement, Write
from skiway.errors import Conflict, ConstraintViolation, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.formats.iceberg_commits import append
from skiway.formats.iceberg_types import arrow_schema
from skiway.formats.iceberg_warehouse import TableFiles
from skiway.formats.iceberg_writing import DataFileWriter
from skiway.lake.changing import Changes
from skiway.lake.columns import Columns
from skiway.lake.incoming import Incoming

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["BUFFER_BYTES", "REFUSALS", "InsertRows", "Target"]

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

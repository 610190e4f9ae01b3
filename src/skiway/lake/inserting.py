"""INSERT: rows stream into data files as they come, and all files are committed as one append."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from skiway.airport import Statement, Write
from skiway.errors import Conflict, ConstraintViolation, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed
from skiway.formats.iceberg_commits import append
from skiway.formats.iceberg_writing import DataFileWriter
from skiway.lake.changing import Changes
from skiway.lake.columns import Columns
from skiway.lake.incoming import Incoming

__all__ = ["BUFFER_BYTES", "REFUSALS", "InsertRows"]

BUFFER_BYTES: Final = 32 << 20
"""How much of a statement waits in memory; many may run at once."""

REFUSALS: Final = (Conflict, InvalidArgument, NotFound, PermissionDenied, PreconditionFailed)
"""Errors after which a commit is known not to have happened; after others its files may be in use."""


class InsertRows(Statement):
    """New rows. What waits in memory is bounded; files that are not committed are removed."""

    def __init__(self, changes: Changes, write: Write, *, known: Columns) -> None:
        base = changes.load()
        self._changes = changes
        self._returning = write.options.returning
        name = changes.record.display_name
        self._incoming = Incoming(name, write.schema, known=known, now=base.handle.schema.arrow)
        self._check_required(base.handle.schema.arrow, name)
        self._writer = DataFileWriter(base.files, base.metadata, buffer_bytes=BUFFER_BYTES)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new rows."""
        taken = self._incoming.announced(rows)
        self._writer.write(self._incoming.stored(taken))
        return taken if self._returning else None

    def commit(self) -> int:
        """Append the rows to whatever is there by then."""
        with self._writer:  # which removes what it wrote if anything goes wrong on the way
            files = self._writer.close()
        if files:
            try:
                self._changes.commit(append(files))
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

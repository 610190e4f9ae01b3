"""UPDATE and DELETE: the files that hold the rows named are written anew, and replaced in one snapshot.

Rows that others add meanwhile stay. If others rewrote one of the same files, the commit fails and nothing has changed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import Statement, Write, find_rowid_column
from skiway.airport.memory import to_column
from skiway.errors import InvalidArgument, NotFound
from skiway.formats import FILE_ORDINAL, ROW_POSITION, Content, Snapshot, TableHandle
from skiway.formats.iceberg_commits import overwrite
from skiway.formats.iceberg_writing import DataFileWriter
from skiway.lake.changing import Changes
from skiway.lake.columns import Columns
from skiway.lake.incoming import Incoming
from skiway.lake.inserting import BUFFER_BYTES, REFUSALS
from skiway.lake.row_ids import RowIds

__all__ = ["DeleteRows", "UpdateRows"]


class _ByRowId(Statement):
    """What both share: rows named by id, found again at the commit."""

    def __init__(self, changes: Changes, write: Write, *, snapshot: Snapshot, handle: TableHandle) -> None:
        self._changes = changes
        self._base = changes.load()
        self._snapshot, self._handle = snapshot, handle
        self._returning = write.options.returning
        found = find_rowid_column(write.schema)
        if found is None:
            raise InvalidArgument(f"{write.operation.upper()} requires rowid column")
        self._rowid = found
        files = handle.files(snapshot)
        self._row_ids = RowIds.of(changes.record.resource_id.id, snapshot.id, files)
        self._files = files.filter(pc.field("content") == Content.DATA)
        self._named: list[np.ndarray] = []
        self._writer = DataFileWriter(self._base.files, self._base.metadata, buffer_bytes=BUFFER_BYTES)

    def commit(self) -> int:
        """Replace the files that hold the rows; each row counts once."""
        ids, last = _last_of_each(self._named)
        if not len(ids):
            return 0
        ordinals, positions = self._row_ids.decode(pa.array(ids))
        touched = self._files.filter(_is_one_of(self._files["ordinal"], ordinals))
        with self._writer:  # which removes what it wrote if anything goes wrong on the way
            for place in range(touched.num_rows):
                here = ordinals == touched["ordinal"][place].as_py()
                self._rewrite(touched.slice(place, 1), positions[here], last[here])
            added = self._writer.close()
        operation: Literal["overwrite", "delete"] = "overwrite" if added else "delete"
        try:
            self._changes.commit(
                overwrite(touched["path"].to_pylist(), added, based_on=self._snapshot.id, operation=operation)
            )
        except REFUSALS:
            self._writer.abort()
            raise
        return len(ids)

    def abort(self) -> None:
        """Remove what was written."""
        self._writer.abort()

    @abstractmethod
    def _rewrite(self, file: pa.Table, positions: np.ndarray, places: np.ndarray) -> None:
        """Write what becomes of a file in which the rows at `positions`, ascending, are named."""

    def _take(self, rows: pa.RecordBatch) -> pa.Array:
        """The ids of a batch, once they are known to be those of rows of the snapshot."""
        ids = rows.column(self._rowid).cast(pa.int64())
        ordinals, positions = self._row_ids.decode(ids)
        counts = np.zeros(self._handle.files(self._snapshot).num_rows + 1, dtype=np.int64)
        counts[self._files["ordinal"].to_numpy()] = self._files["row_count"].to_numpy()
        beyond = positions >= counts[np.minimum(ordinals, len(counts) - 1)]
        if beyond.any():
            lost = ids.to_numpy()[beyond][0]
            raise NotFound(
                f"table {self._changes.record.display_name!r} has no row with id {lost}", key="row", row=str(lost)
            )
        self._named.append(ids.to_numpy())
        return ids

    def _rows_of(self, file: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of a file as the table has them now, each with its place."""
        schema = self._base.handle.schema.arrow
        return iter(self._handle.read(self._snapshot, files=file, schema=schema, positions=True))


class DeleteRows(_ByRowId):
    """Rows to remove."""

    def __init__(
        self, changes: Changes, write: Write, *, snapshot: Snapshot, handle: TableHandle, known: Columns
    ) -> None:
        super().__init__(changes, write, snapshot=snapshot, handle=handle)
        self._known = known

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the ids of rows; with RETURNING, read them first."""
        ids = self._take(rows)
        return self._as_they_were(ids) if self._returning else None

    def _rewrite(self, file: pa.Table, positions: np.ndarray, places: np.ndarray) -> None:  # noqa: ARG002
        live = file["row_count"][0].as_py() - (file["deleted_rows"][0].as_py() or 0)
        if len(positions) == live:
            return  # nothing is left of it
        for batch in self._rows_of(file):
            here = batch.column(ROW_POSITION).to_numpy()
            kept = batch.filter(pa.array(~np.isin(here, positions, assume_unique=True)))
            self._writer.write(kept.select(batch.schema.names[:-2]))

    def _as_they_were(self, ids: pa.Array) -> pa.RecordBatch:
        ordinals, _ = self._row_ids.decode(ids)
        files = self._files.filter(_is_one_of(self._files["ordinal"], ordinals))
        table = self._changes.record.display_name
        readable = self._known.readable(self._base.handle.schema.arrow, table=table)
        reader = self._handle.read(self._snapshot, files=files, schema=readable, positions=True)
        found = [batch.filter(pc.is_in(self._ids(batch), value_set=ids)) for batch in reader]
        rows = pa.Table.from_batches(found, reader.schema).combine_chunks()
        shown = rows.take(pc.index_in(ids, value_set=self._ids(rows)))
        columns = [
            shown[field.name].combine_chunks() if field.name in readable.names else pa.nulls(len(ids), field.type)
            for field in self._known.stored
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._known.stored.names)

    def _ids(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        ordinals, positions = rows.column(FILE_ORDINAL), rows.column(ROW_POSITION)
        if isinstance(ordinals, pa.ChunkedArray):
            ordinals, positions = ordinals.combine_chunks(), positions.combine_chunks()
        return self._row_ids.encode(ordinals, positions)


class UpdateRows(_ByRowId):
    """Other values for some columns of existing rows."""

    def __init__(
        self, changes: Changes, write: Write, *, snapshot: Snapshot, handle: TableHandle, known: Columns
    ) -> None:
        super().__init__(changes, write, snapshot=snapshot, handle=handle)
        now = self._base.handle.schema.arrow
        self._incoming = Incoming(changes.record.display_name, write.schema, known=known, now=now)
        self._values: list[pa.RecordBatch] = []
        self._all_values: pa.RecordBatch | None = None

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new values of rows."""
        self._take(rows)
        self._values.append(self._incoming.stored(self._incoming.announced(rows)))
        if not self._returning:
            return None
        # The client reads them by position, the row id last.
        return rows.select([*(place for place in range(rows.num_columns) if place != self._rowid), self._rowid])

    def _rewrite(self, file: pa.Table, positions: np.ndarray, places: np.ndarray) -> None:
        if self._all_values is None:
            self._all_values = pa.concat_batches(self._values)
        new = self._all_values.take(pa.array(places))
        types = {field.name: field.type for field in self._base.handle.schema.arrow}
        for batch in self._rows_of(file):
            here = batch.column(ROW_POSITION).to_numpy()
            found = np.minimum(np.searchsorted(positions, here), len(positions) - 1)
            changed = positions[found] == here
            # Of old and new values behind each other, those that each row has from now on.
            chosen = pa.array(np.where(changed, found + batch.num_rows, np.arange(batch.num_rows)))
            names = batch.schema.names[:-2]
            columns = [
                pa.concat_arrays([batch.column(name), _as(new.column(name), types[name])]).take(chosen)
                if name in new.schema.names
                else batch.column(name)
                for name in names
            ]
            self._writer.write(pa.RecordBatch.from_arrays(columns, names=names))


def _is_one_of(ordinals: pa.ChunkedArray, wanted: np.ndarray) -> pa.ChunkedArray:
    return pc.is_in(ordinals, value_set=pa.array(np.unique(wanted), pa.int32()))


def _as(column: pa.Array, of: pa.DataType) -> pa.Array:
    """The same values in the type that the column has now, which is the same or wider."""
    return to_column(column, pa.field("", of))


def _last_of_each(named: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Ids, ascending, and where each was named: of one named twice the last mention counts."""
    ids = np.concatenate(named) if named else np.array([], dtype=np.int64)
    found, from_the_end = np.unique(ids[::-1], return_index=True)
    return found, len(ids) - 1 - from_the_end

"""UPDATE and DELETE, each of which is one snapshot.

By default the files that contain the rows are rewritten (copy-on-write). A table can select merge-on-read instead: the rows
are deleted by position, with delete files, and an UPDATE adds a file with the changed rows. A file without remaining rows
is removed in both modes.

Rows keep their lineage (see `skiway.formats.iceberg.table`). Rows that others insert at the same time stay. If others rewrote
one of the same files, or deleted rows of it, the commit fails and changes nothing.

In an explicit transaction, the files wait for its commit. Files that the same transaction has written before are always
rewritten, so no delete files refer to them.

The ids of rows to change arrive in any order, with the rows. Each time the buffer is full it is sorted and becomes a run; at
the end the runs are merged in
small pieces. All runs are in one unnamed temporary file, which disappears with the process.
"""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import Statement, Write, find_rowid_column
from skiway.airport.conversion import to_column
from skiway.errors import InvalidArgument, NotFound, Unavailable
from skiway.formats import FILE_ORDINAL, ROW_POSITION, data_files
from skiway.formats.iceberg.changes.commits import Operation, overwrite
from skiway.formats.iceberg.table import FileLineage, Lineage
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter, WritingStatement, is_merge_on_read
from skiway.foundation.causes import cause_of
from skiway.lake.reading.scans import RowIds
from skiway.lake.reading.state import TableState
from skiway.lake.writing.inserting import BUFFER_BYTES, REFUSALS, Changes, Incoming
from skiway.metastore.transactions.staged_writes import NewWrite, StagedChange

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_BUFFER_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10  # how much of each run is in memory while they are merged


class WaitingRows:
    """Rows by id. Of rows with the same id the last one counts. Not thread-safe; must be closed."""

    def __init__(self, folder: str | None = None, *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._folder, self._buffer_bytes = folder, buffer_bytes
        self._buffered: list[pa.RecordBatch] = []  # the ids, and then the values
        self._bytes = 0
        self._runs: list[_Run] = []
        self._open = ExitStack()
        self._file: int | None = None
        self._end = 0

    def add(self, ids: pa.Array, values: pa.RecordBatch) -> None:
        """Add rows. All batches must have the same columns."""
        rows = pa.RecordBatch.from_arrays([ids, *values.columns], names=["", *values.schema.names])
        self._buffered.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._buffer_bytes:
            try:
                self._runs.append(self._spilled(_sorted(self._buffered)))
            except OSError as error:
                cause = cause_of(error)
                problem = f" ({cause.problem})" if cause is not None else ""
                raise Unavailable(
                    f"the rows of this statement cannot be buffered on the server's disk{problem}: change fewer rows at "
                    "once, or ask the operator for more space",
                    key="statement.room",
                    detail=str(error),
                ) from error
            self._buffered, self._bytes = [], 0

    def seal(self) -> None:
        """Finish adding rows."""
        if self._buffered:
            self._runs.append(_Run([_Piece(_sorted(self._buffered))]))
            self._buffered = []

    def take(self, before: int) -> tuple[np.ndarray, pa.RecordBatch] | None:
        """The rows with ids below `before` that were not taken yet, sorted by id; None if there are none."""
        found = [part for run in self._runs for part in run.take(before)]
        if not found:
            return None
        rows = found[0] if len(found) == 1 else _sorted(found)
        return rows.column(0).to_numpy(), rows.select(range(1, rows.num_columns))

    def close(self) -> None:
        """Discard all rows."""
        self._buffered, self._runs = [], []
        self._open.close()

    def _spilled(self, rows: pa.RecordBatch) -> _Run:
        at_once = max(1, rows.num_rows * _PIECE_BYTES // max(rows.nbytes, 1))
        return _Run([self._written(rows.slice(start, at_once)) for start in range(0, rows.num_rows, at_once)])

    def _written(self, rows: pa.RecordBatch) -> _Piece:
        if self._file is None:
            opened = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by the ExitStack
            self._file = self._open.enter_context(opened).fileno()
        data = memoryview(rows.serialize())
        piece = _Piece(None, rows.schema, self._file, self._end, len(data))
        while data:
            written = os.pwrite(self._file, data, self._end)
            data, self._end = data[written:], self._end + written
        return piece


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a run: in memory, or their location in a file."""

    rows: pa.RecordBatch | None
    schema: pa.Schema | None = None
    file: int = -1
    offset: int = 0
    size: int = 0

    def read(self) -> pa.RecordBatch:
        if self.rows is not None:
            return self.rows
        return pa.ipc.read_record_batch(pa.py_buffer(os.pread(self.file, self.size, self.offset)), self.schema)


@dataclass(slots=True)
class _Run:
    """Rows sorted by id, read piece by piece."""

    pieces: list[_Piece]
    next: int = 0  # the next piece to read
    rows: pa.RecordBatch | None = field(default=None, repr=False)  # rows that were read but not taken

    def take(self, before: int) -> list[pa.RecordBatch]:
        found = []
        while (rows := self._first()) is not None:
            count = int(np.searchsorted(rows.column(0).to_numpy(), before))
            if count:
                found.append(rows.slice(0, count))
            self.rows = rows.slice(count) if count < rows.num_rows else None
            if self.rows is not None:
                break
        return found

    def _first(self) -> pa.RecordBatch | None:
        if self.rows is None and self.next < len(self.pieces):
            self.rows, self.next = self.pieces[self.next].read(), self.next + 1
        return self.rows


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches sorted by id, the last one of each id."""
    rows = pa.concat_batches(batches)
    ids = rows.column(0).to_numpy()
    if len(ids) < 2 or (ids[1:] > ids[:-1]).all():  # the usual case
        return rows
    _, from_the_end = np.unique(ids[::-1], return_index=True)
    return rows.take(pa.array(len(ids) - 1 - from_the_end))


_UNKNOWN: Final = FileLineage(None, None)


class _ByRowId(Statement):
    """The common part of UPDATE and DELETE: rows that are named by id and found again at the commit, in bounded memory."""

    _kind: ClassVar[WritingStatement]

    def __init__(self, changes: Changes, write: Write, state: TableState) -> None:
        self._changes, self._known = changes, state.table.columns
        self._staged = state.staged  # what an explicit transaction has made of the table before
        self._own = frozenset[str]() if self._staged is None else self._staged.own_files
        self._base = changes.load()
        self._merges_on_read = is_merge_on_read(self._base.metadata.properties, self._kind)
        self._snapshot, self._handle = state.snapshot, state.iceberg
        self._returning = write.options.returning
        rowid = find_rowid_column(write.schema)
        if rowid is None:
            raise InvalidArgument(f"{write.operation.upper()} requires rowid column")
        self._rowid = rowid
        files = self._handle.files(self._snapshot)
        self._row_ids = RowIds.of(changes.record.resource_id.id, self._snapshot.id, files)
        self._files = data_files(files)
        self._counts = np.zeros(files.num_rows + 1, dtype=np.int64)  # row counts by ordinal; 0 beyond the last
        self._counts[self._files["ordinal"].to_numpy()] = self._files["row_count"].to_numpy()
        self._touched = np.zeros(files.num_rows, dtype=bool)
        self._named = WaitingRows(_disk_of(self._base.files))
        self._now = self._base.handle.schema.arrow
        has_lineage = self._base.metadata.format_version >= 3
        self._lineage = Lineage.of(self._now) if has_lineage else None
        self._inherited = self._handle.lineage(self._snapshot) if has_lineage else {}
        self._writer = DataFileWriter(
            self._base.files, self._base.metadata, buffer_bytes=BUFFER_BYTES, lineage=has_lineage
        )
        self._deletes = DeleteFileWriter(self._base.files, self._base.metadata)
        self._writers = [self._writer]
        self._removed: list[str] = []
        self._alone = False  # whether the commit fails if others have changed the table
        self._prepare(write)

    def _prepare(self, write: Write) -> None:
        """Prepare what only this kind of statement needs."""

    def commit(self) -> int:
        """Commit the change, and return the number of rows. Each row counts once."""
        ordinals = pa.array(np.flatnonzero(self._touched), pa.int32())
        touched = self._files.filter(pc.is_in(self._files["ordinal"], value_set=ordinals))
        if not (touched.num_rows or any(writer.row_count for writer in self._writers)):
            self.abort()
            return 0
        with closing(self._named), ExitStack() as writers:  # they delete their files if anything fails
            for data in self._writers:
                writers.enter_context(data)
            writers.enter_context(self._deletes)
            self._named.seal()
            count = sum(self._change(touched.slice(place, 1)) for place in range(touched.num_rows))
            self._check_named(count)
            added, deletes = [file for writer in self._writers for file in writer.close()], self._deletes.close()
        if not (self._removed or deletes or added):  # all rows had been deleted before
            return count
        try:
            self._publish(added, deletes, rows=count)
        except REFUSALS:
            self.abort()
            raise
        return count

    def _publish(self, added: Sequence[DataFile], deletes: Sequence[DataFile], *, rows: int) -> None:
        """Commit the change, or leave it to the commit of the explicit transaction."""
        if self._staged is not None:
            change = StagedChange(self._staged, self._removed, deletes)
            expected = (self._staged.base_id or 0) if self._alone else None
            self._changes.stage(NewWrite(self._base, added, rows, change, expected))
            return
        only_new = bool(added) and not (self._removed or deletes)
        operation: Operation = "append" if only_new else "overwrite" if added else "delete"
        producer = overwrite(
            self._removed, added, deletes=deletes, based_on=self._snapshot.id, alone=self._alone, operation=operation
        )
        self._changes.commit(producer)

    def abort(self) -> None:
        """Delete the files that were written."""
        self._named.close()
        self._deletes.abort()
        for writer in self._writers:
            writer.abort()

    def _check_named(self, count: int) -> None:
        """Check the number of different rows that were named, before the commit."""

    def _change(self, file: pa.Table) -> int:
        """Change a file, which is a row of the file table, and return how many of its rows were named."""
        return self._mark(file) if self._merges_on_read and _path(file) not in self._own else self._replace(file)

    def _replace(self, file: pa.Table) -> int:
        """Replace a file, which is a row of the file table, and return how many of its rows were named."""
        self._removed.append(_path(file))
        return self._rewrite(file)

    def _mark(self, file: pa.Table) -> int:
        """Delete the named rows of a file by position, and return how many they are."""
        named = self._taken_from(file)
        before = self._handle.deleted_positions(self._snapshot, file)
        if len(np.union1d(named, before)) == _rows(file):
            self._removed.append(_path(file))
        else:
            self._deletes.add(_path(file), named, before=before)
        return len(named)

    @abstractmethod
    def _rewrite(self, file: pa.Table) -> int:
        """Write the rows of a file that remain, changed or not, and return how many of its rows were named."""

    @abstractmethod
    def _taken_from(self, file: pa.Table) -> np.ndarray:
        """Write the named rows of a file that remain, changed, and return the positions of all named rows."""

    def _take(self, rows: pa.RecordBatch, values: pa.RecordBatch) -> pa.Array:
        """Store the rows of a batch with `values`, and return their ids.

        Raise unless all are ids of rows of the snapshot.
        """
        ids = rows.column(self._rowid).cast(pa.int64())
        ordinals, positions = self._row_ids.decode(ids)
        beyond = positions >= self._counts[np.minimum(ordinals, len(self._counts) - 1)]
        if beyond.any():
            lost = ids.to_numpy()[beyond][0]
            raise NotFound(
                f"table {self._changes.record.display_name!r} has no row with id {lost}", key="row", row=str(lost)
            )
        self._touched[ordinals] = True
        self._named.add(ids, values)
        return ids

    def _named_before(self, file: pa.Table, position: int) -> tuple[np.ndarray, pa.RecordBatch] | None:
        """The positions of the named rows of a file before `position` and their values, except for those returned
        before.
        """
        found = self._named.take(self._row_ids.first(_ordinal(file), position))
        return None if found is None else (self._row_ids.decode(pa.array(found[0]))[1], found[1])

    def _rows_of(self, file: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of a file in the table's current columns, with their lineage if the table has it, and their positions."""
        schema = self._now if self._lineage is None else self._lineage.added_to(self._now)
        # The rows of a file that the transaction has written get their ids from its commit.
        inherited = _UNKNOWN if _path(file) in self._own else self._inherited.get(_ordinal(file), _UNKNOWN)
        for batch in self._handle.read(self._snapshot, files=file, schema=schema, positions=True):
            if self._lineage is None:
                yield batch
            else:
                yield self._lineage.filled(batch, batch.column(ROW_POSITION), inherited)


class DeleteRows(_ByRowId):
    """Deletes rows."""

    _kind = "delete"

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take the ids of rows to delete; with RETURNING, read and return the rows."""
        ids = self._take(rows, rows.select([]))
        return self._as_they_were(ids) if self._returning else None

    def _rewrite(self, file: pa.Table) -> int:
        positions = self._taken_from(file)
        if len(positions) < _rows(file) - (file["deleted_rows"][0].as_py() or 0):  # otherwise no row is left
            for batch in self._rows_of(file):
                here = batch.column(ROW_POSITION).to_numpy()
                kept = batch.filter(pa.array(~np.isin(here, positions, assume_unique=True)))
                self._writer.write(kept.select(batch.schema.names[:-2]))
        return len(positions)

    def _taken_from(self, file: pa.Table) -> np.ndarray:
        found = self._named_before(file, _rows(file))
        return np.array([], dtype=np.int64) if found is None else found[0]

    def _as_they_were(self, ids: pa.Array) -> pa.RecordBatch:
        ordinals, _ = self._row_ids.decode(ids)
        files = self._files.filter(pc.is_in(self._files["ordinal"], pa.array(np.unique(ordinals), pa.int32())))
        table = self._changes.record.display_name
        readable = self._known.readable(self._base.handle.schema.arrow, table=table)
        reader = self._handle.read(self._snapshot, files=files, schema=readable, positions=True)
        found = [batch.filter(pc.is_in(self._ids(batch), value_set=ids)) for batch in reader]
        rows = pa.Table.from_batches(found, reader.schema).combine_chunks()
        shown = rows.take(pc.index_in(ids, value_set=self._ids(rows)))
        there = frozenset(readable.names)
        columns = [
            shown[field.name].combine_chunks() if field.name in there else pa.nulls(len(ids), field.type)
            for field in self._known.stored
        ]
        return self._known.shown(pa.RecordBatch.from_arrays(columns, names=self._known.stored.names), table=table)

    def _ids(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        ordinals, positions = rows.column(FILE_ORDINAL), rows.column(ROW_POSITION)
        if isinstance(ordinals, pa.ChunkedArray):
            ordinals, positions = ordinals.combine_chunks(), positions.combine_chunks()
        return self._row_ids.encode(ordinals, positions)


class UpdateRows(_ByRowId):
    """Sets new values for some columns of existing rows."""

    _kind: ClassVar[WritingStatement] = "update"

    def _prepare(self, write: Write) -> None:
        name = self._changes.record.display_name
        self._incoming = Incoming(name, write.schema, known=self._known, now=self._now)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take new values of rows."""
        self._take(rows, self._incoming.stored(self._incoming.announced(rows)))
        if not self._returning:
            return None
        # The client reads the columns by position, with the row id last.
        return rows.select([*(place for place in range(rows.num_columns) if place != self._rowid), self._rowid])

    def _rewrite(self, file: pa.Table) -> int:
        count = 0
        for rows, here, named in self._with_named(file):
            self._writer.write(rows if named is None else self._changed(rows, here, *named))
            count += 0 if named is None else len(named[0])
        left = self._named_before(file, _rows(file))  # rows at the end that delete files had removed
        return count if left is None else count + len(left[0])

    def _taken_from(self, file: pa.Table) -> np.ndarray:
        positions = []
        for rows, here, named in self._with_named(file):
            if named is not None:
                is_named = np.isin(here, named[0], assume_unique=True)
                self._writer.write(self._changed(rows.filter(pa.array(is_named)), here[is_named], *named))
                positions.append(named[0])
        left = self._named_before(file, _rows(file))  # rows at the end that delete files had removed
        return np.concatenate([*positions, np.array([], np.int64) if left is None else left[0]])

    def _with_named(
        self, file: pa.Table
    ) -> Iterator[tuple[pa.RecordBatch, np.ndarray, tuple[np.ndarray, pa.RecordBatch] | None]]:
        """The rows of a file in batches, with their positions and the named rows among them, if there are any."""
        for batch in self._rows_of(file):
            here = batch.column(ROW_POSITION).to_numpy()
            named = self._named_before(file, here[-1] + 1) if len(here) else None
            yield batch.select(batch.schema.names[:-2]), here, named

    def _changed(
        self, rows: pa.RecordBatch, here: np.ndarray, positions: np.ndarray, new: pa.RecordBatch
    ) -> pa.RecordBatch:
        """`rows`, which are at the positions `here`, with the values of `new` for those at `positions`."""
        found = np.minimum(np.searchsorted(positions, here), len(positions) - 1)
        # Indexes into the old values followed by the new ones.
        is_changed = positions[found] == here
        chosen = pa.array(np.where(is_changed, found + rows.num_rows, np.arange(rows.num_rows)))
        given = frozenset(new.schema.names)
        columns = [
            pa.concat_arrays([column, _as(new.column(name), column.type)]).take(chosen) if name in given else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        changed = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
        return changed if self._lineage is None else self._lineage.changed(changed, pa.array(is_changed))


def _ordinal(file: pa.Table) -> int:
    return int(file["ordinal"][0].as_py())


def _path(file: pa.Table) -> str:
    return str(file["path"][0].as_py())


def _rows(file: pa.Table) -> int:
    return int(file["row_count"][0].as_py())


def _disk_of(files: TableFiles) -> str | None:
    """The folder for rows that exceed memory: on the warehouse's disk; None for the folder of temporary files."""
    root = files.reach.roots[0]
    return root.path if root.scheme == "file" else None


def _as(column: pa.Array, of: pa.DataType) -> pa.Array:
    """The same values in the column's current type, which is the same or wider."""
    return to_column(column, pa.field("", of))

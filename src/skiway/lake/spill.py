"""Rows that are buffered until the end of a statement, sorted by id. What exceeds memory is on disk.

Rows arrive in any order. Each time the buffer is full it is sorted and becomes a run; at the end the runs are merged in
small pieces. All runs are in one unnamed temporary file, which disappears with the process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from skiway.causes import cause_of
from skiway.errors import Unavailable

__all__ = ["WaitingRows"]

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

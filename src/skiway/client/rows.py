"""The rows of a scan, as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

__all__ = ["Rows"]


class Rows:
    """Record batches as they come from the server, one at a time; use it from one thread at a time, and once.

    It reads like a `pyarrow.RecordBatchReader`, and everything that takes Arrow streams takes it: `pyarrow.table(rows)`,
    Polars, DuckDB. Unlike pyarrow's reader it ends the call on the server when it is closed early.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def read_next_batch(self) -> pa.RecordBatch:
        """The next batch; `StopIteration` after the last."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """All rows that are left."""
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same stream as pyarrow's own reader, for those who insist; it ends the call when it is deleted."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The stream for other libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop reading: the server may forget about the rest."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

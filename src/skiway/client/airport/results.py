"""What a scan returns: a stream of rows, and the statistics of columns."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from skiway.errors import InvalidArgument

__all__ = ["ColumnStatistics", "Rows", "first_rows", "read_statistics"]


class Rows:
    """A stream of record batches from the server. Use it once, from one thread at a time.

    It has the interface of a `pyarrow.RecordBatchReader` and works wherever Arrow streams are accepted:
    `pyarrow.table(rows)`, Polars, DuckDB. Unlike pyarrow's reader, `close()` cancels the call on the server.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raise `StopIteration` after the last."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """Return all remaining rows."""
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream as pyarrow's own reader, which cancels the call when it is garbage collected."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the stream through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop reading and cancel the call on the server."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Generator[pa.RecordBatch]:
    """Yield the first rows, and close the stream as soon as they are complete."""
    left = limit
    with contextlib.ExitStack() as stack:
        if isinstance(batches, Generator):
            stack.enter_context(contextlib.closing(batches))
        for batch in batches:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column, as the server reports them; None means unknown.

    `min` and `max` are bounds: no value lies outside of them, but they need not occur themselves. A bound that Python
    cannot represent, such as a date of the year 10000, is an Arrow scalar.
    """

    min: Any
    max: Any
    has_null: bool
    has_not_null: bool
    distinct_count: int | None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def read_statistics(data: bytes, column: str) -> ColumnStatistics:
    """Parse the response to `column_statistics`, an Arrow stream of one row."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            row = {
                name: _python_value(column[0]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
    except (pa.ArrowException, OSError, ValueError, StopIteration, IndexError) as error:
        raise InvalidArgument(f"the statistics of {column!r} are not an Arrow stream of one row") from error
    missing = {"min", "max", "has_null", "has_not_null", "distinct_count"} - row.keys()
    if missing:
        raise InvalidArgument(f"the statistics of {column!r} lack {min(missing)!r}")
    return ColumnStatistics(
        min=row["min"],
        max=row["max"],
        has_null=bool(row["has_null"]),
        has_not_null=bool(row["has_not_null"]),
        distinct_count=row["distinct_count"] or None,  # the protocol uses zero for "unknown"
        max_string_length=row.get("max_string_length"),
        contains_unicode=row.get("contains_unicode"),
    )


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value

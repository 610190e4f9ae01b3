"""Streams the result of a scan as frames.

The client reads columns by position and does not check them. Every batch is therefore sent with exactly the bound
schema: columns are matched by name and cast if necessary, and columns that were not requested or are missing are NULL.
NULL columns still have buffers full of zeros; if they make up most of a batch, they are sent compressed, which takes
almost no space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.request import ServedCall
from skiway.airport.scan import ArrowData
from skiway.airport.wire.duckdb_sql import storage_type
from skiway.airport.wire.frames import FrameWriter
from skiway.airport.wire.payloads import Progress, encode
from skiway.errors import Internal

__all__ = ["NullColumns", "SchemaAdapter", "cast_column", "record_batches", "scan_frames"]

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024  # far below gRPC's limit of 2 GiB, but large enough for full throughput


def record_batches(data: ArrowData) -> Generator[pa.RecordBatch]:
    """The batches of Arrow data in any form. Closing the generator closes the source."""
    if isinstance(data, pa.RecordBatch):
        yield data
        return
    if isinstance(data, pa.Table):
        yield from data.to_batches()
        return
    if hasattr(data, "scanner"):  # a pyarrow Dataset
        data = data.scanner()
    if hasattr(data, "to_reader"):  # a pyarrow Scanner
        data = data.to_reader()
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatchReader):
        data = pa.RecordBatchReader.from_stream(data)
    elif not hasattr(data, "__iter__") or isinstance(data, str | bytes):
        raise Internal(f"a scan must return Arrow data or batches of it, not {type(data).__name__}")
    try:
        for item in data:
            if isinstance(item, pa.RecordBatch):
                yield item
            else:
                yield from record_batches(item)
    finally:
        if hasattr(data, "close"):
            data.close()


@dataclass(frozen=True)
class SchemaAdapter:
    """Converts batches of one schema to the bound schema."""

    target: pa.Schema
    sources: tuple[int | None, ...]  # for each field of the target: the index in the batch, or None for NULLs
    is_identity: bool  # whether batches need no conversion

    @classmethod
    def plan(cls, target: pa.Schema, source: pa.Schema, columns: frozenset[str] | None) -> SchemaAdapter:
        """Plan the conversion from `source` to `target` if only `columns` were requested."""
        if (columns is None or len(columns) == len(target)) and source.equals(target):
            return cls(target, (), True)
        sources = tuple(
            _position(source, field.name) if columns is None or field.name in columns else None for field in target
        )
        is_identity = sources == tuple(range(len(source))) and all(  # nullability must match the bound schema too
            expected.type == actual.type and expected.nullable == actual.nullable
            for expected, actual in zip(target, source, strict=True)
        )
        return cls(target, sources, is_identity)

    def apply(self, batch: pa.RecordBatch, nulls: NullColumns) -> pa.RecordBatch:
        """Convert a batch to the bound schema."""
        if self.is_identity:
            return batch
        columns = [
            nulls.get(position, field.type, batch.num_rows)
            if index is None
            else cast_column(batch.column(index), field)
            for position, (index, field) in enumerate(zip(self.sources, self.target, strict=True))
        ]
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def null_columns(self, batch: pa.RecordBatch) -> tuple[int, ...]:
        """The positions of the NULL columns in a converted batch, if they take at least half of its bytes.

        Otherwise compressing them costs more than it saves.
        """
        if self.is_identity:
            return ()
        positions = tuple(position for position, index in enumerate(self.sources) if index is None)
        null_bytes = sum(batch.column(position).nbytes for position in positions)
        return positions if positions and 2 * null_bytes >= batch.nbytes else ()


def _position(schema: pa.Schema, name: str) -> int | None:
    index = schema.get_field_index(name)
    return int(index) if index >= 0 else None


class NullColumns:
    """NULL columns, created once per column of a stream. The key is the position: not every type is hashable."""

    def __init__(self, pool: pa.MemoryPool | None = None) -> None:
        self._pool = pool
        self._cached: dict[int, pa.Array] = {}

    def get(self, position: int, data_type: pa.DataType, rows: int) -> pa.Array:
        """An array of `rows` NULLs for the column at `position`."""
        cached = self._cached.get(position)
        if cached is None or len(cached) < rows:
            cached = self._cached[position] = pa.nulls(rows, data_type, self._pool)
        return cached if len(cached) == rows else cached.slice(0, rows)


def cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast `column` to the type of `field`."""
    if column.type == field.type:
        return column
    try:
        storage = storage_type(field.type)
        plain = column.storage if isinstance(column, pa.ExtensionArray) else column
        plain = plain if plain.type == storage else plain.cast(storage)
        return (
            pa.ExtensionArray.from_storage(field.type, plain) if isinstance(field.type, pa.BaseExtensionType) else plain
        )
    except pa.ArrowException as error:
        raise Internal(
            f"column {field.name!r} has type {column.type}, but the table declares {field.type}: {error}"
        ) from error


def scan_frames(
    schema: pa.Schema,
    data: ArrowData,
    *,
    columns: Iterable[str] | None = None,
    rows: int | None = None,
    pool: pa.MemoryPool | None = None,
    call: ServedCall | None = None,
) -> Iterator[bytes]:
    """The DoGet stream of a scan: the schema, then the batches.

    `rows` is the expected number of rows for the client's progress bar, if known.
    """
    writer = FrameWriter(schema, memory_pool=pool)
    yield writer.begin()
    requested = None if columns is None else frozenset(columns)
    nulls = NullColumns(pool)
    adapter: SchemaAdapter | None = None
    source: Any = None
    sent = 0
    with contextlib.closing(record_batches(data)) as batches:
        for batch in batches:
            if not batch.num_rows:
                continue
            if adapter is None or not batch.schema.equals(source):
                source = batch.schema
                adapter = SchemaAdapter.plan(schema, source, requested)
            converted = adapter.apply(batch, nulls)
            null_columns = adapter.null_columns(converted)
            for part in _parts(converted):
                sent += part.num_rows
                if call is not None:
                    call.rows_out = sent
                progress = encode(Progress(min(1.0, sent / rows))) if rows else b""
                yield from writer.batch(part, app_metadata=progress, null_columns=null_columns)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of at most about MAX_BATCH_BYTES."""
    pieces = min(-(-batch.nbytes // MAX_BATCH_BYTES), batch.num_rows)
    if pieces <= 1:
        yield batch
        return
    size = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)

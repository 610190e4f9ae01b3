"""Streams the result of a scan as frames.

The client reads columns by position and does not check them. Every batch is therefore sent with exactly the bound
schema: columns are matched by name and cast if necessary, and columns that were not requested are NULL. A requested column
that is missing, that occurs twice, or that is NOT NULL and has NULLs, is an error: the client would show wrong values.
NULL columns still have buffers full of zeros; if they make up most of a batch, they are sent compressed, which takes
almost no space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.layouts import without_views
from skiway.airport.request import ServedCall
from skiway.airport.results import record_batches
from skiway.airport.scan import ArrowData
from skiway.airport.wire.duckdb_sql import storage_type
from skiway.airport.wire.frames import FrameWriter
from skiway.airport.wire.payloads import Progress, encode
from skiway.errors import Internal

__all__ = ["NullColumns", "SchemaAdapter", "cast_column", "scan_frames"]

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024  # far below gRPC's limit of 2 GiB, but large enough for full throughput


@dataclass(frozen=True)
class SchemaAdapter:
    """Converts batches of one schema to the bound schema."""

    target: pa.Schema
    sources: tuple[int | None, ...]  # for each field of the target: the index in the batch, or None for NULLs
    is_identity: bool  # whether batches need no conversion
    required: tuple[int, ...]  # the requested fields of the target that are NOT NULL
    what: str  # what returns the batches, for messages

    @classmethod
    def plan(
        cls, target: pa.Schema, source: pa.Schema, columns: frozenset[str] | None, *, what: str = "the scan"
    ) -> SchemaAdapter:
        """Plan the conversion from `source` to `target` if only `columns` were requested.

        A requested column that `source` does not have exactly once is an error, which says that `what` returned it.
        """
        requested = [columns is None or field.name in columns for field in target]
        required = tuple(i for i, field in enumerate(target) if requested[i] and not field.nullable)
        if all(requested) and source.equals(target):
            return cls(target, tuple(range(len(target))), True, required, what)
        sources = tuple(
            _position(source, field.name, what) if wanted else None
            for field, wanted in zip(target, requested, strict=True)
        )
        is_identity = sources == tuple(range(len(source))) and all(  # nullability must match the bound schema too
            expected.type == actual.type and expected.nullable == actual.nullable
            for expected, actual in zip(target, source, strict=True)
        )
        return cls(target, sources, is_identity, required, what)

    def apply(self, batch: pa.RecordBatch, nulls: NullColumns) -> pa.RecordBatch:
        """Convert a batch to the bound schema."""
        if not self.is_identity:
            columns = [
                nulls.get(position, field.type, batch.num_rows)
                if index is None
                else cast_column(batch.column(index), field, self.what)
                for position, (index, field) in enumerate(zip(self.sources, self.target, strict=True))
            ]
            if not columns:
                return batch
            batch = pa.RecordBatch.from_arrays(columns, schema=self.target)
        for position in self.required:
            self._check_not_null(batch.column(position), self.target.field(position).name)
        return batch

    def _check_not_null(self, column: pa.Array, name: str) -> None:
        count = column.null_count
        if not count and isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
            count = column.dictionary_decode().null_count
        if count:
            raise Internal(
                f"{self.what} returned NULL in {count} of {len(column)} rows of column {name!r}, which is NOT NULL: "
                "return values, or declare the column as nullable"
            )

    def null_columns(self, batch: pa.RecordBatch, nulls: NullColumns) -> tuple[int, ...]:
        """The positions of the NULL columns in a converted batch, if they take at least half of its bytes.

        Otherwise compressing them costs more than it saves.
        """
        if self.is_identity:
            return ()
        positions = tuple(position for position, index in enumerate(self.sources) if index is None)
        return positions if positions and 2 * nulls.nbytes(batch, positions) >= batch.nbytes else ()


def _position(schema: pa.Schema, name: str, what: str) -> int:
    found = schema.get_all_field_indices(name)
    if len(found) == 1:
        return int(found[0])
    returned = f"it returned {', '.join(map(repr, schema.names))}" if len(schema) else "it returned no columns"
    if found:
        raise Internal(f"{what} returned column {name!r} {len(found)} times: {returned}")
    raise Internal(f"{what} did not return the requested column {name!r}: {returned}")


class NullColumns:
    """NULL columns, created once per column of a stream. The key is the position: not every type is hashable."""

    def __init__(self, pool: pa.MemoryPool | None = None) -> None:
        self._pool = pool
        self._cached: dict[int, pa.Array] = {}
        self._measured: tuple[int, tuple[int, ...], int] | None = None

    def get(self, position: int, data_type: pa.DataType, rows: int) -> pa.Array:
        """An array of `rows` NULLs for the column at `position`."""
        cached = self._cached.get(position)
        if cached is None or len(cached) < rows:
            cached = self._cached[position] = pa.nulls(rows, data_type, self._pool)
        return cached if len(cached) == rows else cached.slice(0, rows)

    def nbytes(self, batch: pa.RecordBatch, positions: tuple[int, ...]) -> int:
        """How many bytes the NULL columns of a batch take, measured again only if it has another number of rows."""
        if self._measured is None or self._measured[:2] != (batch.num_rows, positions):
            size = sum(batch.column(position).nbytes for position in positions)
            self._measured = batch.num_rows, positions, size
        return self._measured[2]


def cast_column(column: pa.Array, field: pa.Field, what: str = "") -> pa.Array:
    """Cast `column`, which `what` returned, to the type of `field`."""
    if column.type == field.type:
        return column
    try:
        storage = storage_type(field.type)
        plain = without_views(column.storage if isinstance(column, pa.ExtensionArray) else column)
        if plain.type != storage:
            plain = _decoded(plain)
        plain = plain if plain.type == storage else plain.cast(storage)
        return (
            pa.ExtensionArray.from_storage(field.type, plain) if isinstance(field.type, pa.BaseExtensionType) else plain
        )
    except pa.ArrowException as error:
        returned = (
            f"{what} returned column {field.name!r} as {column.type}"
            if what
            else f"column {field.name!r} has type {column.type}"
        )
        raise Internal(f"{returned}, but the declared type is {field.type}: {error}") from error


def _decoded(column: pa.Array) -> pa.Array:
    """The values of a dictionary, which Arrow cannot cast in every case."""
    if not isinstance(column, pa.DictionaryArray):
        return column
    values = column.dictionary_decode()
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def scan_frames(
    schema: pa.Schema,
    data: ArrowData,
    *,
    columns: Iterable[str] | None = None,
    rows: int | None = None,
    pool: pa.MemoryPool | None = None,
    call: ServedCall | None = None,
    what: str = "a scan",
) -> Iterator[bytes]:
    """The DoGet stream of a scan: the schema, then the batches.

    `rows` is the expected number of rows for the client's progress bar, if known. Error messages begin with `what`, the
    name of what returned `data`.
    """
    writer = FrameWriter(schema, memory_pool=pool)
    yield writer.begin()
    requested = None if columns is None else frozenset(columns)
    nulls = NullColumns(pool)
    adapter: SchemaAdapter | None = None
    source: Any = None
    sent = 0
    with contextlib.closing(record_batches(data, schema, what)) as batches:
        for batch in batches:
            if not batch.num_rows:
                continue
            if adapter is None or not batch.schema.equals(source):
                source = batch.schema
                adapter = SchemaAdapter.plan(schema, source, requested, what=what)
            converted = adapter.apply(batch, nulls)
            null_columns = adapter.null_columns(converted, nulls)
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

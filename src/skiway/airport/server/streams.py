"""From whatever a scan returned to the frames that travel.

The client takes columns by position and checks nothing, so each batch leaves with exactly the bound schema: columns
matched by name, cast where they differ, NULLs where a column was not asked for or is missing. NULL columns still have
buffers, full of zeros; where they are most of a batch it is compressed, which makes them next to nothing.
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

__all__ = ["Conform", "Nulls", "fitted", "record_batches", "scan_frames"]


MAX_BATCH_BYTES: Final = 8 * 1024 * 1024  # far below gRPC's wall of 2 GiB, large enough to keep the wire busy


def record_batches(data: ArrowData) -> Generator[pa.RecordBatch]:
    """The batches in anything that gives Arrow data; closing the iterator closes the source."""
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
class Conform:
    """Fits batches of one layout to the bound schema."""

    target: pa.Schema
    sources: tuple[int | None, ...]  # for each field of the target: the column of the batch, or None for NULLs
    passes: bool  # nothing to do at all

    @classmethod
    def plan(cls, target: pa.Schema, source: pa.Schema, columns: frozenset[str] | None) -> Conform:
        """How to fit `source` to `target` when just `columns` were asked for."""
        if (columns is None or len(columns) == len(target)) and source.equals(target):
            return cls(target, (), True)
        sources = tuple(
            _position(source, field.name) if columns is None or field.name in columns else None for field in target
        )
        passes = sources == tuple(range(len(source))) and all(  # whether NULLs may come, too, is what was announced
            wanted.type == given.type and wanted.nullable == given.nullable
            for wanted, given in zip(target, source, strict=True)
        )
        return cls(target, sources, passes)

    def apply(self, batch: pa.RecordBatch, nulls: Nulls) -> pa.RecordBatch:
        """The batch in the bound schema."""
        if self.passes:
            return batch
        columns = [
            nulls.of(place, field.type, batch.num_rows) if index is None else fitted(batch.column(index), field)
            for place, (index, field) in enumerate(zip(self.sources, self.target, strict=True))
        ]
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def nulled(self, fitting: pa.RecordBatch) -> tuple[int, ...]:
        """The places of NULL columns, where half of a batch's bytes or more are their zeros; else packing would only cost."""
        if self.passes:
            return ()
        places = tuple(place for place, index in enumerate(self.sources) if index is None)
        zeros = sum(fitting.column(place).nbytes for place in places)
        return places if places and 2 * zeros >= fitting.nbytes else ()


def _position(schema: pa.Schema, name: str) -> int | None:
    index = schema.get_field_index(name)
    return int(index) if index >= 0 else None


class Nulls:
    """NULL columns, made once for each column of a stream (by its place: not every type can be hashed)."""

    def __init__(self, pool: pa.MemoryPool | None = None) -> None:
        self._pool = pool
        self._kept: dict[int, pa.Array] = {}

    def of(self, place: int, data_type: pa.DataType, rows: int) -> pa.Array:
        """`rows` NULLs for the column at `place`."""
        kept = self._kept.get(place)
        if kept is None or len(kept) < rows:
            kept = self._kept[place] = pa.nulls(rows, data_type, self._pool)
        return kept if len(kept) == rows else kept.slice(0, rows)


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """`column` in the field's type."""
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
            f"column {field.name!r} came as {column.type}, but the table says {field.type}: {error}"
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
    """The DoGet stream of a scan: the schema, then each batch; `rows`, where known, drives the client's progress bar."""
    writer = FrameWriter(schema, memory_pool=pool)
    yield writer.begin()
    asked = None if columns is None else frozenset(columns)
    nulls = Nulls(pool)
    plan: Conform | None = None
    layout: Any = None
    sent = 0
    with contextlib.closing(record_batches(data)) as batches:
        for batch in batches:
            if not batch.num_rows:
                continue
            if plan is None or not batch.schema.equals(layout):
                layout = batch.schema
                plan = Conform.plan(schema, layout, asked)
            fitting = plan.apply(batch, nulls)
            nulled = plan.nulled(fitting)
            for part in _parts(fitting):
                sent += part.num_rows
                if call is not None:
                    call.rows_out = sent
                progress = encode(Progress(min(1.0, sent / rows))) if rows else b""
                yield from writer.batch(part, app_metadata=progress, nulled=nulled)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of bounded size."""
    pieces = min(-(-batch.nbytes // MAX_BATCH_BYTES), batch.num_rows)
    if pieces <= 1:
        yield batch
        return
    size = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)

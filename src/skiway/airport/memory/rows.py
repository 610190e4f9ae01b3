"""The rows of a table as immutable chunks, which are shared by all versions that contain them.

Each row has a unique id and a stamp: the number of the change that wrote it last. A statement that changes a row compares
stamps to detect that another statement changed the row first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

CHUNK_ROWS: Final = 65_536
_MERGED_BYTES: Final = 64 * 1024 * 1024  # the largest merged chunk; merging larger ones costs more than it saves


@dataclass(frozen=True, slots=True)
class Chunk:
    """A batch of rows with the row id as the last column, their stamps, and the smallest and largest row id."""

    batch: pa.RecordBatch
    stamps: pa.Int64Array
    low: int
    high: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, stamps: pa.Int64Array) -> Chunk:
        bounds = pc.min_max(batch.column(batch.num_columns - 1))
        return cls(batch, stamps, bounds["min"].as_py(), bounds["max"].as_py())

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def ids(self) -> pa.Int64Array:
        return self.batch.column(self.batch.num_columns - 1)

    def joined(self, other: Chunk) -> Chunk:
        stamps = pa.concat_arrays([self.stamps, other.stamps])
        return Chunk.of(pa.concat_batches([self.batch, other.batch]), stamps)

    def replaced(self, positions: pa.Array, rows: pa.RecordBatch, stamp: int) -> Chunk:
        """Replace the rows at `positions`, which are ascending."""
        size, count = len(self), rows.num_rows
        mask = pc.is_in(pa.arange(0, size), value_set=positions)
        source = pc.replace_with_mask(pa.arange(0, size), mask, pa.arange(size, size + count))
        stamps = pa.concat_arrays([self.stamps, _repeated(stamp, count)])
        return replace(self, batch=pa.concat_batches([self.batch, rows]).take(source), stamps=stamps.take(source))

    def without(self, positions: pa.Array) -> Chunk | None:
        """Remove the rows at `positions`; None if no rows are left."""
        kept = pc.invert(pc.is_in(pa.arange(0, len(self)), value_set=positions))
        batch = self.batch.filter(kept)
        return Chunk.of(batch, self.stamps.filter(kept)) if batch.num_rows else None


@dataclass(frozen=True, slots=True)
class Found:
    """The location of rows: chunk numbers, and for each id its position in the concatenation of these chunks, or NULL."""

    chunks: tuple[int, ...]
    positions: pa.Array


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a version of a table. Methods return new objects and do not change this one."""

    schema: pa.Schema
    chunks: tuple[Chunk, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def batches(self) -> list[pa.RecordBatch]:
        """The rows in batches, with the row id as the last column."""
        return [chunk.batch for chunk in self.chunks]

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows as a pyarrow Table, without copying."""
        table = pa.Table.from_batches(self.batches(), self.schema)
        return table if columns is None else table.select(list(columns))

    def append(self, batches: Sequence[pa.RecordBatch], stamp: int) -> Rows:
        """Append rows. Small chunks are merged, so many small appends stay cheap."""
        chunks = list(self.chunks)
        for batch in batches:
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                part = batch.slice(start, CHUNK_ROWS)
                _push(chunks, Chunk.of(part, _repeated(stamp, part.num_rows)))
        return replace(self, chunks=tuple(chunks))

    def find(self, ids: pa.Int64Array) -> Found:
        """Find the rows with these ids. Only chunks that may contain one are searched."""
        bounds = pc.min_max(ids)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        candidates = (
            () if low is None else tuple(i for i, c in enumerate(self.chunks) if c.low <= high and low <= c.high)
        )
        known = pa.concat_arrays([*(self.chunks[i].ids for i in candidates), pa.array([], pa.int64())])
        # Usually few ids are searched among many: hash the few, then put the hits in the order of `ids`.
        hits = pc.indices_nonzero(pc.is_in(known, value_set=ids)).cast(pa.int64())
        return Found(candidates, hits.take(pc.index_in(ids, value_set=known.take(hits))))

    def take(self, location: Found) -> pa.RecordBatch:
        """The rows at a location, in the order of the ids that were searched."""
        batches = [self.chunks[i].batch for i in location.chunks]
        if not batches:
            return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in self.schema], schema=self.schema)
        return (batches[0] if len(batches) == 1 else pa.concat_batches(batches)).take(location.positions)

    def stamps(self, location: Found) -> pa.Int64Array:
        """The stamps of the rows at a location; NULL for ids that were not found."""
        stamps = [self.chunks[i].stamps for i in location.chunks]
        return pa.concat_arrays([*stamps, pa.array([], pa.int64())]).take(location.positions)

    def replaced(self, location: Found, rows: pa.RecordBatch, stamp: int) -> Rows:
        """Replace the rows at a location by `rows`. Only the affected chunks are rewritten."""
        order = pc.sort_indices(location.positions)
        rows = rows.take(order)
        chunks: list[Chunk | None] = list(self.chunks)
        for number, start, positions in self._split(location, location.positions.take(order)):
            chunks[number] = self.chunks[number].replaced(positions, rows.slice(start, len(positions)), stamp)
        return replace(self, chunks=tuple(chunk for chunk in chunks if chunk))

    def removed(self, location: Found) -> Rows:
        """Remove the rows at a location."""
        chunks: list[Chunk | None] = list(self.chunks)
        for number, _, positions in self._split(location, location.positions.take(pc.sort_indices(location.positions))):
            chunks[number] = self.chunks[number].without(positions)
        remaining: list[Chunk] = []
        for chunk in chunks:
            if chunk:
                _push(remaining, chunk)
        return replace(self, chunks=tuple(remaining))

    def rewritten(self, schema: pa.Schema, make: Callable[[pa.RecordBatch], Sequence[pa.Array]]) -> Rows:
        """Replace the columns. `make` returns the new columns of a batch, without the row id."""
        chunks = [
            replace(chunk, batch=pa.RecordBatch.from_arrays([*make(chunk.batch), chunk.ids], schema=schema))
            for chunk in self.chunks
        ]
        return Rows(schema, tuple(chunks))

    def _split(self, location: Found, positions: pa.Array) -> list[tuple[int, int, pa.Array]]:
        """Group ascending positions by chunk: its number, the index of its first position, and the positions within it."""
        parts, base, start = [], 0, 0
        for number in location.chunks:
            base_after = base + len(self.chunks[number])
            end = pc.search_sorted(positions, pa.scalar(base_after, pa.int64())).as_py()
            if end > start:
                parts.append((number, start, pc.subtract(positions.slice(start, end - start), base)))
            base, start = base_after, end
        return parts


def _push(chunks: list[Chunk], new: Chunk) -> None:
    """Append a chunk and merge it with smaller ones before it. Each row is copied only a few times."""
    while chunks and len(chunks[-1]) <= len(new) and _fit(chunks[-1], new):
        new = chunks.pop().joined(new)
    chunks.append(new)


def _fit(one: Chunk, other: Chunk) -> bool:
    return len(one) + len(other) <= CHUNK_ROWS and one.batch.nbytes + other.batch.nbytes <= _MERGED_BYTES


def _repeated(stamp: int, count: int) -> pa.Int64Array:
    return pa.repeat(pa.scalar(stamp, pa.int64()), count)

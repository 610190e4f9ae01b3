"""The rows of a table: immutable chunks, shared by all versions that have them.

Each row has an id that is never given twice, and a stamp: the number of the change that wrote it last. Whoever wants to
change a row says which stamp it saw there, and so notices when somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["CHUNK_ROWS", "Found", "Rows"]

CHUNK_ROWS: Final = 65_536
_MERGED_BYTES: Final = 64 * 1024 * 1024  # chunks are merged up to here: larger ones cost more to copy than they save


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows: a batch of all columns with the row id last, their stamps, and the bounds of the ids."""

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

    def replaced(self, places: pa.Array, rows: pa.RecordBatch, stamp: int) -> Chunk:
        """With `rows` at these ascending places."""
        size, count = len(self), rows.num_rows
        mask = pc.is_in(pa.arange(0, size), value_set=places)
        source = pc.replace_with_mask(pa.arange(0, size), mask, pa.arange(size, size + count))
        stamps = pa.concat_arrays([self.stamps, _repeated(stamp, count)])
        return replace(self, batch=pa.concat_batches([self.batch, rows]).take(source), stamps=stamps.take(source))

    def without(self, places: pa.Array) -> Chunk | None:
        """Without the rows at these places; None when nothing is left."""
        kept = pc.invert(pc.is_in(pa.arange(0, len(self)), value_set=places))
        batch = self.batch.filter(kept)
        return Chunk.of(batch, self.stamps.filter(kept)) if batch.num_rows else None


@dataclass(frozen=True, slots=True)
class Found:
    """Where rows are: chunks by number, and for each id its position in these chunks laid end to end, or NULL."""

    chunks: tuple[int, ...]
    positions: pa.Array


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a table at one time; every method gives new rows and leaves these alone."""

    schema: pa.Schema
    chunks: tuple[Chunk, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def batches(self) -> list[pa.RecordBatch]:
        """The rows as they are kept, with the row id last."""
        return [chunk.batch for chunk in self.chunks]

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The same as one table, nothing copied."""
        table = pa.Table.from_batches(self.batches(), self.schema)
        return table if columns is None else table.select(list(columns))

    def append(self, batches: Sequence[pa.RecordBatch], stamp: int) -> Rows:
        """With these rows at the end. Small chunks are merged as they come, so many small appends stay cheap."""
        chunks = list(self.chunks)
        for batch in batches:
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                part = batch.slice(start, CHUNK_ROWS)
                _push(chunks, Chunk.of(part, _repeated(stamp, part.num_rows)))
        return replace(self, chunks=tuple(chunks))

    def find(self, ids: pa.Int64Array) -> Found:
        """Where the rows with these ids are; only chunks that may hold one are looked at."""
        bounds = pc.min_max(ids)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        near = () if low is None else tuple(i for i, c in enumerate(self.chunks) if c.low <= high and low <= c.high)
        known = pa.concat_arrays([*(self.chunks[i].ids for i in near), pa.array([], pa.int64())])
        # few ids are looked for among many: the small side is hashed, then what was found is put in the order asked
        hits = pc.indices_nonzero(pc.is_in(known, value_set=ids)).cast(pa.int64())
        return Found(near, hits.take(pc.index_in(ids, value_set=known.take(hits))))

    def take(self, found: Found) -> pa.RecordBatch:
        """The rows found, in the order they were asked for."""
        batches = [self.chunks[i].batch for i in found.chunks]
        if not batches:
            return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in self.schema], schema=self.schema)
        return (batches[0] if len(batches) == 1 else pa.concat_batches(batches)).take(found.positions)

    def stamps(self, found: Found) -> pa.Int64Array:
        """The stamps of the rows found; NULL for those that are not there."""
        stamps = [self.chunks[i].stamps for i in found.chunks]
        return pa.concat_arrays([*stamps, pa.array([], pa.int64())]).take(found.positions)

    def replaced(self, found: Found, rows: pa.RecordBatch, stamp: int) -> Rows:
        """With `rows` in place of those found; only the chunks that hold them are written anew."""
        order = pc.sort_indices(found.positions)
        rows = rows.take(order)
        chunks: list[Chunk | None] = list(self.chunks)
        for number, start, places in self._split(found, found.positions.take(order)):
            chunks[number] = self.chunks[number].replaced(places, rows.slice(start, len(places)), stamp)
        return replace(self, chunks=tuple(chunk for chunk in chunks if chunk))

    def removed(self, found: Found) -> Rows:
        """Without the rows found."""
        chunks: list[Chunk | None] = list(self.chunks)
        for number, _, places in self._split(found, found.positions.take(pc.sort_indices(found.positions))):
            chunks[number] = self.chunks[number].without(places)
        left: list[Chunk] = []
        for chunk in chunks:
            if chunk:
                _push(left, chunk)
        return replace(self, chunks=tuple(left))

    def rewritten(self, schema: pa.Schema, make: Callable[[pa.RecordBatch], Sequence[pa.Array]]) -> Rows:
        """With other columns: `make` gives those of a batch, all but the row id."""
        chunks = [
            replace(chunk, batch=pa.RecordBatch.from_arrays([*make(chunk.batch), chunk.ids], schema=schema))
            for chunk in self.chunks
        ]
        return Rows(schema, tuple(chunks))

    def _split(self, found: Found, positions: pa.Array) -> list[tuple[int, int, pa.Array]]:
        """Ascending positions by chunk: its number, where its share starts, and the places inside it."""
        parts, base, start = [], 0, 0
        for number in found.chunks:
            base_after = base + len(self.chunks[number])
            end = pc.search_sorted(positions, pa.scalar(base_after, pa.int64())).as_py()
            if end > start:
                parts.append((number, start, pc.subtract(positions.slice(start, end - start), base)))
            base, start = base_after, end
        return parts


def _push(chunks: list[Chunk], new: Chunk) -> None:
    """Append, merging with the chunks before as long as they are no larger: each row is copied a few times at most."""
    while chunks and len(chunks[-1]) <= len(new) and _fit(chunks[-1], new):
        new = chunks.pop().joined(new)
    chunks.append(new)


def _fit(one: Chunk, other: Chunk) -> bool:
    return len(one) + len(other) <= CHUNK_ROWS and one.batch.nbytes + other.batch.nbytes <= _MERGED_BYTES


def _repeated(stamp: int, count: int) -> pa.Int64Array:
    return pa.repeat(pa.scalar(stamp, pa.int64()), count)

"""Rows in a new order, in bounded memory: sorted by columns, or along a z-order curve.

Rows that fit into memory are sorted there. More rows are written to temporary files, and a sample of their keys divides them
into ranges that fit; each range is then sorted on its own. Rows with equal keys are in one range, whatever its size.

The z-order curve interleaves the bits of several columns, so that rows that are near in all of them are near in the file, and
filters on any of the columns skip files and row groups. The bits of a value are those of its rank in the sample.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import empty_rows, plain_array

SortKey: TypeAlias = tuple[str, str, str]
"""A column, `ascending` or `descending`, and the place of NULLs: `at_start` or `at_end`."""

MEMORY_BYTES: Final = 128 << 20
_SAMPLE_ROWS: Final = 50_000
_BATCH_ROWS: Final = 32_768
_MOST_RANGES: Final = 256
_IS_ROW: Final = "$is row"
_MOST_BITS: Final = 10  # of each column on the curve: about a thousand ranks


_Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class SortedBy:
    """Rows are sorted by these columns."""

    by: Sequence[SortKey]

    @property
    def columns(self) -> list[str]:
        """The columns that the order depends on."""
        return list(dict.fromkeys(name for name, _, _ in self.by))

    def fitted(self, sample: pa.Table) -> SortedBy:  # noqa: ARG002
        """The same for any rows."""
        return self

    def keys(self, rows: pa.Table) -> pa.Table:
        """The columns themselves."""
        return rows.select(self.columns)


@dataclass(frozen=True, slots=True)
class ZOrdered:
    """Rows follow a z-order curve through these columns."""

    columns: Sequence[str]

    def fitted(self, sample: pa.Table) -> _Curve:
        """The curve through the ranks of these values."""
        bits = min(_MOST_BITS, 63 // len(self.columns))
        by = [[(name, "ascending", "at_start")] for name in self.columns]
        limits = [
            _quantiles(sample.select([name]), keys, 1 << bits) for name, keys in zip(self.columns, by, strict=True)
        ]
        return _Curve(tuple(self.columns), tuple(limits), bits)


@dataclass(frozen=True, slots=True)
class _Curve:
    """A curve through the ranks of values, for rows of which some are known: `keys` are the places of rows on it."""

    columns: tuple[str, ...]
    limits: tuple[pa.Table, ...]
    bits: int

    @property
    def by(self) -> list[SortKey]:
        return [("z", "ascending", "at_start")]

    def keys(self, rows: pa.Table) -> pa.Table:
        z = np.zeros(rows.num_rows, dtype=np.int64)
        ranks = [
            _range_numbers(rows.select([name]), limits, [(name, "ascending", "at_start")])
            for name, limits in zip(self.columns, self.limits, strict=True)
        ]
        for bit in reversed(range(self.bits)):  # the highest bits of all columns first
            for rank in ranks:
                z = (z << 1) | ((rank >> bit) & 1)
        return pa.table({"z": z})


RowOrder: TypeAlias = SortedBy | ZOrdered
FittedOrder: TypeAlias = SortedBy | _Curve
"""The order for rows of which a sample is known: their keys, and how to sort by them."""


def in_order(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, order: RowOrder, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in an order. Temporary files have those that exceed the memory."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > memory_bytes:
            break
    else:
        rows = pa.Table.from_batches(held, schema)
        yield from _sorted(rows, order, order.fitted(_key_columns(rows, order)))
        return
    with tempfile.TemporaryDirectory(prefix="skiway-order-") as folder:
        yield from _by_ranges(chain(_emptied(held), batches), schema, order, Path(folder), memory_bytes)


def _emptied(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while held:
        yield held.pop(0)


def _by_ranges(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, order: RowOrder, folder: Path, memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    everything = folder / "rows.arrow"
    size, sample = _spooled(batches, schema, order, everything)
    fitted = order.fitted(sample)
    count = min(_MOST_RANGES, ceil(size / (memory_bytes / 2)))
    limits = _quantiles(fitted.keys(sample), fitted.by, count)
    with _Ranges(folder, schema) as ranges, pa.OSFile(str(everything), "rb") as source:
        for batch in pa.ipc.open_stream(source):
            rows = pa.Table.from_batches([batch])
            numbers = _range_numbers(fitted.keys(_key_columns(rows, order)), limits, fitted.by)
            for number in np.unique(numbers):
                ranges.write(int(number), rows.filter(pa.array(numbers == number)))
    everything.unlink()
    for number in range(limits.num_rows + 1):
        yield from _sorted(ranges.read(number), order, fitted)


def _spooled(batches: Iterator[pa.RecordBatch], schema: pa.Schema, order: RowOrder, path: Path) -> tuple[int, pa.Table]:
    """Write the rows to a file, and return their size and a sample of their key columns."""
    parts: list[pa.Table] = []
    size = rows = taken = 0
    step = 1
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            size += batch.nbytes
            # Every n-th row, counted through all batches; n doubles when the sample is full.
            places = np.arange(-rows % step, batch.num_rows, step)
            rows += batch.num_rows
            parts.append(_key_columns(pa.Table.from_batches([batch]).take(pa.array(places)), order))
            taken += len(places)
            if taken > _SAMPLE_ROWS:
                whole = pa.concat_tables(parts)
                parts = [whole.take(pa.array(np.arange(0, taken, 2)))]
                step, taken = step * 2, parts[0].num_rows
    return size, pa.concat_tables(parts)


class _Ranges:
    """The files of ranges of rows, while they are written and when they are read."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._open: dict[int, tuple[pa.NativeFile, Any]] = {}

    def write(self, number: int, rows: pa.Table) -> None:
        """Add rows to a range."""
        if number not in self._open:
            sink = pa.OSFile(str(self._path(number)), "wb")
            self._open[number] = sink, pa.ipc.new_stream(sink, self._schema)
        self._open[number][1].write_table(rows)

    def read(self, number: int) -> pa.Table:
        """The rows of a range, whose file is deleted."""
        path = self._path(number)
        if not path.exists():
            return empty_rows(self._schema)
        with pa.OSFile(str(path), "rb") as source:
            rows = pa.ipc.open_stream(source).read_all()
        path.unlink()
        return rows

    def _path(self, number: int) -> Path:
        return self._folder / f"range-{number}.arrow"

    def __enter__(self) -> _Ranges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink, writer in self._open.values():
            writer.close()
            sink.close()


def _sorted(rows: pa.Table, order: RowOrder, fitted: FittedOrder) -> Iterator[pa.RecordBatch]:
    keys = fitted.keys(_key_columns(rows, order))
    placed = rows.take(pc.sort_indices(keys, sort_keys=list(fitted.by)))
    yield from placed.to_batches(max_chunksize=_BATCH_ROWS)


def _key_columns(rows: pa.Table, order: RowOrder) -> pa.Table:
    """The columns that an order depends on, in a layout that Arrow can sort."""
    return pa.table({name: _sortable(rows[name]) for name in order.columns})


def _sortable(column: pa.ChunkedArray) -> pa.Array:
    array = plain_array(column.combine_chunks())
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _quantiles(keys: pa.Table, by: Sequence[SortKey], count: int) -> pa.Table:
    """The distinct keys that divide these into at most `count` ranges of about the same size."""
    if not keys.num_rows or count < 2:
        return keys.slice(0, 0)
    ordered = keys.take(pc.sort_indices(keys, sort_keys=list(by)))
    places = np.unique(np.arange(1, count) * keys.num_rows // count)
    chosen = ordered.take(pa.array(places)).combine_chunks()
    return chosen.group_by(chosen.column_names, use_threads=False).aggregate([]).select(chosen.column_names)


def _range_numbers(keys: pa.Table, limits: pa.Table, by: Sequence[SortKey]) -> _Numbers:
    """For each key the number of `limits`, which are sorted, that are not after it."""
    both = pa.concat_tables([limits, keys.cast(limits.schema)]).append_column(
        _IS_ROW, pa.array(np.repeat([0, 1], [limits.num_rows, keys.num_rows]).astype(np.int8))
    )
    places = pc.sort_indices(both, sort_keys=[*by, (_IS_ROW, "ascending", "at_end")]).to_numpy()
    is_limit = places < limits.num_rows
    before = np.cumsum(is_limit)
    numbers: _Numbers = np.empty(keys.num_rows, dtype=np.int64)
    numbers[places[~is_limit] - limits.num_rows] = before[~is_limit]
    return numbers

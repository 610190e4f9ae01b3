"""Rows of Parquet files as a stream: row groups that the filter cannot match are not read, and one batch is in memory
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter, to_arrow
from skiway.errors import Unsupported
from skiway.formats.conform import Fit, filled, fitting
from skiway.formats.files import Files
from skiway.formats.footers import row_groups
from skiway.formats.pruning import pruned
from skiway.formats.schemas import Leaf, field_id, leaves

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = ["FILE_ORDINAL", "ROW_POSITION", "DataFile", "Identifier", "Scan", "opened", "rows_of"]

FILE_ORDINAL: Final = "$file"
ROW_POSITION: Final = "$position"

Identifier: TypeAlias = Callable[[pa.Schema, str], pa.Schema]
"""The schema of a file, named by its path, with ids that the table knows."""

_BUFFER_BYTES: Final = 1 << 20  # read ahead per column, rather than a row group of it


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. `constants` are values, by field id, of columns that are not in it."""

    path: str
    ordinal: int
    etag: str | None = None  # what its content must still be, where files may change
    constants: Mapping[int, pa.Scalar] = field(default_factory=dict)
    deleted: pa.Array | None = None  # the positions of rows that are no longer there, ascending


@dataclass(frozen=True)
class Scan:
    """What is read of each file. `identify` gives the fields of a file's schema their ids."""

    files: Files
    schema: pa.Schema
    columns: Sequence[str]
    identify: Identifier
    filter: Filter | None = None
    positions: bool = False
    batch_rows: int = 65536

    @cached_property
    def condition(self) -> pc.Expression | None:
        """As much of the filter as can be asked of rows."""
        return to_arrow(self.filter, self.schema) if self.filter else None

    @cached_property
    def looked_at(self) -> pa.Schema:
        """The columns that are asked for, and those only the filter needs."""
        needed = [*dict.fromkeys([*self.columns, *(sorted(self.filter.columns) if self.filter else ())])]
        return pa.schema([self.schema.field(name) for name in needed if self.schema.get_field_index(name) >= 0])

    @cached_property
    def answered(self) -> pa.Schema:
        """The schema of what comes out."""
        fields = [self.schema.field(name) for name in self.columns]
        if self.positions:
            fields += [pa.field(FILE_ORDINAL, pa.int32(), nullable=False)]
            fields += [pa.field(ROW_POSITION, pa.int64(), nullable=False)]
        return pa.schema(fields)


def rows_of(scan: Scan, files: Iterable[DataFile]) -> pa.RecordBatchReader:
    """The rows of all `files`, one after the other."""
    batches = (batch for file in files for batch in _batches(scan, file))
    return pa.RecordBatchReader.from_batches(scan.answered, batches)


@contextmanager
def opened(files: Files, path: str) -> Iterator[ParquetFile]:
    """The Parquet file, until the block ends; what goes wrong in the block is told of this file."""
    from pyarrow.parquet import ParquetFile

    with files.translated(path), files.open(path) as file:
        # Moments in INT96 as nanoseconds would wrap around outside of 1677 to 2262.
        yield ParquetFile(file, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us")


def _batches(scan: Scan, file: DataFile) -> Iterator[pa.RecordBatch]:
    if file.etag is not None:
        scan.files.check_unchanged(file.path, file.etag)
    with opened(scan.files, file.path) as parquet:
        source = scan.identify(parquet.schema_arrow, file.path)
        names, fits = _fits(scan, source, file)
        groups = pruned(row_groups(parquet.metadata, source, _filtered(scan)), scan.filter, scan.schema)
        for group, start in zip(groups["row_group"].to_pylist(), groups["start"].to_pylist(), strict=True):
            for batch in parquet.iter_batches(scan.batch_rows, row_groups=[group], columns=names):
                rows = _answer(scan, file, batch, start, fits)
                start += batch.num_rows
                if rows.num_rows:
                    yield rows


def _filtered(scan: Scan) -> list[Leaf]:
    asked = scan.filter.columns if scan.filter else frozenset()
    return [leaf for leaf in leaves(scan.schema) if leaf.path[0] in asked]


def _fits(
    scan: Scan, source: pa.Schema, file: DataFile
) -> tuple[list[str], list[tuple[pa.Field, str | None, Fit | None]]]:
    """The columns to read from the file, and how each column looked at is made of them."""
    if len(set(source.names)) < len(source.names):
        raise Unsupported(
            f"file {file.path!r} has several columns of one name ({', '.join(source.names)}); rewrite it",
            key="file.ambiguous",
            file=file.path,
        )
    found = {number: each for each in source if (number := field_id(each)) is not None}
    fits: list[tuple[pa.Field, str | None, Fit | None]] = []
    for target in scan.looked_at:
        here = found.get(field_id(target) or -1)
        if here is None:
            fits.append((target, None, None))
        else:
            fits.append((target, here.name, fitting(here, target, file=file.path)))
    return [name for _, name, _ in fits if name is not None], fits


def _answer(
    scan: Scan,
    file: DataFile,
    batch: pa.RecordBatch,
    start: int,
    fits: Sequence[tuple[pa.Field, str | None, Fit | None]],
) -> pa.RecordBatch:
    """The rows of `batch`, which begins at position `start`, as they are asked for."""
    columns = [_column(batch, file, *fit) for fit in fits]
    schema = scan.looked_at
    if scan.positions:
        columns += [pa.repeat(pa.scalar(file.ordinal, pa.int32()), batch.num_rows), _positions(start, batch.num_rows)]
        schema = pa.schema([*schema, *list(scan.answered)[-2:]])
    rows = pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])
    if file.deleted is not None:
        rows = _without(rows, file.deleted, start)
    if scan.condition is not None:
        rows = rows.filter(scan.condition)
    return rows.select(scan.answered.names)


def _column(batch: pa.RecordBatch, file: DataFile, target: pa.Field, name: str | None, fit: Fit | None) -> pa.Array:
    if name is None:
        return filled(target, batch.num_rows, file.constants.get(field_id(target) or -1), file=file.path)
    array = batch.column(name)
    return array if fit is None else fit(array)


def _positions(start: int, rows: int) -> pa.Array:
    return pa.array(np.arange(start, start + rows, dtype=np.int64))


def _without(rows: pa.RecordBatch, deleted: pa.Array, start: int) -> pa.RecordBatch:
    first, end = np.searchsorted(deleted.to_numpy(), [start, start + rows.num_rows])
    if first == end:
        return rows
    here = pc.is_in(_positions(start, rows.num_rows), value_set=deleted.slice(first, end - first))
    return rows.filter(pc.invert(here))

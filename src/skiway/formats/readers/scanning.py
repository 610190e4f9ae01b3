"""What a scan reads from each data file, and how decoded batches of a file become rows of the scan.

The readers of all file formats decode batches of the columns that they are asked for. The rest is the same for all: columns
are matched by field id and converted to the schema of the scan, deleted rows are removed, and the filter is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter
from skiway.airport.filters.arrow import RowMask, row_mask
from skiway.errors import Unsupported
from skiway.formats.files import Files
from skiway.formats.readers.conform import Converter, converter, missing_column
from skiway.formats.schemas import field_id

FILE_ORDINAL: Final = "$file"
ROW_POSITION: Final = "$position"

IdAssigner: TypeAlias = Callable[[pa.Schema, str], pa.Schema]
"""Adds the field ids of the table to the schema of a file; the second argument is the file's path."""

Positions: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


class DeletedKeys(Protocol):
    """Rows that are deleted by the values of some columns."""

    @property
    def fields(self) -> Sequence[pa.Field]:
        """The columns to compare, with their ids. They may be columns that the scan does not read."""

    def matches(self, columns: Sequence[pa.Array]) -> pa.Array:
        """A mask of the rows that are deleted; `columns` are those of `fields`, in the same order and types."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. `constants` are the values, by field id, of columns that are not in the file."""

    path: str
    ordinal: int
    etag: str | None = None  # of the expected content, if files may change
    constants: Mapping[int, pa.Scalar] = field(default_factory=dict)
    deleted: pa.Array | None = None  # positions of the deleted rows, ascending
    deleted_keys: Sequence[DeletedKeys] = ()
    format: str = "parquet"
    rows: int | None = None  # how many rows it has according to the table, including deleted ones


@dataclass(frozen=True)
class Scan:
    """What to read from each file."""

    files: Files
    schema: pa.Schema
    columns: Sequence[str]
    assign_ids: IdAssigner
    filter: Filter | None = None
    positions: bool = False
    batch_rows: int = 65536
    first_batch_rows: int | None = None
    """The size of the batches of the first row group, for a reader that may stop early."""
    share: tuple[int, int] | None = None
    """Read only a share of each file: `(0, 3)` is the first of three. All shares together have all rows, each once."""

    @cached_property
    def mask(self) -> RowMask | None:
        """The part of the filter that Arrow can evaluate."""
        return row_mask(self.filter, self.schema) if self.filter else None

    @cached_property
    def input_schema(self) -> pa.Schema:
        """The requested columns, and those that only the filter needs."""
        needed = [*dict.fromkeys([*self.columns, *(sorted(self.filter.columns) if self.filter else ())])]
        return pa.schema([self.schema.field(name) for name in needed if self.schema.get_field_index(name) >= 0])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the returned batches."""
        fields = [self.schema.field(name) for name in self.columns]
        if self.positions:
            fields += [pa.field(FILE_ORDINAL, pa.int32(), nullable=False)]
            fields += [pa.field(ROW_POSITION, pa.int64(), nullable=False)]
        return pa.schema(fields)


class FileRows:
    """Makes the rows of a scan from decoded batches of one file.

    `source` is the schema of the file with the field ids of the table, and `names` are the columns of it to decode.
    """

    def __init__(self, scan: Scan, file: DataFile, source: pa.Schema) -> None:
        if len(set(source.names)) < len(source.names):
            raise Unsupported(
                f"file {file.path!r} has duplicate column names ({', '.join(source.names)}); rewrite it",
                key="file.ambiguous",
                file=file.path,
            )
        self._scan, self._file = scan, file
        found = {number: each for each in source if (number := field_id(each)) is not None}
        self._columns = [_Column.of(target, found, file) for target in scan.input_schema]
        self._keys = [[_Column.of(target, found, file) for target in keys.fields] for keys in file.deleted_keys]
        used = [*self._columns, *(column for keys in self._keys for column in keys)]
        self.names = list(dict.fromkeys(column.name for column in used if column.name is not None))

    def requested(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """The requested rows of a batch whose first row is at position `start`; it may be empty."""
        rows = self.conformed(batch, _positions(start, batch.num_rows) if self._scan.positions else None)
        kept = self._kept(batch, start)
        if kept is not None:
            rows = rows.filter(kept)
        if self._scan.mask is not None:
            rows = rows.filter(self._scan.mask(rows))
        return rows.select(self._scan.output_schema.names)

    def matching(self, batch: pa.RecordBatch, start: int) -> Positions:
        """The positions of the rows that the filter matches and that are not deleted, without making the rows."""
        assert self._scan.mask is not None
        found = self._scan.mask(self.conformed(batch, None))
        kept = self._kept(batch, start)
        chosen = pc.fill_null(found if kept is None else pc.and_kleene(found, kept), False)
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False)) + start

    def conformed(self, batch: pa.RecordBatch, positions: pa.Array | None) -> pa.RecordBatch:
        """Convert rows of the file to the schema of the table; `positions` are those of the rows, if they are needed."""
        count = batch.num_rows if positions is None else len(positions)  # a batch without columns may have more rows
        columns = [column.values(batch, count, self._file) for column in self._columns]
        schema = self._scan.input_schema
        if self._scan.positions:
            columns += [pa.repeat(pa.scalar(self._file.ordinal, pa.int32()), count), positions]
            schema = pa.schema([*schema, *list(self._scan.output_schema)[-2:]])
        return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])

    def _kept(self, batch: pa.RecordBatch, start: int) -> pa.Array | None:
        """A mask of the rows that are not deleted; None if none is."""
        masks = [] if self._file.deleted is None else _among(self._file.deleted, start, batch.num_rows)
        for keys, columns in zip(self._file.deleted_keys, self._keys, strict=True):
            masks.append(keys.matches([column.values(batch, batch.num_rows, self._file) for column in columns]))
        if not masks:
            return None
        gone = masks[0]
        for mask in masks[1:]:
            gone = pc.or_(gone, mask)
        return pc.invert(gone)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column to make: from the column `name` of the file, or missing there."""

    target: pa.Field
    name: str | None = None
    convert: Converter | None = None

    @classmethod
    def of(cls, target: pa.Field, found: Mapping[int, pa.Field], file: DataFile) -> _Column:
        here = found.get(field_id(target) or -1)
        if here is None:
            return cls(target)
        return cls(target, here.name, converter(here, target, file=file.path, defaults=file.constants))

    def values(self, batch: pa.RecordBatch, count: int, file: DataFile) -> pa.Array:
        if self.name is None:
            return missing_column(self.target, count, file.constants.get(field_id(self.target) or -1), file=file.path)
        array = batch.column(self.name)
        return array if self.convert is None else self.convert(array)


def _positions(start: int, rows: int) -> pa.Array:
    return pa.array(np.arange(start, start + rows, dtype=np.int64))


def _among(deleted: pa.Array, start: int, rows: int) -> list[pa.Array]:
    first, end = np.searchsorted(deleted.to_numpy(), [start, start + rows])
    if first == end:
        return []
    return [pc.is_in(_positions(start, rows), value_set=deleted.slice(first, end - first))]

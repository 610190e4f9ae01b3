"""The work of a copy on rows, in functions that run in many processes at once, and that can be sent to them.

They write data files, which nobody sees before the commit. A process that dies leaves files that garbage collection deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import ConstraintViolation
from skiway.formats import FILE_ORDINAL, ROW_POSITION, Snapshot, TableHandle
from skiway.formats.iceberg.data_files import DataFileWriter, conformed
from skiway.formats.iceberg.equality import EqualityDeletes, field_paths, key_fields
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore.ingest.positions import Position

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "Distribute",
    "FilePart",
    "Matches",
    "Target",
    "Written",
    "find_rows",
    "keys_of_files",
    "last_rows",
    "looked_up",
    "read_keys",
    "write_part",
    "write_rows",
]

T = TypeVar("T")
R = TypeVar("R")
_ROW = "$row"


class Distribute(Protocol):
    """Calls a function for each item, in many processes at once, and returns the results in the order of the items."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The table that rows are written to."""

    files: TableFiles
    metadata: TableMetadata

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, with their ids."""
        from skiway.formats.iceberg.types import arrow_columns

        return arrow_columns(self.metadata.schema())


@dataclass(frozen=True, slots=True)
class FilePart:
    """Some files of a table, and the columns in which their rows are read. `skipped` are positions by number of the file."""

    handle: TableHandle
    snapshot: Snapshot
    files: pa.Table
    columns: pa.Schema
    skipped: Mapping[int, np.ndarray] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that are not skipped, with the numbers of their files and their positions."""
        rows = self.handle.read(self.snapshot, files=self.files, schema=self.columns, positions=True)
        for batch in rows:
            yield self._kept(batch) if self.skipped else batch

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ordinals, positions = (batch.column(name).to_numpy() for name in (FILE_ORDINAL, ROW_POSITION))
        gone = np.zeros(batch.num_rows, dtype=bool)
        for ordinal in np.unique(ordinals):
            if (skipped := self.skipped.get(int(ordinal))) is not None:
                gone |= (ordinals == ordinal) & np.isin(positions, skipped)
        return batch.filter(pa.array(~gone))


@dataclass(frozen=True, slots=True)
class Written:
    """New data files and the number of rows that were read for them; `keys` are those of the rows that they replace."""

    files: tuple[DataFile, ...] = ()
    rows: int = 0
    position: Position = field(default_factory=dict)
    keys: tuple[pa.Table, ...] = ()

    @classmethod
    def all(cls, parts: Iterable[Written], position: Position, keys: Sequence[pa.Table] = ()) -> Written:
        """The parts together."""
        made = list(parts)
        files = tuple(file for part in made for file in part.files)
        return cls(files, sum(part.rows for part in made), position, tuple(keys))

    @property
    def paths(self) -> list[str]:
        """The paths of the data files."""
        return [file.file_path for file in self.files]


@dataclass(frozen=True, slots=True)
class Matches:
    """Rows of a data file that have certain keys: their positions, and those of rows that are deleted already."""

    path: str
    positions: np.ndarray
    before: np.ndarray
    row_count: int


# --- writing ----------------------------------------------------------------------------------------------------------


def write_part(target: Target, part: FilePart) -> Written:
    """Write the rows of some files into new data files of the target."""
    return write_rows(target, (batch.select(part.columns.names) for batch in part.batches()))


def write_rows(target: Target, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write rows into new data files of the target. Columns are matched by name, whatever its case."""
    named = {name.casefold(): name for name in target.columns.names}
    with DataFileWriter(target.files, target.metadata) as writer:
        for batch in batches:
            writer.write(_renamed(batch, named))
        return Written(tuple(writer.close()), writer.row_count)


def _renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    return batch.rename_columns([names.get(name.casefold(), name) for name in batch.schema.names])


# --- keys -------------------------------------------------------------------------------------------------------------


def read_keys(part: FilePart, keys: pa.Schema) -> pa.Table:
    """The keys of all rows of some files, in the types of the target, with the places of the rows."""
    own = {name.casefold(): name for name in part.columns.names}
    places = (FILE_ORDINAL, ROW_POSITION)
    columns = [own.get(name.casefold(), name) for name in keys.names]
    rows = part.handle.read(part.snapshot, files=part.files, schema=part.columns, columns=columns, positions=True)
    found = [_typed(batch.select([*columns, *places]), keys, places) for batch in rows]
    empty = pa.schema([*keys, pa.field(FILE_ORDINAL, pa.int32()), pa.field(ROW_POSITION, pa.int64())])
    return pa.concat_tables([pa.table({each.name: pa.array([], each.type) for each in empty}), *found])


def keys_of_files(target: Target, files: Sequence[DataFile], keys: pa.Schema) -> pa.Table:
    """The keys in data files of the target that are not committed yet."""
    from pyarrow.parquet import ParquetFile

    found = [pa.table({each.name: pa.array([], each.type) for each in keys})]
    for file in files:
        with target.files.open(file.file_path) as opened:
            for batch in ParquetFile(opened).iter_batches(columns=keys.names):
                found.append(_typed(batch.select(keys.names), keys, ()))
    return pa.concat_tables(found)


def _typed(batch: pa.RecordBatch, keys: pa.Schema, places: Sequence[str]) -> pa.Table:
    """The keys in the types of the target, none of which may be NULL."""
    plain = pa.schema([pa.field(each.name, each.type) for each in keys])
    named = dict(zip(batch.schema.names, [*keys.names, *places], strict=True))
    renamed = batch.rename_columns([named[name] for name in batch.schema.names])
    found = conformed(renamed.select(keys.names), plain)
    for name in keys.names:
        if found[name].null_count:
            raise ConstraintViolation(
                f"the key column {name!r} is NULL in {found[name].null_count} rows of the source, so they cannot be told apart: "
                "correct the rows, or choose other key_columns",
                key="ingest.key.null",
                column=name,
            )
    for name in places:
        found = found.append_column(name, renamed.column(name))
    return found


def last_rows(parts: Sequence[FilePart], keys: Sequence[pa.Table], names: pa.Schema) -> list[FilePart]:
    """The parts without the rows whose keys, as `read_keys` returned them, occur again in a later row."""
    everything = pa.concat_tables(keys)
    numbered = looked_up(everything, names.names).append_column(_ROW, pa.array(np.arange(everything.num_rows)))
    last = numbered.group_by(names.names, use_threads=False).aggregate([(_ROW, "max")])[f"{_ROW}_max"].to_numpy()
    if len(last) == everything.num_rows:
        return list(parts)
    is_lost = np.ones(everything.num_rows, dtype=bool)
    is_lost[last] = False
    lost = everything.filter(pa.array(is_lost))
    ordinals, positions = lost[FILE_ORDINAL].to_numpy(), lost[ROW_POSITION].to_numpy()
    skipped = {int(each): positions[ordinals == each] for each in np.unique(ordinals)}
    return [replace(part, skipped=skipped) for part in parts]


def looked_up(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The key columns in types that Arrow can group by."""
    columns: dict[str, Any] = {}
    for name in names:
        column = rows[name]
        columns[name] = column.cast(pa.binary(16)) if column.type == pa.uuid() else column
    return pa.table(columns)


def find_rows(handle: IcebergTable, snapshot: Snapshot, files: pa.Table, keys: Sequence[pa.Table]) -> list[Matches]:
    """The rows of data files, which are rows of the file table, that have one of the keys."""
    names = keys[0].schema.names
    paths = field_paths(handle.schema.arrow)
    by_name = {path[0].name: number for number, path in paths.items() if len(path) == 1}
    fields = key_fields([by_name[name] for name in names], paths, table=str(handle.name))
    wanted = pa.concat_tables(keys).rename_columns([each.name for each in fields])
    deletes = EqualityDeletes.of(fields, [wanted])
    found = []
    for place in range(files.num_rows):
        file = files.slice(place, 1)
        rows = handle.read(snapshot, files=file, schema=handle.schema.arrow, columns=names, positions=True)
        hits = [_hits(batch, deletes.matches([batch.column(name) for name in names])) for batch in rows]
        positions = np.concatenate([np.array([], np.int64), *hits])
        if len(positions):
            before = handle.deleted_positions(snapshot, file)
            found.append(Matches(file["path"][0].as_py(), positions, before, file["row_count"][0].as_py()))
    return found


def _hits(batch: pa.RecordBatch, mask: pa.Array) -> np.ndarray:
    return pc.filter(batch.column(ROW_POSITION), mask).to_numpy()  # type: ignore[no-any-return]

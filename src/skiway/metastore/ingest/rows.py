"""The work of a copy on rows, in functions that run in many processes at once, and how the table follows the columns of its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import ConstraintViolation, InvalidArgument, PreconditionFailed
from skiway.formats import FILE_ORDINAL, ROW_POSITION, Snapshot, TableHandle
from skiway.formats.iceberg.changes.evolution import AddColumn, ColumnChange, WidenColumn
from skiway.formats.iceberg.deletes import EqualityDeletes, field_paths, key_fields
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.types import arrow_columns, iceberg_schema
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.data_files import DataFileWriter, conformed
from skiway.metastore.ingest.positions import Position

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

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

    found = [pa.table({key.name: pa.array([], key.type) for key in keys})]
    for file in files:
        with target.files.open(file.file_path) as opened:
            for batch in ParquetFile(opened).iter_batches(columns=keys.names):
                found.append(_typed(batch.select(keys.names), keys, ()))
    return pa.concat_tables(found)


def _typed(batch: pa.RecordBatch, keys: pa.Schema, places: Sequence[str]) -> pa.Table:
    """The keys in the types of the target, none of which may be NULL."""
    plain = pa.schema([pa.field(key.name, key.type) for key in keys])
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


def stored_columns(source: pa.Schema) -> pa.Schema:
    """The columns as a table stores them: in types of Iceberg, all of them nullable."""
    nullable = pa.schema([pa.field(each.name, each.type, metadata=each.metadata) for each in source])
    return arrow_columns(iceberg_schema(nullable, format_version=3))


def column_changes(table: pa.Schema, source: pa.Schema, *, follows: bool) -> list[ColumnChange]:
    """The changes after which the rows of `source`, in stored types, fit the table.

    Raise `PreconditionFailed` if there are any and the table does not follow its source, or if the rows can never fit.
    """
    changes = list(_changes(list(table), list(source), ()))
    if follows:
        return changes
    missing = [each.name for each in table if _find(each.name, list(source)) is None]
    differences = [*(_shown(change) for change in changes), *(f"column {name!r} is missing" for name in missing)]
    if differences:
        raise PreconditionFailed(
            f"the columns of the source have changed, and the copy rejects changes: {'; '.join(differences)}; change the table "
            "and sync again, or set schema_changes to follow",
            key="ingest.schema.changed",
        )
    return changes


def key_fields_of(table: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    """The key columns of a table. Raise `InvalidArgument` if one is missing, or cannot be compared."""
    found = []
    for name in keys:
        field = _find(name, list(table))
        if field is None:
            raise InvalidArgument(
                f"the key column {name!r} does not exist; the columns are {', '.join(table.names)}: correct key_columns",
                key="ingest.key.missing",
                column=name,
            )
        if pa.types.is_nested(field.type) or pa.types.is_floating(field.type):
            raise InvalidArgument(
                f"the key column {name!r} has the type {field.type}, which cannot identify rows: choose another column",
                key="ingest.key.type",
                column=name,
            )
        found.append(field)
    return pa.schema(found)


def _changes(table: list[pa.Field], source: list[pa.Field], above: tuple[str, ...]) -> Iterator[ColumnChange]:
    for own in source:
        known = _find(own.name, table)
        path = (*above, own.name if known is None else known.name)
        if known is None:
            yield AddColumn(path if above else own.name, own.type)
        elif pa.types.is_struct(known.type) and pa.types.is_struct(own.type):
            yield from _changes(list(known.type), list(own.type), path)
        elif _is_wider(own.type, known.type):
            yield WidenColumn(path if above else known.name, own.type)
        elif not _fits(own.type, known.type):
            raise PreconditionFailed(
                f"column {'.'.join(path)!r} is {own.type} in the source, which does not fit into the {known.type} of the table: "
                "convert it in the source, or copy into a new table",
                key="ingest.schema.incompatible",
                column=".".join(path),
            )


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether Iceberg can change the type `old` to `new`."""
    if (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    if not (pa.types.is_decimal(old) and pa.types.is_decimal(new)):
        return False
    return bool(new.scale == old.scale and new.precision > old.precision)


def _fits(given: pa.DataType, into: pa.DataType) -> bool:
    """Whether all values of a type can be stored in a column of another one."""
    return _without_names(given) == _without_names(into) or _is_wider(into, given)


def _without_names(of: pa.DataType) -> str:
    """A type as text, without the ids and the nullability of its fields."""
    if pa.types.is_list(of):
        return f"list<{_without_names(of.value_type)}>"
    if pa.types.is_map(of):
        return f"map<{_without_names(of.key_type)}, {_without_names(of.item_type)}>"
    if pa.types.is_struct(of):
        return f"struct<{', '.join(f'{each.name}: {_without_names(each.type)}' for each in of)}>"
    return str(of)


def _find(name: str, fields: list[pa.Field]) -> pa.Field | None:
    exact = [each for each in fields if each.name == name]
    alike = exact or [each for each in fields if each.name.casefold() == name.casefold()]
    return alike[0] if alike else None


def _shown(change: ColumnChange) -> str:
    path = change.path if isinstance(change.path, str) else ".".join(change.path)
    return f"column {path!r} is new" if isinstance(change, AddColumn) else f"column {path!r} has a wider type"

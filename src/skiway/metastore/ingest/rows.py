"""The work of a copy on rows, in functions that run in many processes at once, and how the table follows the columns of its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats import FILE_ORDINAL, ROW_POSITION, Snapshot, TableHandle
from skiway.formats.iceberg.changes.evolution import AddColumn, ColumnChange, WidenColumn
from skiway.formats.iceberg.types import arrow_columns, iceberg_schema
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore.ingest.positions import Position

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

T = TypeVar("T")
R = TypeVar("R")
_PART_BYTES: Final = 128 << 20


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
    """Some files of a table, and the columns in which their rows are read. `skipped` are ascending positions by number of the file."""

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
            if (skipped := self.skipped.get(int(ordinal))) is not None and len(skipped):
                own = ordinals == ordinal
                first, end = np.searchsorted(skipped, [positions[own][0], positions[own][-1] + 1])
                gone |= own & np.isin(positions, skipped[first:end])
        return batch.filter(pa.array(~gone))


@dataclass(frozen=True, slots=True)
class Written:
    """New data files and the number of rows that were read for them."""

    files: tuple[DataFile, ...] = ()
    rows: int = 0
    position: Position = field(default_factory=dict)

    @classmethod
    def all(cls, parts: Iterable[Written], position: Position) -> Written:
        """The parts together."""
        made = list(parts)
        files = tuple(file for part in made for file in part.files)
        return cls(files, sum(part.rows for part in made), position)

    @property
    def paths(self) -> list[str]:
        """The paths of the data files."""
        return [file.file_path for file in self.files]


# --- writing ----------------------------------------------------------------------------------------------------------


def write_part(target: Target, part: FilePart) -> Written:
    """Write the rows of some files into new data files of the target."""
    return write_rows(target, (batch.select(part.columns.names) for batch in part.batches()))


def grouped(files: pa.Table) -> Iterable[pa.Table]:
    """The files in groups of about 128 MB."""
    first, size = 0, 0
    for place, each in enumerate(files["size_bytes"].to_pylist()):
        if size and size + each > _PART_BYTES:
            yield files.slice(first, place - first)
            first, size = place, 0
        size += each
    if files.num_rows > first:
        yield files.slice(first)


def write_rows(target: Target, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write rows into new data files of the target. Columns are matched by name, whatever its case."""
    named = {name.casefold(): name for name in target.columns.names}
    with DataFileWriter(target.files, target.metadata) as writer:
        for batch in batches:
            writer.write(_renamed(batch, named))
        return Written(tuple(writer.close()), writer.row_count)


def _renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    return batch.rename_columns([names.get(name.casefold(), name) for name in batch.schema.names])


# --- columns ----------------------------------------------------------------------------------------------------------


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

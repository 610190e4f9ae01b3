# mypy: disable-error-code="no-any-return"
"""Write rows as data files of an Iceberg table. They become visible when they are committed.

Files that wait for their commit are described by a manifest of their own.

`DataFileWriter` streams rows into files by partition; `conformed` converts rows to the table's columns, order, types and
nullability.

The commit reads that manifest back and writes new manifests, so it is never part of a snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.airport.conversion import plain_array
from skiway.errors import ConstraintViolation, InvalidArgument, Unsupported
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.changes.evolution import split_by_partition
from skiway.formats.iceberg.table import with_lineage
from skiway.formats.iceberg.types import arrow_schema, variant_columns, write_defaults
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.parquet_files import Layout, ParquetFile
from skiway.foundation.files import synced_together

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.typedef import Record

# PyIceberg is partly untyped.

_TARGET_BYTES: Final = 512 << 20
_ROW_GROUP_BYTES: Final = 64 << 20


def conformed(
    batch: pa.RecordBatch, schema: pa.Schema, defaults: Mapping[str, pa.Scalar] = MappingProxyType({})
) -> pa.Table:
    """Convert `batch` to `schema`, matching columns by name; missing columns have their default, or are NULL."""
    unknown = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if unknown:
        raise InvalidArgument(
            f"the table has no column {unknown[0]!r}; it has {', '.join(schema.names)}",
            key="column.unknown",
            column=unknown[0],
        )
    if len(set(batch.schema.names)) < batch.num_columns:
        raise InvalidArgument(
            f"the rows have duplicate column names: {', '.join(batch.schema.names)}",
            key="column.duplicate",
        )
    columns = [_column(batch, field, defaults.get(field.name)) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, default: pa.Scalar | None) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    if place >= 0:
        column = _cast(batch.column(place), field)
    else:
        column = pa.nulls(batch.num_rows, field.type) if default is None else pa.repeat(default, batch.num_rows)
    if not field.nullable and column.null_count:
        raise ConstraintViolation(
            f"column {field.name!r} is NOT NULL, but {column.null_count} of {batch.num_rows} rows have no value; "
            "supply one, or make the column nullable",
            key="column.not_null",
            column=field.name,
        )
    return column


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast without loss of precision or of struct fields: Arrow silently drops fields that the target lacks."""
    column = plain_array(column)
    if column.type == field.type:
        return column
    try:
        missing = next(_missing_fields(column.type, field.type), None)
        if missing is not None:
            raise ValueError(f"it has no field {missing!r}")
        return column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"values of column {field.name!r} have type {column.type} and cannot be cast to {field.type}: {reason}",
            key="column.value",
            column=field.name,
        ) from error


def _missing_fields(given: pa.DataType, of: pa.DataType) -> Iterator[str]:
    """The struct fields, at any depth, that `of` does not have."""
    if pa.types.is_struct(given) and pa.types.is_struct(of):
        known = {child.name: child.type for child in of}
        for child in given:
            if child.name not in known:
                yield child.name
            else:
                yield from _missing_fields(child.type, known[child.name])
    elif pa.types.is_map(given) and pa.types.is_map(of):
        yield from _missing_fields(given.key_type, of.key_type)
        yield from _missing_fields(given.item_type, of.item_type)
    elif pa.types.is_nested(given) and pa.types.is_list(of):
        yield from _missing_fields(given.field(0).type, of.value_type)


@dataclass(slots=True)
class _Partition:
    """A partition that is being written: its buffered rows, and the open file with the rows before them."""

    partition: Record
    buffered: list[pa.Table] = field(default_factory=list)
    buffered_bytes: int = 0
    file: ParquetFile | None = None

    def take(self) -> pa.Table:
        """The buffered rows, which are buffered no longer."""
        rows, self.buffered, self.buffered_bytes = pa.concat_tables(self.buffered), [], 0
        return rows


@dataclass(frozen=True, slots=True)
class _Encoding:
    """Rows of a partition that are being encoded, and their size."""

    part: _Partition
    size: int
    done: Future[None]


class DataFileWriter:
    """Writes rows into new data files of a table, by partition. Row groups are sorted if the table has a sort order.

    Full row groups are encoded on a thread, while further rows arrive. At most about `buffer_bytes` of rows are in memory, and
    at most `max_open_files` files are open, however many partitions there are. With `lineage` the files contain that of their
    rows, for rows that other files contained before. `target_bytes` is the size of files, by default that of the table's
    property, and `group_bytes` is about that of row groups before they are encoded. Rows that are `in_order` are not sorted; then
    `sort_order_id` is the order of the table that they have, if they have one. Not safe to use from several threads.
    """

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        *,
        buffer_bytes: int = 2 * _ROW_GROUP_BYTES,
        max_open_files: int = 16,
        lineage: bool = False,
        target_bytes: int | None = None,
        in_order: bool = False,
        sort_order_id: int | None = None,
        ids: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self.row_count = 0
        self._files, self._metadata = files, metadata
        self._schema, self._spec = metadata.schema(), metadata.spec()
        if lineage:
            self._schema = with_lineage(self._schema)
        self._arrow, self._defaults = arrow_schema(self._schema).arrow, write_defaults(self._schema)
        self._variants = variant_columns(self._schema)
        self._order = [] if in_order else sort_keys(metadata.schema(), metadata.sort_order())
        self._given_order = sort_order_id if in_order else None
        self._buffer_bytes, self._max_open = buffer_bytes, max_open_files
        options = metadata.properties
        self._layout = Layout(self._schema, self._arrow, options)
        group_bytes = _size(options, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES)
        # Half of the rows are encoded while the others arrive. Rows to sort are buffered longer: each write is sorted on its own.
        self.group_bytes = min(group_bytes, buffer_bytes if self._order else max(1, buffer_bytes // 2))
        self._target_bytes = target_bytes or target_file_bytes(options)
        self._name, self._numbers = ids(), iter(range(10**9))
        self._parts: dict[str, _Partition] = {}  # least recently used first
        self._written: list[DataFile] = []
        self._thread: ThreadPoolExecutor | None = None
        self._encoding: _Encoding | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows. Columns are matched by name; missing columns have their write default, or are NULL."""
        rows = conformed(batch, self._arrow, self._defaults)
        if not rows.num_rows:
            return
        if self._variants:
            raise Unsupported(
                f"column {min(self._variants)!r} has type variant, which Skiway reads as JSON and does not write: write these rows "
                "with Spark or DuckDB's iceberg extension",
                key="column.type",
                column=min(self._variants),
                type="variant",
            )
        self.row_count += rows.num_rows
        whole = iter([(lib.typedef.Record(), rows)])
        for key, some in split_by_partition(rows, self._spec, self._schema) if self._spec.fields else whole:
            part = self._part(key)
            part.buffered.append(some)
            part.buffered_bytes += some.nbytes
            if part.buffered_bytes >= self.group_bytes:
                self._flush(part)
        while self._rows_in_memory() > self._buffer_bytes:
            if self._encoding is None:
                self._flush(max(self._parts.values(), key=lambda part: part.buffered_bytes))
            self._wait()

    def close(self) -> list[DataFile]:
        """Finish all files and return them for a commit; an empty list if there were no rows."""
        self._wait()
        with synced_together():
            for part in list(self._parts.values()):
                if part.buffered:
                    self._encode(part, part.take())
                self._finish(part)
        self._parts.clear()
        self._end_thread()
        return list(self._written)

    def abort(self) -> None:
        """Delete all files that were written."""
        self._end_thread()
        self._encoding = None
        open_files = [part.file for part in self._parts.values() if part.file]
        for file in open_files:
            file.abort()
        self._files.remove([file.uri for file in open_files] + [file.file_path for file in self._written])
        self._parts.clear()
        self._written.clear()

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()

    def _part(self, partition: Record) -> _Partition:
        key = repr([partition[place] for place in range(len(partition))])  # as text, because NaN != NaN
        part = self._parts.pop(key) if key in self._parts else _Partition(partition)
        self._parts[key] = part
        return part

    def _rows_in_memory(self) -> int:
        encoding = 0 if self._encoding is None else self._encoding.size
        return encoding + sum(part.buffered_bytes for part in self._parts.values())

    def _flush(self, part: _Partition) -> None:
        """Encode the buffered rows as new row groups, on the thread, after those before them."""
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "encode-rows")
        size, rows = part.buffered_bytes, part.take()
        self._open(part, rows)
        done = self._thread.submit(copy_context().run, self._encode, part, rows)
        self._encoding = _Encoding(part, size, done)

    def _wait(self) -> None:
        """Wait until rows are encoded; raise the error if that failed. A file that is large enough is finished."""
        encoding, self._encoding = self._encoding, None
        if encoding is None:
            return
        encoding.done.result()
        if encoding.part.file is not None and encoding.part.file.size >= self._target_bytes:
            self._finish(encoding.part)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _open(self, part: _Partition, rows: pa.Table) -> ParquetFile:
        """The file of a partition, which is created for these rows if there is none."""
        if part.file is None:
            self._make_room()
            uri = f"{data_folder(self._metadata)}/{next(self._numbers):05d}-{self._name}.parquet"
            part.file = ParquetFile(self._files, uri, self._layout, first=rows)
        return part.file

    def _encode(self, part: _Partition, rows: pa.Table) -> None:
        self._open(part, rows).write(rows.sort_by(self._order) if self._order else rows)

    def _make_room(self) -> None:
        """Finish the least recently used files until one more may be open."""
        opened = [part for part in self._parts.values() if part.file]
        for part in opened[: len(opened) - self._max_open + 1]:
            self._finish(part)

    def _finish(self, part: _Partition) -> None:
        if part.file is None:
            return
        # Each write is sorted on its own, so only a file with a single write is sorted as a whole.
        whole = self._order and part.file.writes == 1
        sorted_by = self._metadata.default_sort_order_id if whole else self._given_order
        file, part.file = part.file, None
        self._written.append(file.close(partition=part.partition, spec_id=self._spec.spec_id, sort_order_id=sorted_by))


def data_folder(metadata: TableMetadata) -> str:
    """The folder of the table's data files."""
    return metadata.properties.get("write.data.path", f"{metadata.location}/data").rstrip("/")


def sort_keys(schema: Schema, order: SortOrder) -> list[tuple[str, str, str]]:
    """The keys of a sort order for Arrow; empty if it uses transforms or nested columns."""
    keys, top = [], {each.name for each in schema.fields}
    for each in order.fields:
        name = schema.find_column_name(each.source_id)
        if str(each.transform) != "identity" or name not in top:
            return []
        nulls = "at_start" if each.null_order.value == "nulls-first" else "at_end"
        keys.append((name, "descending" if each.direction.value == "desc" else "ascending", nulls))
    return keys


def target_file_bytes(options: Mapping[str, str]) -> int:
    """The size that data files of a table with these properties should have."""
    return _size(options, "write.target-file-size-bytes", _TARGET_BYTES)


def _size(options: Mapping[str, str], name: str, default: int) -> int:
    found = options.get(name, str(default))
    if not found.isdecimal() or int(found) < 1:
        raise InvalidArgument(f"property {name} is {found!r}, but must be a number of bytes", key="property.invalid")
    return int(found)


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """Where a manifest of staged data files is, how long it is, and how the table was partitioned when they were written."""

    location: str
    length: int
    spec_id: int


def write_staged(
    files: TableFiles,
    metadata: TableMetadata,
    added: Sequence[DataFile],
    *,
    ids: Callable[[], object] = uuid.uuid4,
) -> StagedManifest:
    """Describe data files that one `DataFileWriter` has written for `metadata`; there must be at least one."""
    location = f"{metadata.location}/metadata/staged-{ids()}.avro"
    spec_id, snapshot_id, io = added[0].spec_id, metadata.new_snapshot_id(), lib.metadata_files.WritingIO(files)
    try:
        made = lib.manifest_files.write_manifest(
            metadata, spec_id, io, location=location, snapshot_id=snapshot_id, added=added
        )
    except BaseException:
        files.remove([location])
        raise
    return StagedManifest(location, made.manifest_length, spec_id)


def read_staged(files: TableFiles, staged: StagedManifest) -> list[DataFile]:
    """The data files, as they were written."""
    manifest = lib.manifest.ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=staged.location,
        manifest_length=staged.length,
        partition_spec_id=staged.spec_id,
    )
    return [entry.data_file for entry in lib.manifest_files.entries(manifest, lib.metadata_files.WritingIO(files))]

"""Write rows as Parquet data files of an Iceberg table. They become visible when they are committed.

`DataFileWriter` streams rows into files by partition; `ParquetFile` writes one file and collects its statistics for the
manifest; `conformed` converts rows to the table's columns, order, types and nullability.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.layouts import plain_array
from skiway.errors import ConstraintViolation, InvalidArgument
from skiway.formats.geometry import WkbType, coordinate_system
from skiway.formats.iceberg.lineage import with_lineage
from skiway.formats.iceberg.partitions import split_by_partition
from skiway.formats.iceberg.types import arrow_schema, write_defaults
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.parquet.footers import row_groups
from skiway.formats.schemas import Leaf, field_id, leaves, with_id
from skiway.formats.statistics import merged_stats

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.typedef import Record

__all__ = ["DataFileWriter", "ParquetFile", "conformed", "data_folder", "sort_keys", "target_file_bytes"]

# mypy: disable-error-code=no-any-return
# PyIceberg is partly untyped.

_TARGET_BYTES: Final = 512 << 20
_ROW_GROUP_BYTES: Final = 64 << 20
_ROW_GROUP_ROWS: Final = 131_072  # what a reader must decode to find one row; DuckDB's files have about as many


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


class ParquetFile:
    """An open Parquet file. Every `write` starts a new row group, and so do each 131,072 rows."""

    def __init__(
        self, files: TableFiles, uri: str, schema: Schema, arrow: pa.Schema, options: Mapping[str, str]
    ) -> None:
        from pyarrow.parquet import ParquetWriter

        self.uri = uri
        self.writes = 0
        self._files, self._schema, self._options = files, schema, options
        self._arrow = arrow
        self._floats = [leaf for leaf in leaves(arrow) if pa.types.is_floating(leaf.type)]
        # PyIceberg reads these bounds as Python values, which have fewer years and no nanoseconds.
        self._temporal = [leaf for leaf in leaves(arrow) if _is_temporal(leaf.type)]
        self._nans: Counter[int] = Counter({leaf.id: 0 for leaf in self._floats})
        self._sink = files.create(uri)
        self._geometries = {field.name: WkbType.of(field) for field in arrow if coordinate_system(field) is not None}
        self._written = pa.schema([_written(field, self._geometries.get(field.name)) for field in arrow])
        with files.translated(uri):  # it writes the first bytes
            self._writer = ParquetWriter(
                self._sink,
                self._written,
                compression=_codec(options),
                compression_level=_level(options),
                store_decimal_as_integer=True,
                write_page_index=True,
            )

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        """Write the rows as new row groups."""
        for leaf in self._floats:
            column = rows[leaf.path[0]]
            for name in leaf.path[1:]:
                column = pc.struct_field(column, name)
            self._nans[leaf.id] += pc.sum(pc.is_nan(column), min_count=0).as_py()
        for name, of in self._geometries.items():
            chunks = [pa.ExtensionArray.from_storage(of, chunk) for chunk in rows[name].chunks]
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, self._written.field(name), pa.chunked_array(chunks, of))
        with self._files.translated(self.uri):
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        self.writes += 1

    def close(self, *, partition: Any, spec_id: int, sort_order_id: int | None) -> DataFile:
        """Close the file, sync it to disk, and return its entry for a manifest."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        with self._files.translated(self.uri):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        self._files.seal(self.uri)
        made = DataFile.from_args(
            _table_format_version=3,
            content=DataFileContent.DATA,
            file_path=self.uri,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=size,
            sort_order_id=sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **self._statistics(),
        )
        made.spec_id = spec_id
        return made

    def abort(self) -> None:
        """Close the file without finishing it; the caller deletes it."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()

    def _statistics(self) -> dict[str, Any]:
        from pyiceberg.io.pyarrow import (
            MetricModeTypes,
            MetricsMode,
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.types import GeometryType

        footer = self._writer.writer.metadata
        plan = compute_statistics_plan(self._schema, dict(self._options))
        unbounded = (MetricModeTypes.NONE, MetricModeTypes.COUNTS)
        own = [leaf for leaf in self._temporal if leaf.id in plan and plan[leaf.id].mode.type not in unbounded]
        plan |= {leaf.id: replace(plan[leaf.id], mode=MetricsMode(MetricModeTypes.COUNTS)) for leaf in own}
        for each in self._schema.fields:
            if isinstance(each.field_type, GeometryType):  # Parquet has other statistics for geometries
                plan[each.field_id] = replace(plan[each.field_id], mode=MetricsMode(MetricModeTypes.NONE))
        found = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(self._schema))
        facts = found.to_serialized_dict()
        low, high = _temporal_bounds(footer, self._arrow, own)
        # PyIceberg does not count NaN.
        nans = {number: count for number, count in self._nans.items() if number in found.value_counts}
        bounds = {"lower_bounds": facts["lower_bounds"] | low, "upper_bounds": facts["upper_bounds"] | high}
        return {**facts, **bounds, "nan_value_counts": nans}


def _temporal_bounds(footer: Any, arrow: pa.Schema, of: Sequence[Leaf]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The bounds of dates and timestamps by field id, in Iceberg's single-value serialization."""
    stats = row_groups(footer, arrow, of)["stats"].combine_chunks()
    low: dict[int, bytes] = {}
    high: dict[int, bytes] = {}
    for leaf in of:
        merged = merged_stats(stats.field(str(leaf.id)))
        for bounds, name in ((low, "min"), (high, "max")):
            bound = merged.field(name)
            if bound.null_count == 0:
                whole = pa.int32() if pa.types.is_date32(leaf.type) else pa.int64()
                bounds[leaf.id] = bound.view(whole)[0].as_py().to_bytes(whole.bit_width // 8, "little", signed=True)
    return low, high


def _written(field: pa.Field, geometry: WkbType | None) -> pa.Field:
    """`field` as it is written, with the extension type of geometries."""
    return field if geometry is None else with_id(pa.field(field.name, geometry, field.nullable), field_id(field))


def _is_temporal(of: pa.DataType) -> bool:
    return pa.types.is_date32(of) or pa.types.is_timestamp(of)


def _codec(options: Mapping[str, str]) -> str:
    codec = options.get("write.parquet.compression-codec", "zstd").lower()
    return "none" if codec == "uncompressed" else codec


def _level(options: Mapping[str, str]) -> int | None:
    level = options.get("write.parquet.compression-level")
    return int(level) if level and _codec(options) in ("zstd", "gzip", "brotli") else None


@dataclass(slots=True)
class _Partition:
    """A partition that is being written: its buffered rows, and the open file with the rows before them."""

    partition: Record
    buffered: list[pa.Table] = field(default_factory=list)
    buffered_bytes: int = 0
    file: ParquetFile | None = None


class DataFileWriter:
    """Writes rows into new data files of a table, by partition. Row groups are sorted if the table has a sort order.

    At most about `buffer_bytes` of rows are buffered in memory, and at most `max_open_files` files are open, however many
    partitions there are. With `lineage` the files contain that of their rows, for rows that other files contained before.
    `target_bytes` is the size of files, by default that of the table's property. Rows that are `in_order` are not sorted; then
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
        self._order = [] if in_order else sort_keys(metadata.schema(), metadata.sort_order())
        self._given_order = sort_order_id if in_order else None
        self._buffer_bytes, self._max_open = buffer_bytes, max_open_files
        options = metadata.properties
        self._group_bytes = min(_size(options, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES), buffer_bytes)
        self._target_bytes = target_bytes or target_file_bytes(options)
        self._name, self._numbers = ids(), iter(range(10**9))
        self._parts: dict[str, _Partition] = {}  # least recently used first
        self._written: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the rows. Columns are matched by name; missing columns have their write default, or are NULL."""
        rows = conformed(batch, self._arrow, self._defaults)
        if not rows.num_rows:
            return
        self.row_count += rows.num_rows
        for key, some in self._split(rows):
            part = self._part(key)
            part.buffered.append(some)
            part.buffered_bytes += some.nbytes
            if part.buffered_bytes >= self._group_bytes:
                self._flush(part)
        while sum(part.buffered_bytes for part in self._parts.values()) > self._buffer_bytes:
            self._flush(max(self._parts.values(), key=lambda part: part.buffered_bytes))

    def close(self) -> list[DataFile]:
        """Finish all files and return them for a commit; an empty list if there were no rows."""
        for part in list(self._parts.values()):
            self._flush(part)
            self._finish(part)
        self._parts.clear()
        return list(self._written)

    def abort(self) -> None:
        """Delete all files that were written."""
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

    def _split(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        from pyiceberg.typedef import Record

        return split_by_partition(rows, self._spec, self._schema) if self._spec.fields else iter([(Record(), rows)])

    def _part(self, partition: Record) -> _Partition:
        key = repr([partition[place] for place in range(len(partition))])  # as text, because NaN != NaN
        part = self._parts.pop(key) if key in self._parts else _Partition(partition)
        self._parts[key] = part
        return part

    def _flush(self, part: _Partition) -> None:
        """Write the buffered rows as new row groups."""
        if not part.buffered:
            return
        rows = pa.concat_tables(part.buffered)
        if self._order:
            rows = rows.sort_by(self._order)
        part.buffered, part.buffered_bytes = [], 0
        if part.file is None:
            self._make_room()
            part.file = ParquetFile(self._files, self._location(), self._schema, self._arrow, self._metadata.properties)
        part.file.write(rows)
        if part.file.size >= self._target_bytes:
            self._finish(part)

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

    def _location(self) -> str:
        return f"{data_folder(self._metadata)}/{next(self._numbers):05d}-{self._name}.parquet"


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

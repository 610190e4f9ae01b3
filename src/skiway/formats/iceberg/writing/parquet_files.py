# mypy: disable-error-code="no-any-return"
"""One Parquet data file of an Iceberg table: its encoding, and its statistics for the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import empty_rows
from skiway.formats.extension_types import WkbType, coordinate_system
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.schemas import Leaf, field_id, leaves, with_id

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

# PyIceberg is partly untyped.

_ROW_GROUP_ROWS: Final = 65_536
"""A reader decodes a row group up to the row that it looks up. With twice as many rows, that takes twice as long, and scans of whole
files are not faster."""

_SAMPLED_ROWS: Final = 8192
_FEW_ROWS: Final = 1024
"""Files with fewer rows are written fast in any encoding."""


@dataclass(frozen=True)
class Layout:
    """What the files of a table with the same columns and properties have in common. A thousand files are described once."""

    schema: Schema
    arrow: pa.Schema
    options: Mapping[str, str]

    @cached_property
    def floats(self) -> list[Leaf]:
        """The columns of floating-point numbers. Their NaN values are counted."""
        return [leaf for leaf in leaves(self.arrow) if pa.types.is_floating(leaf.type)]

    @cached_property
    def temporal(self) -> list[Leaf]:
        """The dates and timestamps with bounds. They are computed here: PyIceberg's Python values have fewer years and no nanoseconds."""
        unbounded = (self._modes.NONE, self._modes.COUNTS)
        bounded = {number for number, each in self._wanted.items() if each.mode.type not in unbounded}
        is_kind = (pa.types.is_date32, pa.types.is_timestamp)
        return [leaf for leaf in leaves(self.arrow) if leaf.id in bounded and any(each(leaf.type) for each in is_kind)]

    @cached_property
    def geometries(self) -> dict[str, WkbType]:
        """The types of geometries, by the names of their columns."""
        return {field.name: WkbType.of(field) for field in self.arrow if coordinate_system(field) is not None}

    @cached_property
    def written(self) -> pa.Schema:
        """The columns as they are written."""
        return pa.schema([_written(field, self.geometries.get(field.name)) for field in self.arrow])

    @cached_property
    def plan(self) -> dict[int, Any]:
        """What PyIceberg finds out about each column."""
        from pyiceberg.io.pyarrow import MetricsMode

        counted = {leaf.id: self._modes.COUNTS for leaf in self.temporal}
        for field in self.schema.fields:
            if isinstance(field.field_type, lib.types.GeometryType):  # Parquet has other statistics for geometries
                counted[field.field_id] = self._modes.NONE
        changed = {number: replace(self._wanted[number], mode=MetricsMode(mode)) for number, mode in counted.items()}
        return self._wanted | changed

    @cached_property
    def ids(self) -> dict[str, int]:
        """The ids of columns by their paths in files."""
        from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

        return parquet_path_to_id_mapping(self.schema)

    @cached_property
    def _wanted(self) -> dict[int, Any]:
        from pyiceberg.io.pyarrow import compute_statistics_plan

        return compute_statistics_plan(self.schema, dict(self.options))

    @property
    def _modes(self) -> Any:
        from pyiceberg.io.pyarrow import MetricModeTypes

        return MetricModeTypes


class ParquetFile:
    """An open Parquet file. Every `write` starts a new row group, and so do each 65,536 rows.

    `first` are the first rows, which decide how columns are encoded.
    """

    def __init__(self, files: TableFiles, uri: str, layout: Layout, *, first: pa.Table) -> None:
        from pyarrow.parquet import ParquetWriter

        self.uri = uri
        self.writes = 0
        self._files, self._layout = files, layout
        self._nans: Counter[int] = Counter({leaf.id: 0 for leaf in layout.floats})
        self._low: dict[int, int] = {}
        self._high: dict[int, int] = {}
        self._sink = files.create(uri)
        codec = layout.options.get("write.parquet.compression-codec", "zstd").lower()
        level = layout.options.get("write.parquet.compression-level")
        with files.translated(uri):  # it writes the first bytes
            self._writer = ParquetWriter(
                self._sink,
                layout.written,
                use_dictionary=dictionary_columns(first),
                compression="none" if codec == "uncompressed" else codec,
                compression_level=int(level) if level and codec in ("zstd", "gzip", "brotli") else None,
                store_decimal_as_integer=True,
                write_page_index=True,
            )

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        """Write the rows as new row groups."""
        for leaf in self._layout.floats:
            self._nans[leaf.id] += pc.sum(pc.is_nan(_values(rows, leaf)), min_count=0).as_py()
        for leaf in self._layout.temporal:
            ends = pc.min_max(_values(rows, leaf))
            if ends["min"].is_valid:
                low, high = ends["min"].value, ends["max"].value
                self._low[leaf.id] = min(low, self._low.get(leaf.id, low))
                self._high[leaf.id] = max(high, self._high.get(leaf.id, high))
        for name, of in self._layout.geometries.items():
            chunks = [pa.ExtensionArray.from_storage(of, chunk) for chunk in rows[name].chunks]
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, self._layout.written.field(name), pa.chunked_array(chunks, of))
        with self._files.translated(self.uri):
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        self.writes += 1

    def close(self, *, partition: Any, spec_id: int, sort_order_id: int | None) -> DataFile:
        """Close the file, sync it to disk, and return its entry for a manifest."""
        with self._files.translated(self.uri):
            self._writer.close()
            size = self._sink.tell()
            self._sink.close()
        self._files.seal(self.uri)
        made = lib.manifest.DataFile.from_args(
            _table_format_version=3,
            content=lib.manifest.DataFileContent.DATA,
            file_path=self.uri,
            file_format=lib.manifest.FileFormat.PARQUET,
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
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata

        footer = self._writer.writer.metadata
        found = data_file_statistics_from_parquet_metadata(footer, self._layout.plan, self._layout.ids)
        facts = found.to_serialized_dict()
        # PyIceberg does not count NaN.
        nans = {number: count for number, count in self._nans.items() if number in found.value_counts}
        low, high = self._serialized(self._low), self._serialized(self._high)
        bounds = {"lower_bounds": facts["lower_bounds"] | low, "upper_bounds": facts["upper_bounds"] | high}
        return {**facts, **bounds, "nan_value_counts": nans}

    def _serialized(self, bounds: Mapping[int, int]) -> dict[int, bytes]:
        """Bounds of dates and timestamps in Iceberg's single-value serialization."""
        widths = {leaf.id: leaf.type.bit_width // 8 for leaf in self._layout.temporal}
        return {number: bound.to_bytes(widths[number], "little", signed=True) for number, bound in bounds.items()}


def _values(rows: pa.Table, leaf: Leaf) -> pa.ChunkedArray:
    column = rows[leaf.path[0]]
    for name in leaf.path[1:]:
        column = pc.struct_field(column, name)
    return column


def _written(field: pa.Field, geometry: WkbType | None) -> pa.Field:
    """`field` as it is written, with the extension type of geometries."""
    return field if geometry is None else with_id(pa.field(field.name, geometry, field.nullable), field_id(field))


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """The columns of a file, as paths of Parquet, that are stored with dictionaries; True for all of them.

    A dictionary makes columns with few values smaller. For other columns, Arrow builds one until it is too large, in each row
    group, which takes three times as long as storing the values, and makes files larger. A sample of the rows shows which
    columns have few values.
    """
    if rows.num_rows < _FEW_ROWS:
        return True
    step = max(1, rows.num_rows // _SAMPLED_ROWS)
    sample = rows.take(pa.array(range(0, rows.num_rows, step), pa.int64()))
    chosen = [field for field, column in zip(sample.schema, sample.columns, strict=True) if _has_few_values(column)]
    return len(chosen) == rows.num_columns or [path for field in chosen for path in _paths(field)]


def _has_few_values(column: pa.ChunkedArray) -> bool:
    """Whether most values occur more than once. That is not counted for nested columns."""
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return True
    return bool(2 * pc.count_distinct(column, mode="only_valid").as_py() <= len(column) - column.null_count)


def _paths(field: pa.Field) -> list[str]:
    """The paths of a column's leaves in a Parquet file."""
    from pyarrow.parquet import ParquetFile as Reader
    from pyarrow.parquet import write_table

    if not pa.types.is_nested(field.type):
        return [field.name]
    written = BytesIO()
    write_table(empty_rows(pa.schema([field])), written)
    found = Reader(written).schema
    return [found.column(place).path for place in range(len(found))]

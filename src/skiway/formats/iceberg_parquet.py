# mypy: disable-error-code=no-any-return
"""One data file of a table while it is written, and what its manifest will say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.iceberg_warehouse import TableFiles
from skiway.formats.schemas import leaves

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

__all__ = ["ParquetFile"]

_ROW_GROUP_ROWS: Final = 131_072  # what a reader looks through for one row; DuckDB's own files have about as many


class ParquetFile:
    """An open Parquet file. Every `write` begins a row group, and another one after each 131,072 rows."""

    def __init__(
        self, files: TableFiles, uri: str, schema: Schema, arrow: pa.Schema, options: Mapping[str, str]
    ) -> None:
        from pyarrow.parquet import ParquetWriter

        self.uri = uri
        self.writes = 0
        self._files, self._schema, self._options = files, schema, options
        self._floats = [leaf for leaf in leaves(arrow) if pa.types.is_floating(leaf.type)]
        self._nans: Counter[int] = Counter({leaf.id: 0 for leaf in self._floats})
        self._sink = files.create(uri)
        self._writer = ParquetWriter(
            self._sink,
            arrow,
            compression=_codec(options),
            compression_level=_level(options),
            store_decimal_as_integer=True,
            write_page_index=True,
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        """Add the rows, in row groups of their own."""
        for leaf in self._floats:
            column = rows[leaf.path[0]]
            for name in leaf.path[1:]:
                column = pc.struct_field(column, name)
            self._nans[leaf.id] += pc.sum(pc.is_nan(column), min_count=0).as_py()
        with self._files.translated(self.uri):
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
        self.writes += 1

    def close(self, *, partition: Any, spec_id: int, sort_order_id: int | None) -> DataFile:
        """What a manifest says about the file, which is lasting from now on."""
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
        """Let go of the file, whole or not; whoever calls removes it."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()

    def _statistics(self) -> dict[str, Any]:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        plan = compute_statistics_plan(self._schema, dict(self._options))
        found = data_file_statistics_from_parquet_metadata(
            self._writer.writer.metadata, plan, parquet_path_to_id_mapping(self._schema)
        )
        # PyIceberg leaves NaN to those who see the values.
        counted = {number: nans for number, nans in self._nans.items() if number in found.value_counts}
        return {**found.to_serialized_dict(), "nan_value_counts": counted}


def _codec(options: Mapping[str, str]) -> str:
    codec = options.get("write.parquet.compression-codec", "zstd").lower()
    return "none" if codec == "uncompressed" else codec


def _level(options: Mapping[str, str]) -> int | None:
    level = options.get("write.parquet.compression-level")
    return int(level) if level and _codec(options) in ("zstd", "gzip", "brotli") else None

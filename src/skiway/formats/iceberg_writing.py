# mypy: disable-error-code=no-any-return
"""Rows streamed into data files of a table. Nothing is visible before the files are committed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from skiway.errors import InvalidArgument
from skiway.formats.iceberg_parquet import ParquetFile
from skiway.formats.iceberg_partitions import split
from skiway.formats.iceberg_rows import conformed
from skiway.formats.iceberg_types import arrow_schema
from skiway.formats.iceberg_warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

__all__ = ["DataFileWriter"]

_TARGET_BYTES = 512 << 20
_ROW_GROUP_BYTES = 64 << 20


@dataclass(slots=True)
class _Part:
    """What is open of one partition: rows that wait to be written, and the file that others are in already."""

    partition: Record
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    file: ParquetFile | None = None


class DataFileWriter:
    """Writes rows into new data files of a table, by partition, sorted within what is written at once if the table has an order.

    At most about `buffer_bytes` of rows wait in memory, and at most `max_open_files` files are open, however many
    partitions there are. For one thread.
    """

    def __init__(
        self,
        files: TableFiles,
        metadata: TableMetadata,
        *,
        buffer_bytes: int = 2 * _ROW_GROUP_BYTES,
        max_open_files: int = 16,
        ids: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self.row_count = 0
        self._files, self._metadata = files, metadata
        self._schema, self._spec = metadata.schema(), metadata.spec()
        self._arrow = arrow_schema(self._schema).arrow
        self._order = _sort_keys(metadata)
        self._buffer_bytes, self._max_open = buffer_bytes, max_open_files
        options = metadata.properties
        self._group_bytes = min(_size(options, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES), buffer_bytes)
        self._target_bytes = _size(options, "write.target-file-size-bytes", _TARGET_BYTES)
        self._name, self._numbers = ids(), iter(range(10**9))
        self._parts: dict[str, _Part] = {}  # the one used longest ago comes first
        self._written: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows over. Their columns are found by name; what the table has beside them becomes NULL."""
        rows = conformed(batch, self._arrow)
        if not rows.num_rows:
            return
        self.row_count += rows.num_rows
        for key, some in self._split(rows):
            part = self._part(key)
            part.waiting.append(some)
            part.waiting_bytes += some.nbytes
            if part.waiting_bytes >= self._group_bytes:
                self._flush(part)
        while sum(part.waiting_bytes for part in self._parts.values()) > self._buffer_bytes:
            self._flush(max(self._parts.values(), key=lambda part: part.waiting_bytes))

    def close(self) -> list[DataFile]:
        """The files that were written, for a commit; none where there were no rows."""
        for part in list(self._parts.values()):
            self._flush(part)
            self._finish(part)
        self._parts.clear()
        return list(self._written)

    def abort(self) -> None:
        """Remove all that was written."""
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

        return split(rows, self._spec, self._schema) if self._spec.fields else iter([(Record(), rows)])

    def _part(self, partition: Record) -> _Part:
        key = repr([partition[place] for place in range(len(partition))])  # in which NaN equals itself
        part = self._parts.pop(key) if key in self._parts else _Part(partition)
        self._parts[key] = part
        return part

    def _flush(self, part: _Part) -> None:
        """Write what waits, as row groups of its own."""
        if not part.waiting:
            return
        rows = pa.concat_tables(part.waiting)
        if self._order:
            rows = rows.sort_by(self._order)
        part.waiting, part.waiting_bytes = [], 0
        if part.file is None:
            self._make_room()
            part.file = ParquetFile(self._files, self._location(), self._schema, self._arrow, self._metadata.properties)
        part.file.write(rows)
        if part.file.size >= self._target_bytes:
            self._finish(part)

    def _make_room(self) -> None:
        """Finish the files that were used longest ago, until one more may be open."""
        opened = [part for part in self._parts.values() if part.file]
        for part in opened[: len(opened) - self._max_open + 1]:
            self._finish(part)

    def _finish(self, part: _Part) -> None:
        if part.file is None:
            return
        # What is written at once is sorted by itself, so only a file of one write is sorted as a whole.
        sorted_by = self._metadata.default_sort_order_id if self._order and part.file.writes == 1 else None
        file, part.file = part.file, None
        self._written.append(file.close(partition=part.partition, spec_id=self._spec.spec_id, sort_order_id=sorted_by))

    def _location(self) -> str:
        return f"{data_folder(self._metadata)}/{next(self._numbers):05d}-{self._name}.parquet"


def data_folder(metadata: TableMetadata) -> str:
    """Where the table keeps its data files."""
    return metadata.properties.get("write.data.path", f"{metadata.location}/data").rstrip("/")


def _sort_keys(metadata: TableMetadata) -> list[tuple[str, str]]:
    """What rows are sorted by; nothing, if the order is not one of plain columns."""
    keys, top = [], {each.name for each in metadata.schema().fields}
    for each in metadata.sort_order().fields:
        name = metadata.schema().find_column_name(each.source_id)
        if str(each.transform) != "identity" or name not in top:
            return []
        keys.append((name, "descending" if each.direction.value == "desc" else "ascending"))
    return keys


def _size(options: dict[str, str], name: str, default: int) -> int:
    found = options.get(name, str(default))
    if not found.isdecimal() or int(found) < 1:
        raise InvalidArgument(f"property {name} is {found!r}: give a number of bytes", key="property.invalid")
    return int(found)

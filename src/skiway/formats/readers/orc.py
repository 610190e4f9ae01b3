"""Stream the rows of ORC files as Iceberg writes them, with field ids in the attributes of types.

Arrow decodes the timestamps of ORC as nanoseconds, and those outside of the years 1677 to 2262 become other timestamps. The
statistics in the footer tell whether a file has any; such a file is rejected.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.extension_types import reinterpreted
from skiway.formats.files import decoding
from skiway.formats.readers.encodings import decompressed, varint
from skiway.formats.readers.scanning import DataFile, FileRows, Scan
from skiway.formats.schemas import rebuilt, with_id

_ID: Final = b"iceberg.id"
_LONG: Final = b"iceberg.long-type"
_CODECS: Final = {0: "null", 1: "deflate", 2: "snappy without checksum", 5: "zstandard"}
_TIMESTAMPS: Final = (9, 18)  # kinds of types: without and with time zone
_MAX_FOOTER_BYTES: Final = 256 << 20
_MAX_MILLISECONDS: Final = 2**63 // 1_000_000 - 1
_AHEAD: Final = 0  # batches; this reader is read ahead itself


def orc_batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    """Read the requested rows of a file; batches may be empty."""
    import pyarrow.dataset as ds
    from pyarrow import orc

    with scan.files.translated(file.path), scan.files.open(file.path) as opened:
        with decoding(scan.files, file.path):
            columns = orc.ORCFile(opened).schema
            times = _Timestamps(opened) if any(_has_timestamps(column.type) for column in columns) else None
        source = pa.schema([_field(column) for column in columns])
        rows = FileRows(scan, file, scan.assign_ids(source, file.path))
        for name in rows.names:
            if times is not None and not times.fit_nanoseconds(columns.get_field_index(name)):
                raise Unsupported(
                    f"column {name!r} of file {file.path!r} has timestamps outside of the years 1677 to 2262, which cannot be "
                    "read from ORC; rewrite the file as Parquet",
                    key="table.feature",
                    feature="timestamps in ORC",
                    column=name,
                    file=file.path,
                )
        opened.seek(0)
        batches = (
            ds.OrcFileFormat()
            .make_fragment(opened)
            .to_batches(
                schema=columns,
                columns=rows.names,
                batch_size=scan.batch_rows,
                batch_readahead=_AHEAD,
                fragment_readahead=_AHEAD,
                use_threads=False,
            )
        )
        start = 0
        while True:
            with decoding(scan.files, file.path):
                batch = next(batches, None)
            if batch is None:
                return
            yield rows.requested(_as_times(batch, source), start)
            start += batch.num_rows


def _field(field: pa.Field) -> pa.Field:
    """A field with its id, and with the type TIME if the number is one."""
    facts = field.metadata or {}
    number = facts.get(_ID)
    is_time = facts.get(_LONG) == b"TIME"
    of = pa.time64("us") if is_time else rebuilt(field.type, lambda child, _: _field(child))
    return with_id(field.with_type(of), None if number is None else int(number))


def _as_times(batch: pa.RecordBatch, source: pa.Schema) -> pa.RecordBatch:
    """Reinterpret the numbers of a batch that are times."""
    columns = [reinterpreted(batch.column(name), source.field(name).type) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names) if columns else batch


def _has_timestamps(of: pa.DataType) -> bool:
    if pa.types.is_map(of):
        return _has_timestamps(of.key_type) or _has_timestamps(of.item_type)
    return pa.types.is_timestamp(of) or any(_has_timestamps(of.field(place).type) for place in range(of.num_fields))


class _Timestamps:
    """The ranges of the timestamps of a file, from the statistics in its footer."""

    def __init__(self, file: pa.NativeFile) -> None:
        size = file.size()
        file.seek(max(size - 256, 0))
        end = file.read()
        length = end[-1]
        postscript = _Message(end[-1 - length : -1])
        footer_bytes = postscript.number(1)
        file.seek(max(size - 1 - length - footer_bytes, 0))
        footer = _Message(_unchunked(file.read(footer_bytes), _CODECS.get(postscript.number(2), "")))
        self._types = [_Message(part) for part in footer.parts(4)]
        self._statistics = [_Message(part) for part in footer.parts(7)]

    def fit_nanoseconds(self, column: int) -> bool:
        """Can 64-bit nanoseconds represent the timestamps of the column at this place, also of those nested in it?"""
        tops = [*self._types[0].numbers(2), len(self._types)]
        inside = range(tops[column], tops[column + 1])
        return all(self._fits(each) for each in inside if self._types[each].number(1) in _TIMESTAMPS)

    def _fits(self, column: int) -> bool:
        found = self._statistics[column] if column < len(self._statistics) else None
        if found is None:
            return False
        ranges = found.parts(9)
        if not ranges:
            return found.number(1) == 0
        bounds = [_signed(number) for field, number in _Message(ranges[0]).fields if field in (1, 2, 3, 4)]
        return all(abs(bound) < _MAX_MILLISECONDS for bound in bounds)


class _Message:
    """The fields of a protobuf message: numbers, and parts of bytes."""

    def __init__(self, data: bytes) -> None:
        self.fields: list[tuple[int, Any]] = list(_fields(data))

    def number(self, field: int) -> int:
        """The number in a field; 0 if it is missing."""
        return next((int(value) for number, value in self.fields if number == field), 0)

    def parts(self, field: int) -> list[Any]:
        """The values of a repeated field."""
        return [value for number, value in self.fields if number == field]

    def numbers(self, field: int) -> list[int]:
        """The repeated numbers of a field, packed or not."""
        found: list[int] = []
        for value in self.parts(field):
            found += [value] if isinstance(value, int) else list(_varints(value))
        return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = varint(data, at)
            if at + size > len(data):
                raise ValueError("its footer is truncated")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[tag & 7]


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = varint(data, at)
        yield number


def _signed(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _unchunked(data: bytes, codec: str) -> bytes:
    """Decompress a part of a file, which consists of chunks with three bytes of length and a flag."""
    if codec == "null":
        return data
    found, at = b"", 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        found += chunk if head & 1 else decompressed(codec, chunk, limit=_MAX_FOOTER_BYTES)
        at += 3 + (head >> 1)
    return found

"""Stream the rows of Avro files as Iceberg writes them, with field ids in the schema.

The container (header, blocks, compression) is read here, with limits on what a block takes in memory. fastavro decodes the
records, only the requested columns of them, as numbers and bytes. Arrow then reinterprets these as dates, times and
decimals.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import IO, Any, Final, cast

import pyarrow as pa

from skiway.errors import LimitExceeded, Unsupported
from skiway.formats.files import corrupt, decoding
from skiway.formats.readers.encodings import decompressed
from skiway.formats.readers.scanning import DataFile, FileRows, Scan
from skiway.formats.schemas import with_id

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_MAX_HEADER_BYTES: Final = 16 << 20
_MAX_BLOCK_BYTES: Final = 256 << 20
_ROWS_AT_ONCE: Final = 8192  # records are Python objects before they are Arrow, so batches are small

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


def avro_batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    """Read the requested rows of a file; batches may be empty."""
    import fastavro

    with scan.files.translated(file.path), scan.files.open(file.path) as opened:
        with decoding(scan.files, file.path):
            container = _Container(opened, file.path)
            fields = arrow_fields(container.schema, file.path)
        rows = FileRows(scan, file, scan.assign_ids(pa.schema(fields.values()), file.path))
        wanted = [field for field in container.schema["fields"] if field["name"] in rows.names]
        chosen = [fields[field["name"]] for field in wanted]
        with decoding(scan.files, file.path):
            # The names of the file are unique, and fastavro skips the fields that are not wanted.
            schema = {**_physical(container.schema), "fields": [_physical(field) for field in wanted]}
            records = fastavro.reader(cast("IO[bytes]", container), reader_schema=schema)
        start = 0
        while True:
            with decoding(scan.files, file.path):
                some = list(islice(records, min(scan.batch_rows, _ROWS_AT_ONCE)))
                batch = _batch(some, wanted, chosen)
            if not some:
                break
            yield rows.requested(batch, start)
            start += len(some)
        if file.rows is not None and start != file.rows:  # a file that ends after any block looks complete
            raise corrupt(file.path, f"it has {start} rows, but the table says {file.rows}")


def _batch(records: list[Any], wanted: list[Mapping[str, Any]], chosen: list[pa.Field]) -> pa.RecordBatch:
    if not chosen:
        return pa.record_batch([pa.nulls(len(records))], names=["$none"])
    columns = [
        _logical(pa.array([record[field["name"]] for record in records], _physical_type(target.type)), target.type)
        for field, target in zip(wanted, chosen, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[field["name"] for field in wanted])


class _Container:
    """An Avro file as fastavro reads it: the same header and blocks, but decompressed and without logical types."""

    def __init__(self, file: pa.NativeFile, path: str) -> None:
        self._file, self._path = file, path
        self._ready = b""
        self._at = 0
        if file.read(4) != _MAGIC:
            raise corrupt(path, "it is not an Avro file")
        self._metadata = dict(self._header())
        self._sync = self._exactly(_SYNC_BYTES)
        self.schema = json.loads(self._metadata["avro.schema"])
        if not isinstance(self.schema, dict) or self.schema.get("type") != "record":
            raise corrupt(path, "its schema is not that of records")
        self._codec = self._metadata.get("avro.codec", b"null").decode()
        self._parts = self._blocks()

    def read(self, size: int) -> bytes:
        """Read the next bytes of the decompressed file."""
        while len(self._ready) - self._at < size:
            part = next(self._parts, None)
            if part is None:
                break
            self._ready, self._at = self._ready[self._at :] + part, 0
        found = self._ready[self._at : self._at + size]
        self._at += len(found)
        return found

    def _header(self) -> Iterator[tuple[str, bytes]]:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # the size of the block
            for _ in range(count):
                key = self._exactly(self._length(_MAX_HEADER_BYTES)).decode()
                yield key, self._exactly(self._length(_MAX_HEADER_BYTES))

    def _blocks(self) -> Iterator[bytes]:
        schema = json.dumps(_physical(self.schema)).encode()
        yield _MAGIC + _varint(1) + _sized(b"avro.schema") + _sized(schema) + _varint(0) + self._sync
        while self._file.tell() < self._file.size():
            count = self._long()
            block = decompressed(self._codec, self._exactly(self._length(_MAX_BLOCK_BYTES)), limit=_MAX_BLOCK_BYTES + 1)
            if len(block) > _MAX_BLOCK_BYTES:
                raise LimitExceeded(
                    f"a block of file {self._path!r} takes more than {_MAX_BLOCK_BYTES} bytes when it is decompressed; rewrite "
                    "the file",
                    key="page.decoded_size",
                    file=self._path,
                    limit=str(_MAX_BLOCK_BYTES),
                )
            if self._exactly(_SYNC_BYTES) != self._sync:
                raise corrupt(self._path, "a block has no sync marker at its end")
            yield _varint(count) + _sized(block) + self._sync

    def _length(self, limit: int) -> int:
        size = self._long()
        if not 0 <= size <= limit:
            raise corrupt(self._path, f"a part of it has {size} bytes")
        return size

    def _long(self) -> int:
        number = shift = 0
        while True:
            byte = self._exactly(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > 63:
                raise corrupt(self._path, "a number in it is too long")

    def _exactly(self, size: int) -> bytes:
        found: bytes = self._file.read(size)
        if len(found) < size:
            raise corrupt(self._path, "it is truncated")
        return found


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _physical(schema: Any) -> Any:
    """The schema without logical types, so that values are decoded as numbers and bytes."""
    if isinstance(schema, list):
        return [_physical(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _physical(value) for key, value in schema.items() if key not in ("logicalType", "default", "doc")}
    return schema


def arrow_fields(schema: Mapping[str, Any], path: str) -> dict[str, pa.Field]:
    """The columns of an Avro schema, by name, with their field ids."""
    types = _Types(path)
    return {
        field["name"]: types.field(field["name"], field["type"], field.get("field-id")) for field in schema["fields"]
    }


class _Types:
    """Converts Avro types to Arrow; named types may be used again by their name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._named: dict[str, Any] = {}

    def field(self, name: str, of: Any, number: int | None) -> pa.Field:
        nullable = False
        if isinstance(of, list):
            others = [each for each in of if each != "null"]
            if len(others) > 1:
                raise self._unsupported(name, "a union")
            nullable, of = len(others) < len(of), others[0] if others else "null"
        return with_id(pa.field(name, self._type(name, of), nullable=nullable or of == "null"), number)

    def _type(self, name: str, of: Any) -> pa.DataType:
        if isinstance(of, str):
            if of in _PRIMITIVES:
                return _PRIMITIVES[of]
            if of not in self._named:
                raise self._unsupported(name, f"type {of!r}")
            return self._named[of]
        kind = of["type"]
        if kind == "record":
            made = pa.struct([self.field(each["name"], each["type"], each.get("field-id")) for each in of["fields"]])
        elif kind == "array":
            made = self._array(of)
        elif kind == "map":
            key = with_id(pa.field("key", pa.string(), nullable=False), of.get("key-id"))
            made = pa.map_(key, self.field("value", of["values"], of.get("value-id")))
        elif kind == "fixed":
            made = self._logical_type(of, pa.binary(of["size"]))
        elif isinstance(kind, str) and kind in _PRIMITIVES:
            made = self._logical_type(of, _PRIMITIVES[kind])
        elif isinstance(kind, dict | list):
            made = self._type(name, kind)
        else:
            raise self._unsupported(name, f"type {kind!r}")
        if "name" in of:
            self._named[of["name"]] = made
        return made

    def _array(self, of: Mapping[str, Any]) -> pa.DataType:
        if of.get("logicalType") == "map":  # Avro stores maps with other keys than strings as arrays of pairs
            key, value = of["items"]["fields"]
            of_key = self.field("key", key["type"], key.get("field-id")).with_nullable(False)
            return pa.map_(of_key, self.field("value", value["type"], value.get("field-id")))
        return pa.list_(self.field("element", of["items"], of.get("element-id")))

    def _logical_type(self, of: Mapping[str, Any], physical: pa.DataType) -> pa.DataType:
        utc = "UTC" if of.get("adjust-to-utc") else None
        match of.get("logicalType"):
            case "decimal":
                return pa.decimal128(of["precision"], of.get("scale", 0))
            case "date":
                return pa.date32()
            case "time-micros":
                return pa.time64("us")
            case "timestamp-millis":
                return pa.timestamp("ms", tz=utc)
            case "timestamp-micros":
                return pa.timestamp("us", tz=utc)
            case "timestamp-nanos":
                return pa.timestamp("ns", tz=utc)
            case "local-timestamp-micros":
                return pa.timestamp("us")
            case "local-timestamp-nanos":
                return pa.timestamp("ns")
        return physical

    def _unsupported(self, column: str, what: str) -> Unsupported:
        return Unsupported(
            f"column {column!r} of file {self._path!r} has {what}, which is not supported; rewrite the file as Parquet",
            key="column.type",
            column=column,
            file=self._path,
        )


def _physical_type(of: pa.DataType) -> pa.DataType:
    """The type of decoded values: `of` with numbers and bytes instead of dates, times and decimals."""
    if pa.types.is_struct(of):
        return pa.struct([each.with_type(_physical_type(each.type)) for each in of])
    if pa.types.is_map(of):
        value = of.item_field.with_type(_physical_type(of.item_type))
        if pa.types.is_string(of.key_type):
            return pa.map_(pa.string(), value)
        return pa.list_(pa.struct([pa.field("key", _physical_type(of.key_type)), value.with_name("value")]))
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_physical_type(of.value_type)))
    if pa.types.is_decimal(of):
        return pa.binary()
    if pa.types.is_date32(of):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(of) or pa.types.is_time(of) else of


def _logical(array: pa.Array, of: pa.DataType) -> pa.Array:
    """Reinterpret decoded values as those of type `of`."""
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(of):
        parts = [_logical(array.field(place), each.type) for place, each in enumerate(of)]
        return pa.StructArray.from_arrays(parts, fields=list(of), mask=nulls)
    if pa.types.is_map(of):
        pairs = array.values if pa.types.is_list(array.type) else None
        keys, items = (array.keys, array.items) if pairs is None else (pairs.field(0), pairs.field(1))
        parts = [_logical(keys, of.key_type), _logical(items, of.item_type)]
        return pa.MapArray.from_arrays(array.offsets, *parts, type=of, mask=nulls)
    if pa.types.is_list(of):
        return pa.ListArray.from_arrays(array.offsets, _logical(array.values, of.value_type), type=of, mask=nulls)
    if pa.types.is_decimal(of):
        return _decimals(array, of)
    return array if array.type == of else array.view(of)


def _decimals(array: pa.Array, of: pa.DataType) -> pa.Array:
    """Decimals from big-endian numbers of any length."""
    numbers = [b"" if value is None else value for value in array.to_pylist()]
    words = b"".join(int.from_bytes(each, "big", signed=True).to_bytes(16, "little", signed=True) for each in numbers)
    made = pa.Array.from_buffers(of, len(array), [None, pa.py_buffer(words)])
    return pa.compute.if_else(array.is_valid(), made, pa.scalar(None, of)) if array.null_count else made

"""Encodes record batches as FlightData frames and decodes them.

A frame is a protobuf message with four length-delimited fields: 1 descriptor, 2 data_header, 3 app_metadata, 1000
data_body. Header and body are the two halves of an encapsulated Arrow IPC message, which pyarrow reads and writes. The
frames are parsed by hand because a generated protobuf parser would copy each body once more.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from skiway.airport.wire.encoding import (
    CONTINUATION,
    Compression,
    Message,
    MessageEncoder,
    Piece,
    SparseBatches,
    message_stream,
    sparse_batches,
)
from skiway.airport.wire.sizes import (
    MAX_DECODED_BYTES,
    TRUSTED_DECODED_BYTES,
    check_message,
    check_size,
    check_values,
    expands,
)
from skiway.errors import InvalidArgument
from skiway.foundation.causes import invalid_values

DESCRIPTOR: Final = b"\x0a"
HEADER: Final = b"\x12"
METADATA: Final = b"\x1a"
BODY: Final = b"\xc2\x3e"
_FEW_VALUES: Final = 16_384  # for smaller batches one more copy costs less than the encoders that avoid it
_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Frame:
    """A FlightData message. `header` and `body` are views into the received bytes."""

    descriptor: bytes
    header: memoryview
    app_metadata: bytes
    body: memoryview

    def pieces(self) -> tuple[Piece, ...]:
        """The IPC message in pieces."""
        return CONTINUATION, len(self.header).to_bytes(4, "little"), self.header, self.body

    def message(self) -> bytes:
        """The IPC message as contiguous bytes, so that its buffers are aligned."""
        return b"".join(self.pieces())


def varint(value: int) -> bytes:
    """Encode an unsigned integer as a protobuf varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def parse_frame(data: bytes) -> Frame:
    """Parse a FlightData message. Unknown fields are skipped."""
    fields: dict[int, memoryview] = {}
    view = memoryview(data)
    position = 0
    while position < len(view):
        tag, position = _read_varint(view, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 2:
            size, position = _read_varint(view, position)
        elif wire_type == 0:
            _, position = _read_varint(view, position)
            continue
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise InvalidArgument(f"malformed FlightData: wire type {wire_type} at byte {position}")
        end = position + size
        if end > len(view):
            raise InvalidArgument(
                f"truncated FlightData: field {number} should have {size} bytes, but only {len(view) - position} are left"
            )
        fields[number] = view[position:end]
        position = end
    return Frame(
        bytes(fields.get(1, b"")), fields.get(2, _NOTHING), bytes(fields.get(3, b"")), fields.get(1000, _NOTHING)
    )


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(view) or shift > 63:
            raise InvalidArgument(f"malformed FlightData: bad varint at byte {position} of {len(view)}")
        byte = view[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _split_message(message: memoryview, app_metadata: bytes = b"", descriptor: bytes = b"") -> bytes:
    """The frame of an encapsulated IPC message."""
    size = int.from_bytes(message[4:8], "little")
    return _frame([message[8 : 8 + size]], [message[8 + size :]], app_metadata, descriptor)


def _frame(header: list[Piece], body: list[Piece], app_metadata: bytes = b"", descriptor: bytes = b"") -> bytes:
    """The frame of a message in pieces. Joining the pieces is the only copy."""
    parts: list[Piece] = []
    if descriptor:
        parts += [DESCRIPTOR, varint(len(descriptor)), descriptor]
    parts += [HEADER, varint(sum(map(len, header))), *header]
    if app_metadata:
        parts += [METADATA, varint(len(app_metadata)), app_metadata]
    parts += [BODY, varint(sum(map(len, body))), *body]
    return b"".join(parts)


def metadata_frame(app_metadata: bytes = b"", descriptor: bytes = b"") -> bytes:
    """A frame with metadata, a descriptor or both, but without Arrow data."""
    parts: list[Piece] = []
    if descriptor:
        parts += [DESCRIPTOR, varint(len(descriptor)), descriptor]
    if app_metadata:
        parts += [METADATA, varint(len(app_metadata)), app_metadata]
    return b"".join(parts)


V = TypeVar("V")


def per_schema(compute: Callable[[pa.Schema], V]) -> Callable[[pa.Schema], V]:
    """Compute a value from a schema once for each schema object. Most tables return the same object every time."""
    values: dict[int, tuple[weakref.ref[pa.Schema], V | None]] = {}

    @functools.wraps(compute)
    def lookup(schema: pa.Schema) -> V:
        key = id(schema)
        reference, value = values.get(key, (None, None))
        if reference is None or reference() is not schema:
            value = compute(schema)
            kept = None if value is schema else value  # a schema must not keep itself alive
            values[key] = weakref.ref(schema, lambda _: values.pop(key, None)), kept
        return schema if value is None else value

    return lookup


def holds_dictionaries(data_type: pa.DataType) -> bool:
    """Whether batches with this type are preceded by dictionary messages."""
    if isinstance(data_type, pa.BaseExtensionType):
        return holds_dictionaries(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return True
    return any(holds_dictionaries(data_type.field(i).type) for i in range(data_type.num_fields))


def check_names(fields: Iterable[pa.Field]) -> None:
    """Raise `UnicodeDecodeError` if the name of a column or of a nested field is not UTF-8: pyarrow decodes names when they are read."""
    for field in fields:
        _ = field.name
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        check_names(kind.field(index) for index in range(kind.num_fields))


@per_schema
def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(holds_dictionaries(field.type) for field in schema)


@per_schema
def _schema_frame(schema: pa.Schema) -> bytes:
    return _split_message(memoryview(schema.serialize()))


class FrameWriter:
    """Encodes record batches of one schema as frames. Use one writer per stream, from one thread at a time."""

    def __init__(self, schema: pa.Schema, *, memory_pool: pa.MemoryPool | None = None) -> None:
        self.schema = schema
        self._pool = memory_pool
        self._has_dictionaries = _has_dictionaries(schema)
        self._streams: dict[Compression | None, MessageEncoder] = {}
        self._sparse: dict[tuple[int, ...], SparseBatches | None] = {}

    def begin(self, *, descriptor: bytes = b"", app_metadata: bytes = b"") -> bytes:
        """The schema frame, which starts every stream."""
        if not descriptor and not app_metadata:
            return _schema_frame(self.schema)
        return _split_message(memoryview(self.schema.serialize()), app_metadata, descriptor)

    def batch(
        self,
        batch: pa.RecordBatch,
        *,
        app_metadata: bytes = b"",
        compression: Compression | None = None,
        null_columns: tuple[int, ...] = (),
    ) -> Iterator[bytes]:
        """The frames of a batch: dictionaries that changed, then the rows with `app_metadata`.

        Columns at the positions `null_columns` contain only NULLs. They are compressed and take almost no space.
        """
        is_small = batch.num_rows * batch.num_columns < _FEW_VALUES
        if null_columns:
            compression = "lz4"
        if is_small and compression is None and not self._has_dictionaries:
            yield _split_message(memoryview(batch.serialize(self._pool)), app_metadata)
            return
        sparse: Message | None = None
        if self._has_dictionaries:
            compression = None  # all dictionaries must go through one IPC stream, which has one compression
        elif null_columns and not is_small:
            sparse = self._encode_sparse(batch, null_columns)
        messages = self._encode(batch, compression) if sparse is None else [sparse]
        for message in messages[:-1]:
            yield _frame(*message)
        yield _frame(*messages[-1], app_metadata)

    def _encode(self, batch: pa.RecordBatch, compression: Compression | None) -> list[Message]:
        if compression not in self._streams:
            self._streams[compression] = message_stream(self.schema, compression)
        return self._streams[compression].write(batch)

    def _encode_sparse(self, batch: pa.RecordBatch, null_columns: tuple[int, ...]) -> Message | None:
        if null_columns not in self._sparse:
            self._sparse[null_columns] = sparse_batches(self.schema, null_columns)
        encoder = self._sparse[null_columns]
        return None if encoder is None else encoder.message(batch)


class BatchReader:
    """Decodes the frames of a stream to record batches.

    It does not read ahead: reading a batch consumes exactly the frames of that batch, as the lock-step of an exchange
    requires. `schema` waits for the schema frame; metadata-only frames before it are collected in `opening`.

    Batches are fully validated unless the sender is `trusted`, because malicious offsets could crash the process. A batch
    that takes more than `max_decoded_bytes` when it is decompressed is `LimitExceeded`, before anything is allocated.

    If `columns` are given, columns at other positions need not be decoded, and have Arrow's type null then.
    """

    def __init__(
        self,
        frames: Iterator[bytes],
        *,
        trusted: bool = False,
        max_decoded_bytes: int | None = None,
        columns: Collection[int] | None = None,
    ) -> None:
        self._frames = frames
        self._columns = columns
        self._trusted = trusted
        usual = TRUSTED_DECODED_BYTES if trusted else MAX_DECODED_BYTES
        self._max_decoded_bytes = usual if max_decoded_bytes is None else max_decoded_bytes
        self._expanding: tuple[int, ...] = ()
        self._schema: pa.Schema | None = None
        self._read: Callable[[Frame], pa.RecordBatch | None] | None = None
        self.descriptor = b""
        self.rows = 0
        self.opening: list[bytes] = []

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        while self._schema is None:
            frame = self._next()
            if frame is None:
                raise InvalidArgument(
                    "the stream ended before a schema: the first data message must be an Arrow schema"
                )
            if not self.descriptor:
                self.descriptor = frame.descriptor
            if frame.header:
                self._open(frame)
            elif frame.app_metadata:
                self.opening.append(frame.app_metadata)
        return self._schema

    def wait_for_descriptor(self) -> bytes:
        """The descriptor in the first frame, which may arrive long before the schema."""
        if not self.descriptor:
            frame = self._next()
            if frame is None or not frame.descriptor:
                raise InvalidArgument("the first message of the stream has no descriptor")
            self.descriptor = frame.descriptor
            if frame.header:
                self._open(frame)
            elif frame.app_metadata:
                self.opening.append(frame.app_metadata)
        return self.descriptor

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for batch, _ in self.with_metadata() if batch is not None)

    def with_metadata(self) -> Iterator[tuple[pa.RecordBatch | None, bytes]]:
        """Each batch with its app_metadata; None instead of the batch for a metadata-only message."""
        _ = self.schema
        assert self._read is not None
        while (frame := self._next()) is not None:
            if not frame.header:
                yield None, frame.app_metadata
            elif (batch := self._decode(frame)) is not None:
                self.rows += batch.num_rows
                yield batch, frame.app_metadata

    def _next(self) -> Frame | None:
        data = next(self._frames, None)
        return None if data is None else parse_frame(data)

    def _open(self, frame: Frame) -> None:
        try:
            self._schema = pa.ipc.read_schema(pa.py_buffer(frame.message()))
            check_names(self._schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidArgument(f"the stream does not start with an Arrow schema: {error}") from error
        decoded = everything = list(range(len(self._schema)))
        chosen = [i for i in everything if self._columns is None or i in self._columns]
        if any(holds_dictionaries(field.type) for field in self._schema):
            self._read = _DictionaryReader(frame, self._max_decoded_bytes).read
        elif chosen in ([], everything):
            self._read = self._read_plain
        else:
            decoded = chosen
            self._read = _ColumnReader(frame, self._schema, chosen, self._max_decoded_bytes).read
        if not self._trusted:
            self._expanding = tuple(i for i in decoded if expands(self._schema.field(i).type))

    def _read_plain(self, frame: Frame) -> pa.RecordBatch:
        check_message(bytes(frame.header), frame.body, self._max_decoded_bytes)
        return pa.ipc.read_record_batch(pa.py_buffer(frame.message()), self._schema)

    def _decode(self, frame: Frame) -> pa.RecordBatch | None:
        assert self._read is not None
        try:
            batch = self._read(frame)
            if batch is not None:
                if self._expanding:  # before the full validation, which takes as long as the values are large
                    batch.validate()
                    check_values((batch.column(i) for i in self._expanding), self._max_decoded_bytes)
                batch.validate(full=not self._trusted)
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            reason = invalid_values(error, self._schema.names if self._schema is not None else ())
            raise InvalidArgument(f"invalid record batch in the stream: {reason}") from error
        return batch


class _ColumnReader:
    """Decodes some columns of a stream without dictionaries.

    Airport servers send all columns of a table; those that the client did not request contain compressed NULLs. Without
    decompressing these, reading 2 of 10 columns takes a quarter less CPU time.
    """

    def __init__(self, schema_frame: Frame, schema: pa.Schema, columns: list[int], max_decoded_bytes: int) -> None:
        self._stream_start = schema_frame.message()
        self._options = pa.ipc.IpcReadOptions(included_fields=columns)
        self._limit = max_decoded_bytes
        self._columns = columns
        self._schema = pa.schema(
            [field if i in columns else pa.field(field.name, pa.null()) for i, field in enumerate(schema)]
        )

    def read(self, frame: Frame) -> pa.RecordBatch:
        check_message(bytes(frame.header), frame.body, self._limit)
        stream = pa.py_buffer(b"".join((self._stream_start, *frame.pieces())))
        batch = pa.ipc.open_stream(stream, options=self._options).read_next_batch()
        arrays = [pa.nulls(batch.num_rows)] * len(self._schema)
        for position, column in zip(self._columns, batch.columns, strict=True):
            arrays[position] = column
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _DictionaryReader:
    """Decodes a stream with dictionaries. pyarrow's stream reader reads from a queue of messages."""

    def __init__(self, schema: Frame, max_decoded_bytes: int) -> None:
        self._pending = [memoryview(schema.message())]
        self._reader: pa.ipc.RecordBatchStreamReader | None = None
        self._limit = max_decoded_bytes
        self._kept: dict[int, int] = {}  # the size of each dictionary
        self._waiting = 0  # bytes of dictionaries for the next batch

    def read(self, frame: Frame) -> pa.RecordBatch | None:
        message = check_message(bytes(frame.header), frame.body, self._limit)
        self._pending.append(memoryview(frame.message()))
        if message.dictionary is not None:  # part of the next batch
            before = self._kept.get(message.dictionary, 0) if message.is_delta else 0
            self._kept[message.dictionary] = before + message.size
            self._waiting += message.size
            check_size(max(self._waiting, sum(self._kept.values())), self._limit, "the dictionaries of a stream")
            return None
        self._waiting = 0
        if self._reader is None:
            self._reader = pa.ipc.open_stream(pa.PythonFile(_MessageQueue(self._pending), mode="r"))
        return self._reader.read_next_batch()


class _MessageQueue:
    """A file that reads from a growing list of messages. Reading past the end is the end of the stream."""

    closed = False

    def __init__(self, pending: list[memoryview]) -> None:
        self._pending = pending

    def read(self, size: int = -1) -> bytes:
        out = bytearray()
        while self._pending and len(out) < size:
            part = self._pending[0][: size - len(out)]
            out += part
            self._pending[0] = self._pending[0][len(part) :]
            if not self._pending[0]:
                self._pending.pop(0)
        return bytes(out)

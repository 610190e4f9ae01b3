"""Encodes record batches as Arrow IPC messages without copying their buffers.

pyarrow writes IPC streams but has no API for single messages in pieces. `MessageStream` gives pyarrow's stream writer a Python file
that collects the writer's pieces uncopied, and splits them into messages. `SparseBatches` encodes batches in which most columns are
NULL because the client did not request them. Both depend on how pyarrow lays out its output, which is not a documented
interface. Before the first use in a process, a self-check encodes a few small batches and decodes them with pyarrow. If
anything differs or fails, one warning is logged, and batches are encoded by `PlainMessageStream`, which uses documented
interfaces only and copies more.

Arrow lets each buffer of a compressed batch declare itself uncompressed, so requested columns are sent as they are, followed by NULL
columns that are compressed once and then reused by all streams. The header, a flatbuffer, is patched to match. This depends on the
byte layout of pyarrow's output, which is not a documented interface, so the self-check covers it.

The values of a NULL column mean nothing, and buffers may overlap. So those of a fixed width are the first bytes of the body, which
contain the requested columns: a client that reads one column of ten would else spend a third of its time on decompressing zeros.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import pyarrow as pa

from skiway.airport.wire.sizes import flatbuffer_field as _field
from skiway.airport.wire.sizes import flatbuffer_integer as _integer
from skiway.airport.wire.sizes import flatbuffer_reference as _reference

Compression = Literal["lz4", "zstd"]
Piece = Any  # bytes, a memoryview or a pyarrow buffer
Message = tuple[list[Piece], list[Piece]]  # the pieces of the header and of the body

CONTINUATION: Final = b"\xff\xff\xff\xff"  # starts every IPC message, before the length of the header
_PADDING: Final = b"\0" * 8


class MessageEncoder(Protocol):
    """Encodes the batches of one stream, in order."""

    def write(self, batch: pa.RecordBatch) -> list[Message]:
        """The messages of a batch: changed dictionaries first, then the rows."""


class _PieceSink:
    """The file that pyarrow's stream writer writes to. It collects the pieces without copying pyarrow's buffers."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def write(self, data: Piece) -> int:
        self._pieces.append(data)
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class _StreamWriter:
    """pyarrow's stream writer; `pieces` returns what it writes for one batch, after the schema for the first batch."""

    def __init__(self, schema: pa.Schema, compression: Compression | None) -> None:
        self._sink = _PieceSink()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=options)

    def pieces(self, batch: pa.RecordBatch) -> list[Piece]:
        self._writer.write_batch(batch)
        return self._sink.take()


class MessageStream(_StreamWriter):
    """Splits the output of pyarrow's stream writer into messages without copying."""

    def __init__(self, schema: pa.Schema, compression: Compression | None) -> None:
        super().__init__(schema, compression)
        self._sent_schema = False

    def write(self, batch: pa.RecordBatch) -> list[Message]:
        """The messages of a batch, in the pieces that pyarrow wrote."""
        messages = list(_split(self.pieces(batch)))
        if not self._sent_schema:  # the first write includes the schema, which FrameWriter.begin has already sent
            self._sent_schema = True
            del messages[0]
        return messages


def _split(pieces: list[Piece]) -> Iterator[Message]:
    """Split pieces into messages. Each consists of a continuation mark, the header's length, the header and the body."""
    # Data arrives in pyarrow's buffers, so a bytes object equal to the mark is the mark.
    starts = [i for i, piece in enumerate(pieces) if isinstance(piece, bytes) and piece == CONTINUATION]
    for start, end in pairwise([*starts, len(pieces)]):
        length = int.from_bytes(pieces[start + 1], "little")
        cut = start + 2
        while length > 0:
            length -= len(pieces[cut])
            cut += 1
        yield pieces[start + 2 : cut], pieces[cut:end]


class PlainMessageStream(_StreamWriter):
    """Encodes batches with documented interfaces of pyarrow only, at the cost of copies."""

    def write(self, batch: pa.RecordBatch) -> list[Message]:
        """The messages of a batch."""
        messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(b"".join(self.pieces(batch))))
        return [
            ([message.metadata, _PADDING[: padded(message.metadata.size) - message.metadata.size]], [message.body])
            for message in messages
            if message.type != "schema"
        ]


def padded(size: int) -> int:
    """The size with padding to a multiple of eight bytes."""
    return -(-size // 8) * 8


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_UNCOMPRESSED: Final = b"\xff" * 8  # precedes a buffer that is not compressed, instead of its uncompressed length
_CACHED_SIZES: Final = 4  # for how many batch sizes a stream keeps its compressed NULL columns
_CACHED_BYTES: Final = 8 << 20  # of compressed NULL columns, and of headers, for all streams of the process
_CACHED_VALUES: Final = 10_000
_PAIR: Final = Struct("<qq")  # a field node: length and null count; a buffer: offset and length
_LONG: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a record batch, a flatbuffer, and the positions of the values to patch in it."""

    data: bytes
    length: int
    body_length: int
    nodes: int
    node_count: int
    buffers: int
    buffer_count: int

    @classmethod
    def parse(cls, message: Message) -> _Header | None:
        """Parse the header of a message. Return None if the number of buffers varies between batches."""
        data = b"".join(message[0])
        root = _integer(data, 0, 4)
        batch = _reference(data, root, 2)
        length, body_length = _field(data, batch, 0), _field(data, root, 3)
        nodes, buffers = _reference(data, batch, 1), _reference(data, batch, 2)
        if not (length and body_length and nodes and buffers) or _field(data, batch, 4):
            return None
        counts = _integer(data, nodes, 4), _integer(data, buffers, 4)
        return cls(data, length, body_length, nodes + 4, counts[0], buffers + 4, counts[1])

    def field_nodes(self) -> list[tuple[int, int]]:
        """The length and null count of each field node."""
        return list(_PAIR.iter_unpack(self.data[self.nodes : self.nodes + self.node_count * _PAIR.size]))

    def buffer_ranges(self) -> list[tuple[int, int]]:
        """The offset and length of each buffer in the body."""
        return list(_PAIR.iter_unpack(self.data[self.buffers : self.buffers + self.buffer_count * _PAIR.size]))

    def patched(
        self, rows: int, nodes: Iterable[tuple[int, int]], buffers: Iterable[tuple[int, int]], body_length: int
    ) -> bytes:
        """The header of another batch of the same schema."""
        data = bytearray(self.data)
        _LONG.pack_into(data, self.length, rows)
        _LONG.pack_into(data, self.body_length, body_length)
        for start, pairs in ((self.nodes, nodes), (self.buffers, buffers)):
            packed = b"".join(_PAIR.pack(*pair) for pair in pairs)
            data[start : start + len(packed)] = packed
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Column:
    """An encoded column: its field nodes, and the pieces of each of its buffers."""

    nodes: list[tuple[int, int]]
    buffers: list[list[Piece]]


class _Body:
    """The body of a message, to which buffers are added."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.size = 0

    def add(self, buffer: Sequence[Piece]) -> tuple[int, int]:
        """Add a buffer, given in pieces; return its range."""
        found = self.size, sum(map(len, buffer))
        self.size += padded(found[1])
        self.pieces += [*buffer, _PADDING[: self.size - sum(found)]]
        return found

    def start(self, size: int) -> tuple[int, int] | None:
        """The range of the first `size` bytes, after what precedes a buffer; None if there are fewer."""
        return (0, len(_UNCOMPRESSED) + size) if len(_UNCOMPRESSED) + size <= self.size else None


class SparseBatches:
    """Encodes batches of one schema in which the columns at the positions `null_columns` are NULL."""

    def __init__(self, schema: pa.Schema, null_columns: Sequence[int]) -> None:
        self._schema, self._null_positions = schema, frozenset(null_columns)
        self._data_positions = [i for i in range(len(schema)) if i not in self._null_positions]
        self._stream = MessageStream(pa.schema([schema.field(i) for i in self._data_positions]), None)
        self._null_columns: dict[int, dict[int, _Column]] = {}  # by number of rows
        self._widths = [_bit_width(field.type) for field in schema]
        self._template = _encoded.templates.get(
            schema.serialize().to_pybytes(), lambda: _Header.parse(_null_message(schema, 1))
        )
        columns = [_null_column(field.type, 1) for field in schema]
        # The number of nodes and buffers of a column depends only on its type.
        self._counts = [(len(column.nodes), len(column.buffers)) for column in columns if column is not None]

    def message(self, batch: pa.RecordBatch) -> Message | None:
        """The message of a batch; None if it has columns of types that cannot be encoded this way."""
        if self._template is None or len(self._counts) < len(self._schema):
            return None
        data_columns = self._encode_data_columns(batch)
        if data_columns is None:
            return None
        body = _Body()
        # No bit is set in the first bytes, so as a validity bitmap they say that all values are NULL.
        validity = body.add([_UNCOMPRESSED, bytes(_bitmap_size(batch.num_rows))])
        nodes = {position: column.nodes for position, column in data_columns.items()}
        ranges = {position: [*map(body.add, column.buffers)] for position, column in data_columns.items()}
        for position in self._null_positions:
            values = self._any_values(position, batch.num_rows, body)
            if values is not None:
                nodes[position], ranges[position] = [(batch.num_rows, batch.num_rows)], [validity, values]
                continue
            column = self._encode_null_column(position, batch.num_rows)
            nodes[position], ranges[position] = column.nodes, [*map(body.add, column.buffers)]
        order = range(len(self._schema))
        header = self._template.patched(
            batch.num_rows,
            chain.from_iterable(nodes[position] for position in order),
            chain.from_iterable(ranges[position] for position in order),
            body.size,
        )
        return [header], body.pieces

    def _any_values(self, position: int, rows: int, body: _Body) -> tuple[int, int] | None:
        """The range of the values of a NULL column: any, of the right size. None if there is none of this size."""
        bits = self._widths[position]
        return None if bits is None else body.start(-(-rows * bits // 8))

    def _encode_null_column(self, position: int, rows: int) -> _Column:
        while rows not in self._null_columns and len(self._null_columns) >= _CACHED_SIZES:
            del self._null_columns[next(iter(self._null_columns))]
        columns = self._null_columns.setdefault(rows, {})
        if position not in columns:
            column = _null_column(self._schema.field(position).type, rows)
            assert column is not None  # as for one row
            columns[position] = column
        return columns[position]

    def _encode_data_columns(self, batch: pa.RecordBatch) -> dict[int, _Column] | None:
        if not self._data_positions:
            return {}
        message = self._stream.write(batch.select(self._data_positions))[-1]
        header = _Header.parse(message)
        if header is None:  # a body without bytes, such as of structs without fields
            return None
        nodes, ranges = header.field_nodes(), header.buffer_ranges()
        pieces = dict(zip(accumulate(map(len, message[1]), initial=0), message[1], strict=False))  # by offset
        counts = [self._counts[i] for i in self._data_positions]
        node_cuts = accumulate((count for count, _ in counts), initial=0)
        buffer_cuts = accumulate((count for _, count in counts), initial=0)
        return {
            position: _Column(nodes[n:m], [_uncompressed(pieces, at, size) for at, size in ranges[i:j]])
            for position, (n, m), (i, j) in zip(
                self._data_positions, pairwise(node_cuts), pairwise(buffer_cuts), strict=True
            )
        }


def _uncompressed(pieces: Mapping[int, Piece], at: int, size: int) -> list[Piece]:
    """An uncompressed buffer of a compressed batch: the piece that pyarrow wrote at this offset."""
    if not size:
        return []
    piece = pieces[at]
    assert len(piece) >= size
    return [_UNCOMPRESSED, memoryview(piece)[:size]]


def _bit_width(kind: pa.DataType) -> int | None:
    """The bits of a value; None if not all values of the type have the same size, or they have more than one buffer."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    is_kind = pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary
    return int(kind.bit_width) if any(each(kind) for each in is_kind) else None


def _bitmap_size(rows: int) -> int:
    """The bytes of a validity bitmap, as Arrow pads them; enough for the values of a single row of most types."""
    return -(-rows // 512) * 64


def _null_column(kind: pa.DataType, rows: int) -> _Column | None:
    """A column of NULLs, compressed; None for types with a varying number of buffers.

    Without the cache, compressing the columns that a client does not request takes a third of a narrow scan. Filters
    leave batches of all sizes, and Arrow allows buffers to be longer than their rows, so sizes are rounded up.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if kind.num_fields:  # the nodes of its fields depend on the number of rows
        return _encoded_nulls(kind, rows)
    column = _encoded.columns.get((kind, size := _rounded_up(rows)), lambda: _encoded_nulls(kind, size))
    return None if column is None else _Column([(rows, rows)], column.buffers)


def _rounded_up(rows: int) -> int:
    """A number of rows that is at most an eighth larger, so that few sizes are cached."""
    step = 1 << max(0, rows.bit_length() - 4)
    return -(-rows // step) * step


def _encoded_nulls(kind: pa.DataType, rows: int) -> _Column | None:
    message = _null_message(pa.schema([pa.field("", kind)]), rows)
    header, body = _Header.parse(message), b"".join(message[1])
    if header is None:
        return None
    return _Column(header.field_nodes(), [[body[at : at + size]] for at, size in header.buffer_ranges()])


def _weight(column: _Column | None) -> int:
    return 0 if column is None else sum(len(piece) for buffer in column.buffers for piece in buffer)


class _Kept(Generic[K, V]):
    """Values that all streams share. If they become too many or too large, all are forgotten.

    `skiway.foundation.cache` would do, but needs a library that a plain installation does not have.
    """

    def __init__(self, weigh: Callable[[V], int]) -> None:
        self._weigh = weigh
        self._lock = threading.Lock()
        self._values: dict[K, V] = {}
        self._weight = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, or else what `make` returns."""
        try:
            return self._values[key]
        except KeyError:
            value = make()
        with self._lock:
            self._weight += self._weigh(value)
            if self._weight > _CACHED_BYTES or len(self._values) >= _CACHED_VALUES:
                self._values, self._weight = {}, self._weigh(value)
            self._values[key] = value
        return value

    def __len__(self) -> int:
        return len(self._values)


class _Encoded:
    """What all streams of the process share."""

    def __init__(self) -> None:
        self.templates = _Kept[bytes, _Header | None](lambda header: 0 if header is None else len(header.data))
        self.columns = _Kept[tuple[pa.DataType, int], _Column | None](_weight)


_encoded = _Encoded()


def _null_message(schema: pa.Schema, rows: int) -> Message:
    """The compressed message of a batch of NULLs."""
    columns = [pa.nulls(rows, field.type) for field in schema]
    return MessageStream(schema, "lz4").write(pa.RecordBatch.from_arrays(columns, schema=schema))[-1]


log = logging.getLogger("skiway.airport")


def message_stream(schema: pa.Schema, compression: Compression | None) -> MessageEncoder:
    """An encoder for a new stream: the fast one if it works with this version of pyarrow."""
    return (MessageStream if self_check.passes() else PlainMessageStream)(schema, compression)


def sparse_batches(schema: pa.Schema, null_columns: Sequence[int]) -> SparseBatches | None:
    """The fast encoder for batches with only NULLs in `null_columns`; None if it does not support this version of pyarrow."""
    return SparseBatches(schema, null_columns) if self_check.passes() else None


class SelfCheck:
    """Checks once whether the fast encoders work with this version of pyarrow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: bool | None = None

    def passes(self) -> bool:
        """Whether the fast encoders may be used. The first call runs the check."""
        if self._passes is None:
            with self._lock:
                if self._passes is None:
                    self._passes = _run_check()
        return self._passes


self_check: Final = SelfCheck()


def _run_check() -> bool:
    try:
        for schema, batches in _samples():
            compressions: tuple[Compression | None, ...] = (None, "lz4")
            for compression in compressions:
                fast, plain = MessageStream(schema, compression), PlainMessageStream(schema, compression)
                _compare(schema, batches, map(fast.write, batches), map(plain.write, batches))
        schema, batches = _sparse_samples()
        sparse, plain = SparseBatches(schema, (0, 2, 4)), PlainMessageStream(schema, "lz4")
        messages = [sparse.message(batch) for batch in batches]
        _compare(schema, batches, ([message] for message in messages if message), map(plain.write, batches))
    except Exception as error:  # noqa: BLE001  (whatever a different layout leads to)
        log.warning(
            "pyarrow %s writes IPC messages in an unknown layout (%s: %s); record batches are encoded on a slower path",
            pa.__version__,
            type(error).__name__,
            error,
        )
        return False
    return True


# The samples are built from buffers: pa.array imports pandas if it is installed, which takes seconds.
_VALID: Final = b"\x0d"  # the second of four values is NULL


def _samples() -> Iterator[tuple[pa.Schema, list[pa.RecordBatch]]]:
    """Streams of a few types, with NULLs, slices, empty batches, and dictionaries that change."""
    columns = {
        "integer": _array(pa.int64(), _VALID, Struct("<4q").pack(1, 0, -3, 4)),
        "string": _array(pa.string(), _VALID, Struct("<5i").pack(0, 3, 3, 3, 8), b"one\xc3\xa9two"),
        "bool": _array(pa.bool_(), _VALID, b"\x09"),
        "list": _array(pa.list_(pa.int32()), _VALID, Struct("<5i").pack(0, 2, 2, 2, 4), children=[_integers()]),
        "struct": _array(pa.struct([("x", pa.int32())]), _VALID, children=[_integers()]),
        "mark": _array(pa.binary(4), _VALID, CONTINUATION * 4),  # data that looks like the start of a message
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    yield batch.schema, [batch, batch.slice(1, 2), batch.slice(0, 0), batch]
    dictionaries = [columns["string"], columns["string"].slice(2)]
    encoded = [pa.record_batch([values.dictionary_encode()], names=["dictionary"]) for values in dictionaries]
    yield encoded[0].schema, [encoded[0], encoded[0], encoded[1]]


def _sparse_samples() -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Batches with NULL columns at the positions 0, 2 and 4."""
    kinds = [pa.int64(), pa.string(), pa.list_(pa.struct([("x", pa.float64())])), pa.int32(), pa.string()]
    schema = pa.schema([pa.field(str(i), kind) for i, kind in enumerate(kinds)])
    strings = _array(pa.string(), _VALID, Struct("<5i").pack(0, 3, 3, 3, 8), b"one\xc3\xa9two")
    nulls = [pa.nulls(40, kind) for kind in kinds]
    data = [pa.concat_arrays([column] * 10) for column in (strings, _integers())]
    batch = pa.RecordBatch.from_arrays([nulls[0], data[0], nulls[2], data[1], nulls[4]], schema=schema)
    return schema, [batch, batch.slice(3, 37), batch]  # the NULLs of 40 rows are also those of 37


def _integers() -> pa.Array:
    return _array(pa.int32(), _VALID, Struct("<4i").pack(7, 0, 8, 9))


def _array(kind: pa.DataType, *buffers: bytes, children: list[pa.Array] | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, 4, [pa.py_buffer(buffer) for buffer in buffers], children=children)


def _compare(
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    fast: Iterable[list[Message]],
    plain: Iterable[list[Message]],
) -> None:
    """Raise `ValueError` unless both encodings decode to `batches`."""
    for encoding, encoded in (("fast", fast), ("plain", plain)):
        if _decode(schema, encoded) != batches:
            raise ValueError(f"the {encoding} encoding of {schema.names} decodes to other rows")


def _decode(schema: pa.Schema, encoded: Iterable[list[Message]]) -> list[pa.RecordBatch]:
    stream = [schema.serialize().to_pybytes()]
    for header, body in (message for messages in encoded for message in messages):
        size = sum(map(len, header))
        stream += [CONTINUATION, size.to_bytes(4, "little"), *header, *body]
    with pa.ipc.open_stream(b"".join(stream)) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    return batches

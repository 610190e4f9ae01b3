"""Encodes batches in which most columns are NULL because the client did not request them.

Arrow lets each buffer of a compressed batch declare itself uncompressed, so requested columns are sent as they are, between NULL
columns that are compressed once and then reused by all streams. The header, a flatbuffer, is patched to match. This depends on the
byte layout of pyarrow's output, which is not a documented interface; `encoders` checks it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, Generic, TypeVar

import pyarrow as pa

from skiway.airport.wire.flatbuffers import field as _field
from skiway.airport.wire.flatbuffers import integer as _integer
from skiway.airport.wire.flatbuffers import reference as _reference
from skiway.airport.wire.messages import Message, MessageStream, Piece, padded

__all__ = ["SparseBatches"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_UNCOMPRESSED: Final = b"\xff" * 8  # precedes a buffer that is not compressed, instead of its uncompressed length
_PADDING: Final = b"\0" * 8
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

    def patched(self, rows: int, nodes: Sequence[tuple[int, int]], buffers: Sequence[tuple[int, int]]) -> bytes:
        """The header of another batch of the same schema."""
        data = bytearray(self.data)
        _LONG.pack_into(data, self.length, rows)
        _LONG.pack_into(data, self.body_length, sum(padded(size) for _, size in buffers))
        for start, pairs in ((self.nodes, nodes), (self.buffers, buffers)):
            data[start : start + len(pairs) * _PAIR.size] = b"".join(_PAIR.pack(*pair) for pair in pairs)
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Column:
    """An encoded column: its field nodes, and the pieces of each of its buffers."""

    nodes: list[tuple[int, int]]
    buffers: list[list[Piece]]


class SparseBatches:
    """Encodes batches of one schema in which the columns at the positions `null_columns` are NULL."""

    def __init__(self, schema: pa.Schema, null_columns: Sequence[int]) -> None:
        self._schema, self._null_positions = schema, frozenset(null_columns)
        self._data_positions = [i for i in range(len(schema)) if i not in self._null_positions]
        self._stream = MessageStream(pa.schema([schema.field(i) for i in self._data_positions]), None)
        self._null_columns: dict[int, dict[int, _Column]] = {}  # by number of rows
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
        columns = self._encode_null_columns(batch.num_rows) | data_columns
        nodes, ranges, body = [], [], list[Piece]()
        offset = 0
        for position in range(len(self._schema)):
            nodes += columns[position].nodes
            for buffer in columns[position].buffers:
                size = sum(map(len, buffer))
                ranges.append((offset, size))
                offset += padded(size)
                body += [*buffer, _PADDING[: padded(size) - size]]
        return [self._template.patched(batch.num_rows, nodes, ranges)], body

    def _encode_null_columns(self, rows: int) -> dict[int, _Column]:
        if rows not in self._null_columns:
            while len(self._null_columns) >= _CACHED_SIZES:
                del self._null_columns[next(iter(self._null_columns))]
            found = {i: _null_column(self._schema.field(i).type, rows) for i in self._null_positions}
            self._null_columns[rows] = {i: column for i, column in found.items() if column is not None}
        return self._null_columns[rows]

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

    `skiway.cache` would do, but needs a library that a plain installation does not have.
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

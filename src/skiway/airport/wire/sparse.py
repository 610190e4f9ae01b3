"""Batches of which most columns are NULL, because nobody asked for them: their zeros are packed once, not in every batch.

Arrow lets each buffer of a compressed batch say that it is not compressed. So the columns that were asked for are sent as
they are, between NULL columns that were compressed when the first batch of so many rows was sent. pyarrow has no way to
write that, but it writes all the parts: this module puts them together and mends the offsets in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final

import pyarrow as pa

from skiway.airport.wire.messages import Message, MessageStream, Piece

__all__ = ["SparseBatches"]

_UNPACKED: Final = b"\xff" * 8  # what stands before a buffer that is not compressed
_PADDING: Final = b"\0" * 8
_KEPT: Final = 4  # numbers of rows whose NULL columns are kept
_PAIR: Final = Struct("<qq")  # a node: length and null count; a buffer: offset and length
_LONG: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class _Header:
    """Where the facts of a record batch are in its header, which is a flatbuffer."""

    data: bytes
    length: int
    body_length: int
    nodes: int
    node_count: int
    buffers: int
    buffer_count: int

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> _Header | None:
        """None for a batch with buffers whose number differs from batch to batch."""
        data = b"".join(pieces)
        message = _long(data, 0, 4)
        batch = _table(data, message, 2)
        length, body_length = _field(data, batch, 0), _field(data, message, 3)
        nodes, buffers = _table(data, batch, 1), _table(data, batch, 2)
        if not (length and body_length and nodes and buffers) or _field(data, batch, 4):
            return None
        return cls(data, length, body_length, nodes + 4, _long(data, nodes, 4), buffers + 4, _long(data, buffers, 4))

    def pairs(self, start: int, count: int) -> list[tuple[int, int]]:
        """The nodes, or the buffers."""
        return list(_PAIR.iter_unpack(self.data[start : start + count * _PAIR.size]))

    def mended(self, rows: int, nodes: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> bytes:
        """The header of another batch of the same schema."""
        data = bytearray(self.data)
        _LONG.pack_into(data, self.length, rows)
        _LONG.pack_into(data, self.body_length, sum(_padded(size) for _, size in places))
        for start, pairs in ((self.nodes, nodes), (self.buffers, places)):
            data[start : start + len(pairs) * _PAIR.size] = b"".join(_PAIR.pack(*pair) for pair in pairs)
        return bytes(data)


def _long(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "little", signed=size == 8)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is not there."""
    known = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    offset = _long(data, known + entry, 2) if entry < _long(data, known, 2) else 0
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Where the table or vector is that a field refers to."""
    field = _field(data, table, number)
    return field + _long(data, field, 4) if field else 0


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as it is sent: its nodes, and each of its buffers in pieces."""

    nodes: list[tuple[int, int]]
    buffers: list[list[Piece]]


class SparseBatches:
    """Batches of one schema in which the columns at the places in `nulled` are NULL."""

    def __init__(self, schema: pa.Schema, nulled: Sequence[int]) -> None:
        self._schema, self._nulled = schema, frozenset(nulled)
        self._asked = [place for place in range(len(schema)) if place not in self._nulled]
        self._stream = MessageStream(pa.schema([schema.field(place) for place in self._asked]), None)
        self._nulls: dict[int, dict[int, _Column]] = {}
        self._template = _header(_nothing(schema, 1))
        alone = [_header(_nothing(pa.schema([field]), 1)) for field in schema]
        # How many nodes and buffers a column has is a matter of its type.
        self._sizes = [(each.node_count, each.buffer_count) for each in alone if each is not None]

    def message(self, batch: pa.RecordBatch) -> Message | None:
        """The message of a batch; None where its columns are of types that cannot be sent so."""
        if self._template is None or len(self._sizes) < len(self._schema):
            return None
        asked = self._asked_columns(batch)
        if asked is None:
            return None
        columns = self._null_columns(batch.num_rows) | asked
        nodes, places, body = [], [], list[Piece]()
        offset = 0
        for place in range(len(self._schema)):
            nodes += columns[place].nodes
            for buffer in columns[place].buffers:
                size = sum(map(len, buffer))
                places.append((offset, size))
                offset += _padded(size)
                body += [*buffer, _PADDING[: _padded(size) - size]]
        return [self._template.mended(batch.num_rows, nodes, places)], body

    def _null_columns(self, rows: int) -> dict[int, _Column]:
        if rows not in self._nulls:
            while len(self._nulls) >= _KEPT:
                del self._nulls[next(iter(self._nulls))]
            self._nulls[rows] = {place: self._null_column(place, rows) for place in self._nulled}
        return self._nulls[rows]

    def _null_column(self, place: int, rows: int) -> _Column:
        header, body = _nothing(pa.schema([self._schema.field(place)]), rows)
        facts, data = _header((header, body)), b"".join(body)
        assert facts is not None  # as it was for one row
        buffers = facts.pairs(facts.buffers, facts.buffer_count)
        return _Column(facts.pairs(facts.nodes, facts.node_count), [[data[at : at + size]] for at, size in buffers])

    def _asked_columns(self, batch: pa.RecordBatch) -> dict[int, _Column] | None:
        if not self._asked:
            return {}
        header, body = self._stream.write(batch.select(self._asked))[-1]
        facts = _header((header, body))
        if facts is None:  # no bytes at all, such as of structs without fields
            return None
        nodes, buffers = facts.pairs(facts.nodes, facts.node_count), facts.pairs(facts.buffers, facts.buffer_count)
        starts = dict(zip(accumulate(map(len, body), initial=0), body, strict=False))
        sizes = [self._sizes[place] for place in self._asked]
        node_cuts = accumulate((count for count, _ in sizes), initial=0)
        buffer_cuts = accumulate((count for _, count in sizes), initial=0)
        return {
            place: _Column(nodes[n:m], [_unpacked(starts, at, size) for at, size in buffers[i:j]])
            for place, (n, m), (i, j) in zip(self._asked, pairwise(node_cuts), pairwise(buffer_cuts), strict=True)
        }


def _unpacked(starts: Mapping[int, Piece], at: int, size: int) -> list[Piece]:
    """A buffer as it is, which is one of the pieces that pyarrow wrote."""
    if not size:
        return []
    piece = starts[at]
    assert len(piece) >= size
    return [_UNPACKED, memoryview(piece)[:size]]


def _nothing(schema: pa.Schema, rows: int) -> Message:
    """The message of a batch of NULLs."""
    columns = [pa.nulls(rows, field.type) for field in schema]
    return MessageStream(schema, "lz4").write(pa.RecordBatch.from_arrays(columns, schema=schema))[-1]


def _header(message: Message) -> _Header | None:
    return _Header.of(message[0])


def _padded(size: int) -> int:
    return -(-size // 8) * 8

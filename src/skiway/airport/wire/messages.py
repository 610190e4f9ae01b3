"""Encodes record batches as Arrow IPC messages without copying their buffers.

pyarrow writes IPC streams but has no API for single messages in pieces. `MessageStream` gives pyarrow's stream writer a Python file
that collects the writer's pieces uncopied, and splits them into messages. It depends on the order in which pyarrow writes pieces;
`PlainMessageStream` uses documented interfaces only and copies more. `encoders` chooses between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

__all__ = [
    "CONTINUATION",
    "Compression",
    "Message",
    "MessageEncoder",
    "MessageStream",
    "Piece",
    "PlainMessageStream",
    "padded",
]

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

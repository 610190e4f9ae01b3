"""The messages of an Arrow IPC stream, taken out of pyarrow's writer one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, Literal

import pyarrow as pa

__all__ = ["CONTINUATION", "Compression", "Message", "MessageStream", "Piece"]

Compression = Literal["lz4", "zstd"]
Piece = Any  # bytes, a memoryview or a pyarrow buffer
Message = tuple[list[Piece], list[Piece]]  # header and body

CONTINUATION: Final = b"\xff\xff\xff\xff"


class MessageStream:
    """An IPC stream writer whose messages are taken out one batch at a time."""

    def __init__(self, schema: pa.Schema, compression: Compression | None) -> None:
        self._sink = _Pieces()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=options)
        self._sent_schema = False

    def write(self, batch: pa.RecordBatch) -> list[Message]:
        """The messages of one batch, in the pieces that pyarrow made of them."""
        self._writer.write_batch(batch)
        messages = list(_split(self._sink.take()))
        if not self._sent_schema:  # the first write also brings the schema, which FrameWriter.begin has sent
            self._sent_schema = True
            del messages[0]
        return messages


class _Pieces:
    """The file that the IPC writer writes to: it keeps what it is given, pyarrow's buffers uncopied."""

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


def _split(pieces: list[Piece]) -> Iterator[Message]:
    """Messages in a run of pieces: a mark, the header's length, the header, the body."""
    # Data comes in pyarrow's buffers, so a piece of bytes that looks like the mark is the mark.
    starts = [i for i, piece in enumerate(pieces) if isinstance(piece, bytes) and piece == CONTINUATION]
    for start, end in pairwise([*starts, len(pieces)]):
        length = int.from_bytes(pieces[start + 1], "little")
        cut = start + 2
        while length > 0:
            length -= len(pieces[cut])
            cut += 1
        yield pieces[start + 2 : cut], pieces[cut:end]

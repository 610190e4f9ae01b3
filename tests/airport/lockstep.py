"""An exchange as DuckDB's client runs it: our schema first, then one batch out for each batch in."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airport.raw import Raw, descriptor
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.protocol import TotalChanged, decode


class Exchange:
    """One DoExchange. Every read has the call's deadline, so that a hang fails the test."""

    def __init__(
        self,
        raw: Raw,
        path: Iterable[str],
        schema: pa.Schema,
        operation: str,
        *,
        returning: bool,
        opening: bytes = b"",
        timeout: float = 20,
    ) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = FrameWriter(schema)
        headers = (("airport-operation", operation), ("return-chunks", "1" if returning else "0"))
        self.call: Any = raw.exchange(iter(self._queue.get, None), *headers, timeout=timeout)
        name = descriptor(*path)
        self._queue.put(metadata_frame(descriptor=name))
        if opening:
            self._queue.put(metadata_frame(opening))
        self._queue.put(self._writer.begin(descriptor=name))
        self._reader = BatchReader(self.call)
        self.schema: pa.Schema = self._reader.schema  # the client waits for the schema before it sends rows
        self._answers = self._reader.with_metadata()

    def send(self, batch: pa.RecordBatch) -> None:
        for frame in self._writer.batch(batch):
            self._queue.put(frame)

    def ask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Send a batch and wait for the response batch."""
        self.send(batch)
        answer, metadata = next(self._answers)
        assert metadata == b""
        assert answer is not None
        return answer

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """The response batches of a function over rows, up to the end of this chunk."""
        for answer, metadata in self._answers:
            assert metadata in (b"chunk_continues", b"chunk_finished")
            assert metadata == b"chunk_continues" or answer.num_rows == 0 or answer.num_rows % 2048
            yield answer
            if metadata == b"chunk_finished":
                return
        raise AssertionError("the stream ended within a chunk")

    def half_close(self) -> None:
        self._queue.put(None)

    def finish(self) -> int:
        """Half-close, read one message and finish the call; returns the number of changed rows."""
        self.half_close()
        answer, metadata = next(self._answers)
        assert answer is None
        assert list(self._answers) == []
        return decode(metadata, TotalChanged, "end").total_changed

    def end(self) -> None:
        """Half-close a function's exchange and check that no further message arrives."""
        self.half_close()
        assert list(self._answers) == []


def in_vectors(table: pa.Table) -> list[pa.RecordBatch]:
    """Batches as DuckDB sends them."""
    return table.combine_chunks().to_batches(max_chunksize=2048)

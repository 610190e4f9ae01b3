"""An exchange in lock-step: the server's schema before the first batch, then one batch back for each where asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.payloads import TotalChanged, decode
from skiway.client.calls import Calls, Trace
from skiway.client.failures import nonsense
from skiway.errors import Internal

__all__ = ["LockStep"]

FINISHED: Final = b"chunk_finished"
MARKS: Final = (b"chunk_continues", FINISHED)


class LockStep:
    """One exchange, opened by making it: it waits until the server has sent its schema. Close it in any case.

    An exchange that is closed before its end is taken back: the server is to undo what was done.
    """

    def __init__(
        self, calls: Calls, trace: Trace, operation: str, *, schema: pa.Schema, returning: bool, opening: bytes = b""
    ) -> None:
        self._location = calls.connection.location.text
        self._what = f"DoExchange ({operation})"
        self._stream = calls.exchange(trace, operation, returning=returning)
        self._writer = FrameWriter(schema)
        self._reader = BatchReader(iter(self._stream))
        self._answers = self._reader.with_metadata()
        try:
            self._begin(trace.descriptor.SerializeToString(), opening)
        except BaseException:
            self.close()
            raise

    def _begin(self, descriptor: bytes, opening: bytes) -> None:
        self._stream.send(metadata_frame(descriptor=descriptor))
        if opening:
            self._stream.send(metadata_frame(opening))
        self._stream.send(self._writer.begin(descriptor=descriptor))
        with nonsense(self._location, self._what):
            self.schema = self._reader.schema

    def send(self, batch: pa.RecordBatch) -> None:
        """Send rows."""
        for frame in self._writer.batch(batch):
            self._stream.send(frame)

    def ask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Send rows and wait for the ones that answer them, as many."""
        self.send(batch)
        answer, _ = self._next()
        if answer is None or answer.num_rows != batch.num_rows:
            came = "none" if answer is None else str(answer.num_rows)
            raise Internal(f"{self._location} was sent {batch.num_rows} rows and has to return as many: {came} came")
        return answer

    def chunk(self) -> Iterator[pa.RecordBatch]:
        """All that a function over rows says to what it was sent last."""
        mark = b""
        while mark != FINISHED:
            answer, mark = self._next()
            if answer is None or mark not in MARKS:
                raise Internal(f"{self._location} answered with a batch marked {mark!r}; the protocol has {MARKS}")
            yield answer

    def half_close(self) -> None:
        """All rows were sent."""
        self._stream.half_close()

    def end(self) -> None:
        """Let the call come to its end; a server may say nothing more."""
        self._stream.half_close()
        for _ in self._stream:
            pass

    def total_changed(self) -> int:
        """End a statement: the number of rows that it affected, by then for good."""
        self._stream.half_close()
        answer, metadata = self._next()
        if answer is not None:
            raise Internal(f"{self._location} answered with rows where the number of changed ones has to be")
        with nonsense(self._location, self._what):
            changed = decode(metadata, TotalChanged, "the end of an exchange").total_changed
        self.end()
        return changed

    def close(self) -> None:
        """Take the exchange back, unless it has come to its end."""
        self._stream.close()

    def _next(self) -> tuple[pa.RecordBatch | None, bytes]:
        with nonsense(self._location, self._what):
            found = next(self._answers, None)
        if found is None:
            raise Internal(f"{self._location} ended {self._what} before its answer was complete", key="answer.missing")
        return found

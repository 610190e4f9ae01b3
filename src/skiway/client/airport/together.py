"""Threads that read several streams of a scan at the same time, into a buffer of limited size."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa

from skiway.client.connection import Stream

Part = Callable[[Callable[[Stream], None]], Generator[pa.RecordBatch]]
"""Reads a part of a scan. It reports its stream before it reads from it, so that the stream can be cancelled."""

BUFFERED_BYTES: Final = 64 * 1024 * 1024
"""When threads wait for the reader. Each of them has at most one batch more."""


def together(parts: Sequence[Part], threads: int, *, buffered_bytes: int = BUFFERED_BYTES) -> Generator[pa.RecordBatch]:
    """Yield the batches of all parts as they arrive. The first error ends all of them; so does closing the generator."""
    count = min(threads, len(parts))
    reading = _Reading(parts, count, buffered_bytes)
    workers = [threading.Thread(target=reading.work, name=f"skiway-scan-{n}", daemon=True) for n in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield from reading.batches()
    finally:
        reading.stop()
        for worker in workers:
            worker.join()


class _Reading:
    """What the threads share."""

    def __init__(self, parts: Iterable[Part], threads: int, buffered_bytes: int) -> None:
        self._parts, self._buffered_bytes = deque(parts), buffered_bytes
        self._changed = threading.Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes, self._working = 0, threads
        self._streams: list[Stream] = []
        self._error: BaseException | None = None
        self._has_stopped = False

    def work(self) -> None:
        """Read parts until none is left."""
        try:
            while (part := self._next_part()) is not None:
                with closing(part(self._opened)) as batches:
                    for batch in batches:
                        if not self._put(batch):
                            return
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches until all threads have ended; raise the first error."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batches or self._error or not self._working)
                if self._error is not None:
                    raise self._error
                if not self._batches:
                    return
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch

    def stop(self) -> None:
        """Cancel the streams, and let the threads end."""
        with self._changed:
            self._has_stopped = True
            self._batches.clear()
            self._changed.notify_all()
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def _next_part(self) -> Part | None:
        with self._changed:
            return None if self._has_stopped or self._error or not self._parts else self._parts.popleft()

    def _opened(self, stream: Stream) -> None:
        with self._changed:
            self._streams.append(stream)
            if not self._has_stopped:
                return
        stream.close()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Buffer a batch; return False if the reader has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_stopped or self._error or self._bytes < self._buffered_bytes)
            if self._has_stopped or self._error:
                return False
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            return True

"""Stream the rows of data files in any format; the next batches, and the next file, are decoded in advance.

A short file on a local disk is decoded when its rows are needed: a thread would take longer than it saves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from queue import Empty, Queue
from threading import Event, Thread
from typing import Final, Generic, TypeVar

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.readers.avro import avro_batches
from skiway.formats.readers.orc import orc_batches
from skiway.formats.readers.parquet import is_local, parquet_batches
from skiway.formats.readers.scanning import DataFile, Scan

T = TypeVar("T")
S = TypeVar("S")

_DEPTH: Final = 1  # batches to read ahead per file; more would only use memory
_AT_ONCE: Final = 2  # files


def read_ahead(
    sources: Iterable[S], read: Callable[[S], Generator[T]], is_short: Callable[[S], bool] = lambda _: False
) -> Iterator[T]:
    """Yield the items that `read` yields for each source, in order; the next source is started in advance, unless it `is_short`."""
    coming = (read(source) if is_short(source) else ReadAhead(read(source)) for source in sources)
    begun: deque[Generator[T] | ReadAhead[T]] = deque(islice(coming, _AT_ONCE))
    try:
        while begun:
            yield from begun[0]
            begun.popleft()
            begun.extend(islice(coming, 1))
    finally:
        for each in begun:
            each.close()


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


class ReadAhead(Generic[T]):
    """Produces `items` on a thread of its own; at most `depth` are queued, besides the one in production.

    `close` does not wait for the thread, which ends after its current item and then closes `items`.
    """

    def __init__(self, items: Generator[T], *, depth: int = _DEPTH) -> None:
        self._queue: Queue[T | _End] = Queue(depth)
        self._stopped = Event()
        work = (_produce, items, self._queue, self._stopped)
        Thread(target=copy_context().run, args=work, name="read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._queue.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        """Stop producing items."""
        self._stopped.set()
        with suppress(Empty):  # so that the thread is not blocked on a full queue
            while True:
                self._queue.get_nowait()


def _produce(items: Generator[T], queue: Queue[T | _End], stopped: Event) -> None:
    end = _End()
    try:
        for item in items:
            queue.put(item)
            if stopped.is_set():
                break
    except BaseException as error:  # noqa: BLE001  (raised by the consumer)
        end = _End(error)
    finally:
        items.close()
        if not stopped.is_set():
            queue.put(end)


_READERS: Final[Mapping[str, Callable[[Scan, DataFile], Generator[pa.RecordBatch]]]] = {
    "parquet": parquet_batches,
    "avro": avro_batches,
    "orc": orc_batches,
}


def read_rows(scan: Scan, files: Iterable[DataFile]) -> pa.RecordBatchReader:
    """Stream the rows of all `files`, in order, reading ahead."""
    later = replace(scan, first_batch_rows=None)
    scans = chain([scan], repeat(later))
    batches = read_ahead(zip(scans, files, strict=False), lambda one: _batches(*one), lambda one: _is_short(*one))
    return pa.RecordBatchReader.from_batches(scan.output_schema, (batch for batch in batches if batch.num_rows))


def _is_short(scan: Scan, file: DataFile) -> bool:
    """Whether a file has at most one batch, and no request to an object store precedes it."""
    return file.rows is not None and file.rows <= scan.batch_rows and is_local(file.path)


def _batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    if scan.share is not None and scan.share[0] > 0 and file.format != "parquet":
        return  # only Parquet files have parts that can be read on their own, so the first share is the whole file
    if file.etag is not None:
        scan.files.check_unchanged(file.path, file.etag)
    reader = _READERS.get(file.format)
    if reader is None:
        raise Unsupported(
            f"file {file.path!r} has the format {file.format!r}, which is not supported; rewrite it as Parquet",
            key="table.feature",
            file=file.path,
            feature=f"data files in {file.format}",
        )
    yield from reader(scan, file)

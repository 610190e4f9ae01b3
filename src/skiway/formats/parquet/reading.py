"""Stream the rows of Parquet files.

Row groups that the filter cannot match are skipped, and only a few batches are in memory at a time: the next ones, and the
next file, are decoded on other threads while the caller uses the current batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from queue import Empty, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter, to_arrow
from skiway.airport.layouts import without_views
from skiway.errors import Unsupported
from skiway.formats.conform import Converter, converter, missing_column
from skiway.formats.files import Files
from skiway.formats.parquet.footers import row_groups
from skiway.formats.parquet.pages import PageCheck, PageGuard
from skiway.formats.pruning import pruned
from skiway.formats.schemas import Leaf, field_id, leaves
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = [
    "FILE_ORDINAL",
    "ROW_POSITION",
    "DataFile",
    "IdAssigner",
    "ReadAhead",
    "Scan",
    "open_file",
    "read_ahead",
    "read_rows",
]

T = TypeVar("T")
S = TypeVar("S")

FILE_ORDINAL: Final = "$file"
ROW_POSITION: Final = "$position"

IdAssigner: TypeAlias = Callable[[pa.Schema, str], pa.Schema]
"""Adds the field ids of the table to the schema of a file; the second argument is the file's path."""

Positions: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_BUFFER_BYTES: Final = 1 << 20  # to read ahead per column, instead of a whole row group

_DEPTH: Final = 1  # batches to read ahead per file; more would only use memory
_AT_ONCE: Final = 2  # files


def read_ahead(sources: Iterable[S], read: Callable[[S], Generator[T]], *, at_once: int = _AT_ONCE) -> Iterator[T]:
    """Yield the items that `read` yields for each source, in order; the next source is started in advance."""
    coming = (ReadAhead(read(source)) for source in sources)
    begun = deque(islice(coming, at_once))
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


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. `constants` are the values, by field id, of columns that are not in the file."""

    path: str
    ordinal: int
    etag: str | None = None  # of the expected content, if files may change
    constants: Mapping[int, pa.Scalar] = field(default_factory=dict)
    deleted: pa.Array | None = None  # positions of the deleted rows, ascending


@dataclass(frozen=True)
class Scan:
    """What to read from each file."""

    files: Files
    schema: pa.Schema
    columns: Sequence[str]
    assign_ids: IdAssigner
    filter: Filter | None = None
    positions: bool = False
    batch_rows: int = 65536

    @cached_property
    def condition(self) -> pc.Expression | None:
        """The part of the filter that Arrow can evaluate."""
        return to_arrow(self.filter, self.schema) if self.filter else None

    @cached_property
    def input_schema(self) -> pa.Schema:
        """The requested columns, and those that only the filter needs."""
        needed = [*dict.fromkeys([*self.columns, *(sorted(self.filter.columns) if self.filter else ())])]
        return pa.schema([self.schema.field(name) for name in needed if self.schema.get_field_index(name) >= 0])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The schema of the returned batches."""
        fields = [self.schema.field(name) for name in self.columns]
        if self.positions:
            fields += [pa.field(FILE_ORDINAL, pa.int32(), nullable=False)]
            fields += [pa.field(ROW_POSITION, pa.int64(), nullable=False)]
        return pa.schema(fields)


def read_rows(scan: Scan, files: Iterable[DataFile]) -> pa.RecordBatchReader:
    """Stream the rows of all `files`, in order, reading ahead."""
    batches = read_ahead(files, lambda file: _batches(scan, file))
    return pa.RecordBatchReader.from_batches(scan.output_schema, (batch for batch in batches if batch.num_rows))


@contextmanager
def open_file(files: Files, path: str) -> Iterator[ParquetFile]:
    """Open a Parquet file for the duration of the block; errors in the block name the file."""
    with files.translated(path), files.open(path) as file:
        yield _parquet(file)


@contextmanager
def _open_checked(files: Files, path: str) -> Iterator[tuple[ParquetFile, PageCheck]]:
    """Open a Parquet file as `open_file` does, with the check of its pages."""
    with files.translated(path), files.open(path) as file:
        if _is_local(path):
            parquet, pages = _parquet(file), PageCheck(file, path)
        else:
            pages = PageGuard(file, path)
            parquet = _parquet(pa.PythonFile(pages, "r"))
        pages.set_footer(parquet.metadata)
        yield parquet, pages


def _is_local(path: str) -> bool:
    return location(path).scheme == "file"


def _parquet(file: pa.NativeFile) -> ParquetFile:
    from pyarrow.parquet import ParquetFile

    # As nanoseconds, INT96 timestamps would overflow outside of the years 1677 to 2262.
    return ParquetFile(file, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us")


def _batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    if file.etag is not None:
        scan.files.check_unchanged(file.path, file.etag)
    with _open_checked(scan.files, file.path) as (parquet, pages):
        source = scan.assign_ids(parquet.schema_arrow, file.path)  # as decoded: INT96 without its time zone
        groups = pruned(row_groups(parquet.metadata, source, _filtered(scan)), scan.filter, scan.schema)
        whole = _GroupReader(scan, file, parquet, source, pages)
        probe = _Probe(scan, file, parquet, source, pages) if _is_worth_probing(scan) else None
        for group, start in zip(groups["row_group"].to_pylist(), groups["start"].to_pylist(), strict=True):
            yield from whole.rows(group, start) if probe is None or probe.is_futile else probe.rows(group, start)


def _is_worth_probing(scan: Scan) -> bool:
    """Is there a filter, and are there columns that it does not need?"""
    return scan.filter is not None and scan.condition is not None and not scan.filter.columns.issuperset(scan.columns)


class _GroupReader:
    """Reads row groups of one file, with all columns of the scan."""

    def __init__(self, scan: Scan, file: DataFile, parquet: ParquetFile, source: pa.Schema, pages: PageCheck) -> None:
        self._scan, self._file, self._parquet, self._pages = scan, file, parquet, pages
        self._names, self._conversions = _conversions(scan, source, file)

    def decoded(self, group: int, batch_rows: int = 0) -> Iterator[pa.RecordBatch]:
        """Decode the batches of a row group; `batch_rows` overrides the batch size of the scan."""
        rows = batch_rows or self._scan.batch_rows
        self._pages.check(group, self._names)
        yield from self._parquet.iter_batches(rows, row_groups=[group], columns=self._names)

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """Read the requested rows of a row group whose first row is at position `start`; batches may be empty."""
        for batch in self.decoded(group):
            rows = self.conformed(batch, _positions(start, batch.num_rows))
            if self._file.deleted is not None:
                rows = _without(rows, self._file.deleted, start)
            if self._scan.condition is not None:
                rows = rows.filter(self._scan.condition)
            yield rows.select(self._scan.output_schema.names)
            start += batch.num_rows

    def conformed(self, batch: pa.RecordBatch, positions: pa.Array) -> pa.RecordBatch:
        """Convert rows of the file, which are at `positions`, to the schema of the table."""
        count = len(positions)
        columns = [_column(batch, count, self._file, *each) for each in self._conversions]
        schema = self._scan.input_schema
        if self._scan.positions:
            columns += [pa.repeat(pa.scalar(self._file.ordinal, pa.int32()), count), positions]
            schema = pa.schema([*schema, *list(self._scan.output_schema)[-2:]])
        return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


class _Probe:
    """Reads row groups of one file for a filter that may match few rows.

    The columns of the filter are read first, and the others only up to the last matching row. Once every batch of a row
    group had matching rows, `is_futile` says that this does not pay.
    """

    def __init__(self, scan: Scan, file: DataFile, parquet: ParquetFile, source: pa.Schema, pages: PageCheck) -> None:
        self._scan = scan
        self._filtered = _GroupReader(replace(scan, columns=(), positions=True), file, parquet, source, pages)
        self._requested = _GroupReader(replace(scan, filter=None), file, parquet, source, pages)
        self.is_futile = False

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """Read the matching rows of a row group."""
        found = [rows.column(ROW_POSITION).to_numpy() for rows in self._filtered.rows(group, start)]
        self.is_futile = len(found) > 1 and all(map(len, found))
        matching = np.concatenate(found)
        if len(matching):
            yield from self._picked(matching, group, start)

    def _picked(self, matching: Positions, group: int, start: int) -> Iterator[pa.RecordBatch]:
        needed = int(matching[-1]) - start + 1
        batches = -(-needed // self._scan.batch_rows)
        # Batches are sized so that nothing after the last match is decoded.
        for batch in self._requested.decoded(group, -(-needed // batches)):
            here = int(np.searchsorted(matching, start + batch.num_rows))
            if here:
                rows = _taken(batch, matching[:here] - start)
                yield self._requested.conformed(rows, pa.array(matching[:here]))
            matching = matching[here:]
            start += batch.num_rows
            if not len(matching):
                return


def _taken(batch: pa.RecordBatch, places: Positions) -> pa.RecordBatch:
    columns = [without_views(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).take(pa.array(places)) if columns else batch


def _filtered(scan: Scan) -> list[Leaf]:
    names = scan.filter.columns if scan.filter else frozenset()
    return [leaf for leaf in leaves(scan.schema) if leaf.path[0] in names]


def _conversions(
    scan: Scan, source: pa.Schema, file: DataFile
) -> tuple[list[str], list[tuple[pa.Field, str | None, Converter | None]]]:
    """The columns to read from the file, and how to make each column of the scan from them."""
    if len(set(source.names)) < len(source.names):
        raise Unsupported(
            f"file {file.path!r} has duplicate column names ({', '.join(source.names)}); rewrite it",
            key="file.ambiguous",
            file=file.path,
        )
    found = {number: each for each in source if (number := field_id(each)) is not None}
    conversions: list[tuple[pa.Field, str | None, Converter | None]] = []
    for target in scan.input_schema:
        here = found.get(field_id(target) or -1)
        if here is None:
            conversions.append((target, None, None))
        else:
            conversions.append((target, here.name, converter(here, target, file=file.path)))
    return [name for _, name, _ in conversions if name is not None], conversions


def _column(
    batch: pa.RecordBatch, count: int, file: DataFile, target: pa.Field, name: str | None, convert: Converter | None
) -> pa.Array:
    if name is None:
        return missing_column(target, count, file.constants.get(field_id(target) or -1), file=file.path)
    array = batch.column(name)
    return array if convert is None else convert(array)


def _positions(start: int, rows: int) -> pa.Array:
    return pa.array(np.arange(start, start + rows, dtype=np.int64))


def _without(rows: pa.RecordBatch, deleted: pa.Array, start: int) -> pa.RecordBatch:
    first, end = np.searchsorted(deleted.to_numpy(), [start, start + rows.num_rows])
    if first == end:
        return rows
    here = pc.is_in(_positions(start, rows.num_rows), value_set=deleted.slice(first, end - first))
    return rows.filter(pc.invert(here))

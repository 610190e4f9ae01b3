"""Reading ahead: what is asked for next is made while the last is still used."""

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
from skiway.errors import Unsupported
from skiway.formats.conform import Fit, filled, fitting
from skiway.formats.files import Files
from skiway.formats.parquet.footers import row_groups
from skiway.formats.pruning import pruned
from skiway.formats.schemas import Leaf, field_id, leaves

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = [
    "FILE_ORDINAL",
    "ROW_POSITION",
    "DataFile",
    "Identifier",
    "ReadAhead",
    "Scan",
    "opened",
    "read_ahead",
    "rows_of",
]

T = TypeVar("T")
S = TypeVar("S")

_DEPTH: Final = 1  # batches; more would only take room
_AT_ONCE: Final = 2  # sources


def read_ahead(sources: Iterable[S], read: Callable[[S], Generator[T]], *, at_once: int = _AT_ONCE) -> Iterator[T]:
    """The items that `read` gives of each source, in order; the source after the present one is begun already."""
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
    """The same items, made by a thread of their own; at most `depth` wait, beside the one that is being made.

    Whoever closes it early does not wait for the thread: it ends, and closes `items`, after its present item.
    """

    def __init__(self, items: Generator[T], *, depth: int = _DEPTH) -> None:
        self._waiting: Queue[T | _End] = Queue(depth)
        self._stopped = Event()
        work = (_make, items, self._waiting, self._stopped)
        Thread(target=copy_context().run, args=work, name="read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        """Make no more."""
        self._stopped.set()
        with suppress(Empty):  # room for what the thread may be about to leave
            while True:
                self._waiting.get_nowait()


def _make(items: Generator[T], waiting: Queue[T | _End], stopped: Event) -> None:
    end = _End()
    try:
        for item in items:
            waiting.put(item)
            if stopped.is_set():
                break
    except BaseException as error:  # noqa: BLE001  (raised where the items are used)
        end = _End(error)
    finally:
        items.close()
        if not stopped.is_set():
            waiting.put(end)


# --------------------
# Rows of Parquet files as a stream: row groups that the filter cannot match are not read, and few batches are in memory
# at a time.


FILE_ORDINAL: Final = "$file"
ROW_POSITION: Final = "$position"

Identifier: TypeAlias = Callable[[pa.Schema, str], pa.Schema]
"""The schema of a file, named by its path, with ids that the table knows."""

Positions: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_BUFFER_BYTES: Final = 1 << 20  # read ahead per column, rather than a row group of it


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. `constants` are values, by field id, of columns that are not in it."""

    path: str
    ordinal: int
    etag: str | None = None  # what its content must still be, where files may change
    constants: Mapping[int, pa.Scalar] = field(default_factory=dict)
    deleted: pa.Array | None = None  # the positions of rows that are no longer there, ascending


@dataclass(frozen=True)
class Scan:
    """What is read of each file. `identify` gives the fields of a file's schema their ids."""

    files: Files
    schema: pa.Schema
    columns: Sequence[str]
    identify: Identifier
    filter: Filter | None = None
    positions: bool = False
    batch_rows: int = 65536

    @cached_property
    def condition(self) -> pc.Expression | None:
        """As much of the filter as can be asked of rows."""
        return to_arrow(self.filter, self.schema) if self.filter else None

    @cached_property
    def looked_at(self) -> pa.Schema:
        """The columns that are asked for, and those only the filter needs."""
        needed = [*dict.fromkeys([*self.columns, *(sorted(self.filter.columns) if self.filter else ())])]
        return pa.schema([self.schema.field(name) for name in needed if self.schema.get_field_index(name) >= 0])

    @cached_property
    def answered(self) -> pa.Schema:
        """The schema of what comes out."""
        fields = [self.schema.field(name) for name in self.columns]
        if self.positions:
            fields += [pa.field(FILE_ORDINAL, pa.int32(), nullable=False)]
            fields += [pa.field(ROW_POSITION, pa.int64(), nullable=False)]
        return pa.schema(fields)


def rows_of(scan: Scan, files: Iterable[DataFile]) -> pa.RecordBatchReader:
    """The rows of all `files`, one after the other; what comes next is decoded while the last is used."""
    batches = read_ahead(files, lambda file: _batches(scan, file))
    return pa.RecordBatchReader.from_batches(scan.answered, (batch for batch in batches if batch.num_rows))


@contextmanager
def opened(files: Files, path: str) -> Iterator[ParquetFile]:
    """The Parquet file, until the block ends; what goes wrong in the block is told of this file."""
    from pyarrow.parquet import ParquetFile

    with files.translated(path), files.open(path) as file:
        # Moments in INT96 as nanoseconds would wrap around outside of 1677 to 2262.
        yield ParquetFile(file, buffer_size=_BUFFER_BYTES, coerce_int96_timestamp_unit="us")


def _batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    if file.etag is not None:
        scan.files.check_unchanged(file.path, file.etag)
    with opened(scan.files, file.path) as parquet:
        source = scan.identify(parquet.schema_arrow, file.path)
        groups = pruned(row_groups(parquet.metadata, source, _filtered(scan)), scan.filter, scan.schema)
        whole = _GroupReader(scan, file, parquet, source)
        probe = _Probe(scan, file, parquet, source) if _is_worth_probing(scan) else None
        for group, start in zip(groups["row_group"].to_pylist(), groups["start"].to_pylist(), strict=True):
            yield from whole.rows(group, start) if probe is None or probe.is_futile else probe.rows(group, start)


def _is_worth_probing(scan: Scan) -> bool:
    """Are there columns that the filter does not need?"""
    return scan.filter is not None and scan.condition is not None and not scan.filter.columns.issuperset(scan.columns)


class _GroupReader:
    """Reads row groups of one file, all columns that the scan looks at."""

    def __init__(self, scan: Scan, file: DataFile, parquet: ParquetFile, source: pa.Schema) -> None:
        self._scan, self._file, self._parquet = scan, file, parquet
        self._names, self._fits = _fits(scan, source, file)

    def decoded(self, group: int, batch_rows: int = 0) -> Iterator[pa.RecordBatch]:
        """The batches of a group as they are in the file, as large as the scan says unless they shall be smaller."""
        rows = batch_rows or self._scan.batch_rows
        yield from self._parquet.iter_batches(rows, row_groups=[group], columns=self._names)

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """The batches of a group, whose first row is at `start`, as they are asked for; some may be empty."""
        for batch in self.decoded(group):
            rows = self.formed(batch, _positions(start, batch.num_rows))
            if self._file.deleted is not None:
                rows = _without(rows, self._file.deleted, start)
            if self._scan.condition is not None:
                rows = rows.filter(self._scan.condition)
            yield rows.select(self._scan.answered.names)
            start += batch.num_rows

    def formed(self, batch: pa.RecordBatch, positions: pa.Array) -> pa.RecordBatch:
        """Rows of the file, which are at `positions`, in the table's schema."""
        count = len(positions)
        columns = [_column(batch, count, self._file, *fit) for fit in self._fits]
        schema = self._scan.looked_at
        if self._scan.positions:
            columns += [pa.repeat(pa.scalar(self._file.ordinal, pa.int32()), count), positions]
            schema = pa.schema([*schema, *list(self._scan.answered)[-2:]])
        return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


class _Probe:
    """Reads row groups of one file where a filter may keep few rows.

    The filter's columns are read first, and the others only up to the last row that it keeps. That is `is_futile` once
    a group had rows to keep in each of its batches.
    """

    def __init__(self, scan: Scan, file: DataFile, parquet: ParquetFile, source: pa.Schema) -> None:
        self._scan = scan
        self._filtered = _GroupReader(replace(scan, columns=(), positions=True), file, parquet, source)
        self._asked = _GroupReader(replace(scan, filter=None), file, parquet, source)
        self.is_futile = False

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """The batches of a group that have rows which the filter keeps."""
        found = [rows.column(ROW_POSITION).to_numpy() for rows in self._filtered.rows(group, start)]
        self.is_futile = len(found) > 1 and all(map(len, found))
        kept = np.concatenate(found)
        if len(kept):
            yield from self._picked(kept, group, start)

    def _picked(self, kept: Positions, group: int, start: int) -> Iterator[pa.RecordBatch]:
        needed = int(kept[-1]) - start + 1
        batches = -(-needed // self._scan.batch_rows)
        for batch in self._asked.decoded(group, -(-needed // batches)):  # so that no row after the last is decoded
            here = int(np.searchsorted(kept, start + batch.num_rows))
            if here:
                yield self._asked.formed(batch.take(pa.array(kept[:here] - start)), pa.array(kept[:here]))
            kept = kept[here:]
            start += batch.num_rows
            if not len(kept):
                return


def _filtered(scan: Scan) -> list[Leaf]:
    asked = scan.filter.columns if scan.filter else frozenset()
    return [leaf for leaf in leaves(scan.schema) if leaf.path[0] in asked]


def _fits(
    scan: Scan, source: pa.Schema, file: DataFile
) -> tuple[list[str], list[tuple[pa.Field, str | None, Fit | None]]]:
    """The columns to read from the file, and how each column looked at is made of them."""
    if len(set(source.names)) < len(source.names):
        raise Unsupported(
            f"file {file.path!r} has several columns of one name ({', '.join(source.names)}); rewrite it",
            key="file.ambiguous",
            file=file.path,
        )
    found = {number: each for each in source if (number := field_id(each)) is not None}
    fits: list[tuple[pa.Field, str | None, Fit | None]] = []
    for target in scan.looked_at:
        here = found.get(field_id(target) or -1)
        if here is None:
            fits.append((target, None, None))
        else:
            fits.append((target, here.name, fitting(here, target, file=file.path)))
    return [name for _, name, _ in fits if name is not None], fits


def _column(
    batch: pa.RecordBatch, count: int, file: DataFile, target: pa.Field, name: str | None, fit: Fit | None
) -> pa.Array:
    if name is None:
        return filled(target, count, file.constants.get(field_id(target) or -1), file=file.path)
    array = batch.column(name)
    return array if fit is None else fit(array)


def _positions(start: int, rows: int) -> pa.Array:
    return pa.array(np.arange(start, start + rows, dtype=np.int64))


def _without(rows: pa.RecordBatch, deleted: pa.Array, start: int) -> pa.RecordBatch:
    first, end = np.searchsorted(deleted.to_numpy(), [start, start + rows.num_rows])
    if first == end:
        return rows
    here = pc.is_in(_positions(start, rows.num_rows), value_set=deleted.slice(first, end - first))
    return rows.filter(pc.invert(here))

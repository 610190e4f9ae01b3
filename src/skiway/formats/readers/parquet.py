"""Stream the rows of Parquet files, and read their shape: how many rows they have, and how columns are stored.

Row groups that the filter cannot match are skipped, and only a few batches are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from skiway.airport.conversion import plain_type, without_views
from skiway.formats.files import Files
from skiway.formats.readers.footers import PARSED, Footer, cached_row_groups, file_columns, read_footer, supported
from skiway.formats.readers.pages import Once, PageCheck, PageGuard, always
from skiway.formats.readers.remote import LateFile
from skiway.formats.readers.scanning import DataFile, FileRows, Positions, Scan
from skiway.formats.schemas import Leaf, leaves
from skiway.formats.statistics import pruned
from skiway.foundation.cache import Cache
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BUFFER_BYTES: Final = 1 << 20  # to read ahead per column, instead of a whole row group
_FEW_VALUES: Final = 100_000
"""Of a row group: threads would cost more than they save."""

_CHECK_BYTES: Final = 500  # that a check takes in the cache


@contextmanager
def open_file(files: Files, path: str) -> Iterator[ParquetFile]:
    """Open a Parquet file for the duration of the block; errors in the block name the file."""
    with files.translated(path), files.open(path) as file:
        yield _parquet(file, path, read_footer(file, path, files))


@dataclass(frozen=True)
class CheckedFile:
    """A Parquet file whose footer is valid. Its `pages` must be checked before they are read from `source`."""

    path: str
    source: pa.NativeFile
    footer: Footer
    pages: PageCheck

    @cached_property
    def parquet(self) -> ParquetFile:
        """The file as pyarrow reads it."""
        return _parquet(self.source, self.path, self.footer)


@contextmanager
def checked_file(files: Files, path: str, *, version: str | None = None) -> Iterator[CheckedFile]:
    """Open a file so that pyarrow can read it safely in this process; errors in the block name the file.

    The footer of a remote file is kept if the caller knows the `version` of the file, which changes with its content.
    """
    with files.translated(path), (_open_local if is_local(path) else _open_remote)(files, path, version) as opened:
        opened.pages.set_footer(opened.footer.metadata)
        yield opened


@contextmanager
def _open_local(files: Files, path: str, _version: str | None) -> Iterator[CheckedFile]:
    opened, version = files.open_version(path)
    with opened as file:
        yield CheckedFile(path, file, _footer(file, path, files), PageCheck(file, path, _checks_of(version, files)))


@contextmanager
def _open_remote(files: Files, path: str, version: str | None) -> Iterator[CheckedFile]:
    with closing(LateFile(partial(files.open, path))) as file:

        def load() -> tuple[Footer, int]:
            return _footer(file, path, files), file.size()

        def size_of(found: tuple[Footer, int]) -> int:
            return PARSED * int(found[0].metadata.serialized_size)

        known = load() if version is None else files.cached("remote footer", path, version, load=load, size_of=size_of)
        footer, file.known_size = known
        pages = PageGuard(file, path)
        yield CheckedFile(path, pa.PythonFile(pages, "r"), footer, pages)


def _footer(file: pa.NativeFile | LateFile, path: str, files: Files) -> Footer:
    footer = read_footer(file, path, files)
    if footer is None:
        _parquet(file.opened if isinstance(file, LateFile) else file, path, None)  # raises the error
        raise AssertionError(f"{path} has no footer")
    return footer


def _checks_of(version: Hashable | None, files: Files) -> Once:
    """Runs each check of the pages in a version of a file once: the headers of 40 pages take 2 ms."""

    def once(check: Hashable, run: Callable[[], None]) -> None:
        def load() -> bool:
            run()
            return True

        files.cached("parquet pages", version, check, load=load, size_of=lambda _: _CHECK_BYTES)

    return always if version is None else once


def is_local(path: str) -> bool:
    """Whether a file is on a disk of this machine."""
    return location(path).scheme == "file"


def _parquet(file: pa.NativeFile, path: str, footer: Footer | None) -> ParquetFile:
    """Open a Parquet file whose footer is valid."""
    from pyarrow.parquet import ParquetFile

    with supported(path):
        # As nanoseconds, INT96 timestamps would overflow outside of the years 1677 to 2262.
        return ParquetFile(
            file,
            metadata=None if footer is None else footer.metadata,
            buffer_size=_BUFFER_BYTES,
            coerce_int96_timestamp_unit="us",
        )


def parquet_batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    """Read the requested rows of a file; batches may be empty."""
    # A file without an etag never changes.
    with checked_file(scan.files, file.path, version=file.etag or "") as opened:
        source = scan.assign_ids(opened.parquet.schema_arrow, file.path)  # as decoded: INT96 without its time zone
        groups = _matching_groups(scan, opened.footer, source)
        if scan.share is not None:  # row groups that are next to each other in the file
            number, shares = scan.share
            first, end = (groups.num_rows * place // shares for place in (number, number + 1))
            groups = groups.slice(first, end - first)
        if not groups.num_rows:
            return
        whole = _GroupReader(scan, file, opened, source)
        probe = _Probe(scan, file, opened, source) if _is_worth_probing(scan) else None
        opened.pages.expect(groups["row_group"].to_pylist())
        first_rows = min(scan.first_batch_rows or scan.batch_rows, scan.batch_rows)
        sizes = chain([first_rows], repeat(scan.batch_rows))
        places = zip(groups["row_group"].to_pylist(), groups["start"].to_pylist(), strict=True)
        for (group, start), size in zip(places, sizes, strict=False):
            if probe is None or probe.is_futile:
                yield from whole.rows(group, start, size)
            else:
                yield from probe.rows(group, start)


def matching_part(scan: Scan, path: str) -> MatchingPart | None:
    """How much of a file the filter leaves, from its footer; None for a file that is not on a local disk.

    A scan skips the same row groups. This tells in advance how many there are, so that no part of a scan is without any.
    """
    if not is_local(path):
        return None  # the footer would take a request, which the parts of the scan send at the same time
    with scan.files.translated(path), scan.files.open(path) as file:
        footer = read_footer(file, path, scan.files)
    if footer is None:
        return None  # the scan raises the error
    groups = _matching_groups(scan, footer, scan.assign_ids(footer.metadata.schema.to_arrow_schema(), path))
    chosen = [footer.metadata.row_group(number) for number in groups["row_group"].to_pylist()]
    sizes = (group.column(place).total_compressed_size for group in chosen for place in range(group.num_columns))
    return MatchingPart(len(chosen), sum(sizes))


@dataclass(frozen=True, slots=True)
class MatchingPart:
    """The row groups of a file that may have rows that match a filter: their number, and their size in the file."""

    row_groups: int
    size_bytes: int


def _matching_groups(scan: Scan, footer: Footer, source: pa.Schema) -> pa.Table:
    groups = cached_row_groups(footer, source, _filtered(scan), scan.files)
    return pruned(groups, scan.filter, scan.schema)


def _is_worth_probing(scan: Scan) -> bool:
    """Is there a filter, and are there columns that it does not need?"""
    return scan.filter is not None and scan.mask is not None and not scan.filter.columns.issuperset(scan.columns)


class _GroupReader:
    """Reads row groups of one file, with all columns of the scan."""

    def __init__(self, scan: Scan, file: DataFile, opened: CheckedFile, source: pa.Schema) -> None:
        self._scan, self._parquet, self._pages = scan, opened.parquet, opened.pages
        self._rows = FileRows(scan, file, source)

    def decoded(self, group: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Decode a row group in batches of `batch_rows`."""
        self._pages.check(group, self._rows.names)
        values = self._parquet.metadata.row_group(group).num_rows * len(self._rows.names)
        yield from self._parquet.iter_batches(
            batch_rows, row_groups=[group], columns=self._rows.names, use_threads=values > _FEW_VALUES
        )

    def rows(self, group: int, start: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read the requested rows of a row group whose first row is at position `start`; batches may be empty."""
        for batch in self.decoded(group, batch_rows):
            yield self._rows.requested(batch, start)
            start += batch.num_rows

    def matching(self, group: int, start: int) -> Iterator[Positions]:
        """The positions of the matching rows of a row group, for each batch of it."""
        for batch in self.decoded(group, self._scan.batch_rows):
            yield self._rows.matching(batch, start)
            start += batch.num_rows

    def conformed(self, batch: pa.RecordBatch, positions: pa.Array) -> pa.RecordBatch:
        """Convert rows of the file, which are at `positions`, to the schema of the table."""
        return self._rows.conformed(batch, positions)


class _Probe:
    """Reads row groups of one file for a filter that may match few rows.

    The columns of the filter are read first, and the others only up to the last matching row. Once every batch of a row
    group had matching rows, `is_futile` says that this does not pay.
    """

    def __init__(self, scan: Scan, file: DataFile, opened: CheckedFile, source: pa.Schema) -> None:
        self._scan = scan
        self._filtered = _GroupReader(replace(scan, columns=(), positions=False), file, opened, source)
        # Deleted rows are not among those that the filter matches.
        kept = replace(file, deleted=None, deleted_keys=())
        self._requested = _GroupReader(replace(scan, filter=None), kept, opened, source)
        self.is_futile = False

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """Read the matching rows of a row group."""
        found = list(self._filtered.matching(group, start))
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
    return [leaf for leaf in leaves(scan.schema) if leaf.path[0] in names] if names else []


_BYTES_PER_COLUMN = 200  # of a shape in the cache

_schemas: Final = Cache[bytes, pa.Schema](1000)
"""Schemas by their serialized form: files with the same columns share one, and what is derived from it."""


@dataclass(frozen=True)
class FileShape:
    """The columns of a file. `paths` and `physical_types` are those of its leaves, in the order of the file."""

    rows: int
    columns: pa.Schema
    paths: tuple[str, ...]
    physical_types: tuple[str, ...]

    @cached_property
    def has_standard_lists(self) -> bool:
        """Whether lists and maps are stored as the specification defines, which all readers understand alike.

        Older forms lack a level, so the paths of leaves are shorter than their types need.
        """
        depths = [depth for column in self.columns for depth in _depths(column.type)]
        return depths == [path.count(".") for path in self.paths]


def _depths(of: pa.DataType) -> Iterator[int]:
    """How many levels are below a column of this type, for each of its leaves."""
    plain = plain_type(of)
    if not plain.num_fields:
        yield 0
        return
    levels = 1 if pa.types.is_struct(plain) else 2
    fields = (
        [plain.key_field, plain.item_field]
        if pa.types.is_map(plain)
        else [plain.field(i) for i in range(plain.num_fields)]
    )
    for field in fields:
        yield from (levels + depth for depth in _depths(field.type))


def read_shape(files: Files, path: str, *, etag: str | None) -> FileShape:
    """Read the shape of a file from its footer, or return it from the cache; `etag` identifies the content."""

    def load() -> FileShape:
        with open_file(files, path) as parquet:
            stored = [parquet.metadata.schema.column(place) for place in range(len(parquet.metadata.schema))]
            columns = file_columns(parquet)
            return FileShape(
                parquet.metadata.num_rows,
                _schemas.get(columns.serialize().to_pybytes(), lambda: columns),
                tuple(each.path for each in stored),
                tuple(each.physical_type for each in stored),
            )

    return files.cached(
        "parquet shape", path, etag, load=load, size_of=lambda shape: _BYTES_PER_COLUMN * (len(shape.paths) + 1)
    )

"""Stream the rows of Parquet files.

Row groups that the filter cannot match are skipped, and only a few batches are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from skiway.airport.layouts import without_views
from skiway.formats.files import Files, corrupt
from skiway.formats.parquet.footers import read_footer, row_groups
from skiway.formats.parquet.pages import PageCheck, PageGuard
from skiway.formats.pruning import pruned
from skiway.formats.scanning import ROW_POSITION, DataFile, FileRows, Positions, Scan
from skiway.formats.schemas import Leaf, leaves
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

__all__ = ["open_file", "parquet_batches"]

_BUFFER_BYTES: Final = 1 << 20  # to read ahead per column, instead of a whole row group


@contextmanager
def open_file(files: Files, path: str) -> Iterator[ParquetFile]:
    """Open a Parquet file for the duration of the block; errors in the block name the file."""
    with files.translated(path), files.open(path) as file:
        yield _parquet(files, path, file)


@contextmanager
def _open_checked(files: Files, path: str) -> Iterator[tuple[ParquetFile, PageCheck]]:
    """Open a Parquet file as `open_file` does, with the check of its pages."""
    with files.translated(path), files.open(path) as file:
        if _is_local(path):
            parquet, pages = _parquet(files, path, file), PageCheck(file, path)
        else:
            pages = PageGuard(file, path)
            parquet = _parquet(files, path, file, through=pa.PythonFile(pages, "r"))
        pages.set_footer(parquet.metadata)
        yield parquet, pages


def _is_local(path: str) -> bool:
    return location(path).scheme == "file"


def _parquet(files: Files, path: str, file: pa.NativeFile, *, through: pa.NativeFile | None = None) -> ParquetFile:
    """Open a Parquet file whose footer is valid; pages are read `through` another file, if it is given."""
    from pyarrow.parquet import ParquetFile

    try:
        # As nanoseconds, INT96 timestamps would overflow outside of the years 1677 to 2262.
        return ParquetFile(
            file if through is None else through,
            metadata=read_footer(file, path, files),
            buffer_size=_BUFFER_BYTES,
            coerce_int96_timestamp_unit="us",
        )
    except NotImplementedError as error:
        raise corrupt(path, str(error)) from error


def parquet_batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    """Read the requested rows of a file; batches may be empty."""
    with _open_checked(scan.files, file.path) as (parquet, pages):
        source = scan.assign_ids(parquet.schema_arrow, file.path)  # as decoded: INT96 without its time zone
        groups = pruned(row_groups(parquet.metadata, source, _filtered(scan)), scan.filter, scan.schema)
        groups = groups if scan.share is None else _shared(groups, *scan.share)
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
        self._scan, self._parquet, self._pages = scan, parquet, pages
        self._rows = FileRows(scan, file, source)

    def decoded(self, group: int, batch_rows: int = 0) -> Iterator[pa.RecordBatch]:
        """Decode the batches of a row group; `batch_rows` overrides the batch size of the scan."""
        rows = batch_rows or self._scan.batch_rows
        self._pages.check(group, self._rows.names)
        yield from self._parquet.iter_batches(rows, row_groups=[group], columns=self._rows.names)

    def rows(self, group: int, start: int) -> Iterator[pa.RecordBatch]:
        """Read the requested rows of a row group whose first row is at position `start`; batches may be empty."""
        for batch in self.decoded(group):
            yield self._rows.requested(batch, start)
            start += batch.num_rows

    def conformed(self, batch: pa.RecordBatch, positions: pa.Array) -> pa.RecordBatch:
        """Convert rows of the file, which are at `positions`, to the schema of the table."""
        return self._rows.conformed(batch, positions)


class _Probe:
    """Reads row groups of one file for a filter that may match few rows.

    The columns of the filter are read first, and the others only up to the last matching row. Once every batch of a row
    group had matching rows, `is_futile` says that this does not pay.
    """

    def __init__(self, scan: Scan, file: DataFile, parquet: ParquetFile, source: pa.Schema, pages: PageCheck) -> None:
        self._scan = scan
        self._filtered = _GroupReader(replace(scan, columns=(), positions=True), file, parquet, source, pages)
        # Deleted rows are not among those that the filter matches.
        kept = replace(file, deleted=None, deleted_keys=())
        self._requested = _GroupReader(replace(scan, filter=None), kept, parquet, source, pages)
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


def _shared(groups: pa.Table, number: int, shares: int) -> pa.Table:
    """A share of the row groups, which are next to each other in the file."""
    first, end = (groups.num_rows * place // shares for place in (number, number + 1))
    return groups.slice(first, end - first)


def _filtered(scan: Scan) -> list[Leaf]:
    names = scan.filter.columns if scan.filter else frozenset()
    return [leaf for leaf in leaves(scan.schema) if leaf.path[0] in names]

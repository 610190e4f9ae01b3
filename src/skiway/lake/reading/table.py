"""A table of the lake as clients read it: its plans, rows and statistics. `state` decides which state of it they read.

DuckDB's client can run a scan itself: it gets the files that a filter leaves, instead of their rows.

The property `scan.mode` of a catalog selects who reads: `server` (the default), `client`, or `auto`. The client gets no
files that it would read differently than the server: files with deleted rows, or in which columns have other names, types
or places. It gets no files that it cannot reach, either: the warehouse is on a disk, so it has to be on this machine.

The client's reader gets the requested columns, but no filter. So `auto` lets the client read only without a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import (
    ColumnStatistics,
    FunctionCall,
    HasStatistics,
    Planned,
    Request,
    ScanOptions,
    Table,
    current_request,
)
from skiway.airport.tables import with_parsed_filter
from skiway.errors import Unsupported
from skiway.formats import MatchingPart, Snapshot, TableHandle, WholeFile
from skiway.formats.schemas import field_id
from skiway.lake.context import unit_of_work
from skiway.lake.policies import OriginalRows, RestrictedRows, pruning_filter
from skiway.lake.reading.columns import ROWID, Columns, with_nulls
from skiway.lake.reading.opened_tables import AppendedRange
from skiway.lake.reading.scans import (
    MAX_FILES,
    MAX_PARTS,
    MAX_REMOTE_FILES,
    Part,
    Plan,
    RowIds,
    WithRowIds,
    file_groups,
    is_direct,
    is_nested,
    numbered,
    split,
    without_empty,
)
from skiway.lake.reading.state import TableInCall
from skiway.lake.reading.statistics import in_type
from skiway.metastore import statistics
from skiway.metastore.resources.catalogs import SCAN_MODE, ScanMode
from skiway.model import v1
from skiway.sandbox.relations import FileGroup
from skiway.sql import CountsRows, DirectFiles

_LOCAL: Final = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127.")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
_PATTERN: Final = frozenset("*?[]{}")
"""DuckDB takes a path with one of these characters for a pattern of paths."""


def scan_mode(catalog: v1.Catalog) -> ScanMode:
    """Who reads the tables of a catalog."""
    return cast(ScanMode, catalog.properties.get(SCAN_MODE, "server"))


def may_read_files(mode: ScanMode, options: ScanOptions, request: Request) -> bool:
    """Whether the client should read the files of this scan itself, as far as the request tells."""
    if mode == "server" or options.columns is None or ROWID in options.columns:
        return False
    return _is_local(request) and (mode == "client" or not options.filter)


def _is_local(request: Request) -> bool:
    """Whether the client is on this machine. A proxy on this machine says for whom it calls."""
    return request.peer.startswith(_LOCAL) and not any(request.header(name) for name in _FORWARDED)


def _has(columns: Columns, file: WholeFile) -> bool:
    """Whether a file has these columns, with the same ids, names and types."""
    there = [(number, field.name, field.type) for number, field in file.columns.items()]
    return all((field_id(field), field.name, field.type) in there for field in columns.stored)


def file_calls(
    columns: Columns, handle: TableHandle, snapshot: Snapshot, parts: Sequence[pa.Table]
) -> list[FunctionCall] | None:
    """The calls with which the client reads the files of each part; None if it would not read what the server does."""
    if len(columns.wanted) or not all(is_direct(each) and not is_nested(each.type) for each in columns.stored):
        return None
    calls = []
    for part in parts:
        files = handle.plain_files(snapshot, part)
        if not files or not all(_has(columns, each) and _PATTERN.isdisjoint(each.path) for each in files):
            return None
        calls.append(FunctionCall("read_parquet", [each.path for each in files], hive_partitioning=False))
    return calls


BATCH_ROWS = 65_536
FIRST_BATCH_ROWS = 16_384
"""Of a scan without a filter: a client that needs only a few rows ends it after the first batch, for which the server decodes
1.5 instead of 6 MB."""


class LakeTable(TableInCall, Planned, HasStatistics, DirectFiles, CountsRows):
    """A table that clients read. Files are planned and read for each call."""

    _expected_rows: int | None = None

    def _restricted_rows(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """The rows that policies leave. Files are pruned by row filters and, without any, by harmless conditions."""
        assert self.restriction is not None
        part, other = None if options.part is None else Part.unpacked(options.part), self._like()
        pruning = pruning_filter(options, self.restriction, self._masked)

        def original(wanted: ScanOptions) -> Iterator[pa.RecordBatch]:
            return other.original(with_parsed_filter(replace(wanted), pruning) if pruning else wanted, part)

        has_ids = not self.restriction.filters  # the positions of rows would tell how many are hidden
        base = (WithRowIds if has_ids else OriginalRows)(self.name, self.columns.announced, original)
        return self._policed(base).rows(options)

    def _policed(self, base: Table) -> RestrictedRows:
        assert self.restriction is not None
        place = (self._catalog, self._schema_name, self.name)
        return RestrictedRows(self._context, self.restriction, base, place, self.columns.stored)

    # -- reading ------------------------------------------------------------------------------------------------------

    def plan(self, options: ScanOptions) -> Sequence[bytes | FunctionCall]:
        """The files to read, in parts of about the same size, all of one snapshot."""
        mode = self._scan_mode if may_read_files(self._scan_mode, options, current_request()) else "server"
        return [part.packed() if isinstance(part, Part) else part for part in self._parts(options, mode)]

    def _parts(self, options: ScanOptions, mode: ScanMode) -> Sequence[Part | FunctionCall]:
        self._context.callers.require("table.read", self.record)
        snapshot = self._snapshot()
        if snapshot is None:
            return []
        if self._is_hidden:  # the number of parts, and what is pruned, would tell about hidden rows
            self._log_plan(options, snapshot, self.files(snapshot), 1)
            return [Part(snapshot.id, [])]
        handle = self._opened.at(snapshot)
        chosen = self._chosen_files(snapshot, options, self._readable(snapshot))
        most = self._context.max_parts
        if mode != "server" and self.restriction is None:  # files have all rows and columns
            groups = [part.of(chosen) for part in split(snapshot.id, chosen, part_bytes=1, most=most)]
            calls = file_calls(self.columns, handle, snapshot, groups)
            if calls is not None:
                self._log_plan(options, snapshot, chosen, len(calls), reader="client")
                return calls
        part_bytes = self._context.part_bytes
        matching = self._matching_parts(snapshot, chosen, options)
        chosen = without_empty(chosen, matching)
        parts = split(snapshot.id, chosen, part_bytes=part_bytes, most=most, within_files=True, matching=matching)
        self._log_plan(options, snapshot, chosen, len(parts))
        return parts

    def _matching_parts(self, snapshot: Snapshot, chosen: pa.Table, options: ScanOptions) -> Mapping[int, MatchingPart]:
        """How much of the chosen files the filter leaves, if that saves parts without matching rows.

        A part without matching rows costs the client 5 ms. A lookup in a file of 100 MiB had three of them.
        """
        if not options.filter or chosen.num_rows > MAX_PARTS:
            return {}
        size = pc.sum(chosen["size_bytes"], min_count=0).as_py()
        is_parquet = pc.all(pc.equal(chosen["format"], "parquet"), min_count=0).as_py()
        if not is_parquet or size <= self._context.part_bytes:
            return {}
        handle = self._opened.at(snapshot)
        return handle.matching_parts(snapshot, chosen, options.filter, schema=self._readable(snapshot))

    def scan(self, options: ScanOptions) -> pa.RecordBatchReader | Iterator[pa.RecordBatch]:
        """The rows of one part, or of all."""
        self._context.callers.require("table.read", self.record)
        if self._is_hidden:
            return self._restricted_rows(options)
        given = None if options.part is None else Part.unpacked(options.part)
        if given is not None:
            return self._read(given, options) if given.ordinals else self.original(options, given)
        parts = self._parts(options, "server")
        return (batch for part in parts if isinstance(part, Part) for batch in self._read(part, options))

    def original(self, options: ScanOptions, part: Part | None) -> Iterator[pa.RecordBatch]:
        """The rows as they are stored, for policies to be applied: those of a part, or of the current snapshot."""
        if part is not None and part.ordinals:
            yield from self._read(part, options)
            return
        snapshot = self._snapshot() if part is None else self._planned(part.snapshot_id)
        if snapshot is not None:
            chosen = self._chosen_files(snapshot, options, self._readable(snapshot))
            for each in split(snapshot.id, chosen):
                yield from self._read(each, options)

    def _chosen_files(self, snapshot: Snapshot, options: ScanOptions, schema: pa.Schema) -> pa.Table:
        """The files to read: those that the filter leaves, and of a range of snapshots only the appended ones."""
        chosen = self._opened.at(snapshot).plan(snapshot, options.filter or None, schema=schema)
        return chosen if self._range is None else self._range.appended(self._opened, chosen)

    @property
    def _range(self) -> AppendedRange | None:
        """The range of snapshots to read; None for a single snapshot."""
        if self._point is None or self._point.unit == "timestamp" or self._point.value in self._opened.handle.refs:
            return None
        return AppendedRange.parse(self._point.value)

    def direct_files(self, options: ScanOptions) -> list[FileGroup] | None:
        """The files for DuckDB to read in a query on the server, if it reads them as `scan` does."""
        self._context.callers.require("table.read", self.record)
        snapshot = self._snapshot()
        if self._is_hidden or snapshot is None or len(self.columns.wanted):
            return None
        if not all(map(is_direct, self.columns.stored)):
            return None  # without a plan, which a scan makes
        readable = self._readable(snapshot)
        handle = self._opened.at(snapshot)
        chosen = self._chosen_files(snapshot, options, readable)
        has_all = len(readable) == len(self.columns.stored) and chosen.num_rows <= MAX_FILES
        files = handle.whole_files(snapshot, chosen, max_remote=MAX_REMOTE_FILES) if has_all else None
        groups = None if files is None else file_groups(readable, files)
        if groups is not None:
            self._log_plan(options, snapshot, chosen, 1)
        return groups

    def counted_rows(self) -> int | None:
        """The number of rows, from the metadata; None if deletes have to be read, or policies hide rows."""
        self._context.callers.require("table.read", self.record)
        snapshot = self._snapshot()
        if self._is_hidden or self._range is not None:
            return None
        if snapshot is None:
            return 0
        totals = self._opened.totals(snapshot)
        if totals.rows is not None:
            self._log_plan(ScanOptions(columns=[]), snapshot, None, 0)
        return totals.rows

    def row_count(self) -> int | None:
        """The number of rows of the part that is read; None before a scan, and if policies hide some of them."""
        return self._expected_rows

    def _read(self, part: Part, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        snapshot = self._planned(part.snapshot_id)
        handle = self._opened.at(snapshot)
        all_files = handle.files(snapshot)
        files = part.of(all_files)
        shares = 1 if part.share is None else part.share[1]
        self._expected_rows = pc.sum(files["row_count"], min_count=0).as_py() // shares
        wanted = self.schema.names if options.columns is None else options.columns
        readable = self._readable(snapshot)
        there = frozenset(readable.names)
        rows = handle.read(
            snapshot,
            columns=[name for name in wanted if name in there],
            filter=options.filter or None,
            files=files,
            schema=readable,
            positions=ROWID in wanted,
            batch_rows=BATCH_ROWS,
            first_batch_rows=None if options.filter else FIRST_BATCH_ROWS,
            share=part.share,
        )
        identified = numbered(rows, RowIds.of(self.id, snapshot.id, all_files)) if ROWID in wanted else iter(rows)
        if len(self.columns.wanted):
            identified = (self.columns.shown(batch, table=self.name) for batch in identified)
        gone = [self.schema.field(name) for name in wanted if name != ROWID and name not in there]
        return with_nulls(identified, gone) if gone else identified

    def _log_plan(
        self, options: ScanOptions, snapshot: Snapshot, chosen: pa.Table | None, parts: int, *, reader: str = "server"
    ) -> None:
        """Record which files a scan reads; without `chosen`, none."""
        totals = self._opened.totals(snapshot)
        callers, plans = self._context.callers, self._context.plans
        size: int = 0 if chosen is None else pc.sum(chosen["size_bytes"], min_count=0).as_py()
        self._context.usage.read(
            self._realm,
            self.id,
            caller=callers.authenticated.subject,
            unit=unit_of_work(current_request()),
            columns=self.columns.stored.names if options.columns is None else options.columns,
            size_bytes=size,
        )
        plans.add(
            Plan(
                account_id=self._realm.account_id,
                planned_at=plans.clock(),
                subject=callers.authenticated.subject,
                catalog=self._catalog,
                schema_name=self._schema_name,
                table_name=self.name,
                snapshot_id=snapshot.id,
                filter=options.json_filters,
                columns=options.columns,
                files_considered=totals.files,
                files_read=0 if chosen is None else chosen.num_rows,
                bytes_considered=totals.size_bytes,
                bytes_read=size,
                endpoints=parts,
                reader=reader,
            )
        )

    # -- statistics ---------------------------------------------------------------------------------------------------

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:  # noqa: ARG002
        """The statistics of the column in the snapshot that the transaction reads, which is pinned by this call."""
        if self.restriction is not None and (self.restriction.filters or column in self._masked):
            return ColumnStatistics()
        if self._listing:
            return self._announceable
        self._context.callers.require("table.read", self.record)
        snapshot = self._snapshot()
        if snapshot is None:
            return ColumnStatistics(has_not_null=False)
        if self._range is not None:
            return ColumnStatistics()
        found = self._context.statistics.of(
            self._realm, self.id, snapshot, self.columns, handle=lambda: self._opened.at(snapshot)
        )
        return in_type(found[column], self.columns.stored.field(column), self.schema.field(column))

    @cached_property
    def _announceable(self) -> ColumnStatistics:
        """The statistics in a listing, which only say that statistics exist.

        Files have bounds, of mirrored tables as well as of managed ones.
        """
        has_files = self.record.metadata_location or self.record.upstream.HasField("connector_id")
        if not has_files and not statistics.has_column_statistics(self._realm, self.id):
            raise Unsupported(f"table {self.name!r} has no statistics yet")
        return ColumnStatistics(has_not_null=False)

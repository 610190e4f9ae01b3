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
from typing import Final, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import (
    Bindable,
    ColumnStatistics,
    FunctionCall,
    HasStatistics,
    Planned,
    Request,
    ScanOptions,
    Table,
    TimePoint,
    TimeTravel,
    current_request,
    filters,
)
from skiway.airport.tables import ArrowData, CountedBatches, with_parsed_filter
from skiway.errors import Unsupported
from skiway.formats import MatchingPart, Snapshot, TableHandle, WholeFile
from skiway.formats.schemas import field_id
from skiway.lake.context import unit_of_work
from skiway.lake.policies import RestrictedRows, pruning_filter, with_optional
from skiway.lake.reading import scans
from skiway.lake.reading.columns import ROWID, Columns, in_type, with_nulls
from skiway.lake.reading.scans import Part, Plan, RowIds
from skiway.lake.reading.state import TableInCall, TableState
from skiway.metastore import tables
from skiway.metastore.queries.history import POLICIES, TableRead
from skiway.metastore.resources.catalogs import SCAN_MODE, ScanMode
from skiway.model import v1
from skiway.sandbox.relations import FileGroup
from skiway.sql import CountsRows, DirectFiles
from skiway.sql.measures import current_measures

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
    if len(columns.wanted) or not all(
        scans.is_direct(each) and not scans.is_nested(each.type) for each in columns.stored
    ):
        return None
    calls = []
    for part in parts:
        files = handle.plain_files(snapshot, part)
        if not files or not all(_has(columns, file) and _PATTERN.isdisjoint(file.path) for file in files):
            return None
        calls.append(FunctionCall("read_parquet", [file.path for file in files], hive_partitioning=False))
    return calls


BATCH_ROWS = 65_536
FIRST_BATCH_ROWS = 16_384
"""Of a scan without a filter: a client that needs only a few rows ends it after the first batch, for which the server decodes
1.5 instead of 6 MB."""


class LakeTable(Table, TimeTravel, Bindable, Planned, HasStatistics, DirectFiles, CountsRows):
    """A table that clients read. Every method finds out which state of the table its call reads."""

    def __init__(self, known: TableInCall) -> None:
        self.known = known
        self.name, self.comment = known.name, known.comment

    @property
    def schema(self) -> pa.Schema:
        """The columns as they were announced to the client."""
        return announced_schema(self.known)

    def binding(self) -> str:
        """The table's id and that of its schema."""
        return self.known.binding

    def bound(self, binding: str) -> Self:
        """The table as a client with this binding knows it."""
        return type(self)(self.known.bound(binding))

    def at(self, point: TimePoint) -> Self:
        """The table at a point in time, with the columns that it had then."""
        return type(self)(self.known.at(point))

    def plan(self, options: ScanOptions) -> Sequence[bytes | FunctionCall]:
        """The files to read, in parts of about the same size, all of one snapshot."""
        mode = self.known.scan_mode if may_read_files(self.known.scan_mode, options, current_request()) else "server"
        state = self._state()
        planned = [] if state is None else parts(state, options, mode)
        return [part.packed() if isinstance(part, Part) else part for part in planned]

    def scan(self, options: ScanOptions) -> ArrowData:
        """The rows of one part, or of all."""
        self._require_read()
        if self.known.is_hidden:
            return restricted_rows(self.known, options)
        part = None if options.part is None else Part.unpacked(options.part)
        if part is None:
            state = self.known.state()
            return () if state is None else all_rows(state, parts(state, options, "server"), options)
        state = self.known.planned_state(part.snapshot_id)
        return part_rows(state, part, options) if part.ordinals else original_rows(state, options)

    def direct_files(self, options: ScanOptions) -> list[FileGroup] | None:
        """The files for DuckDB to read in a query on the server, if it reads them as `scan` does."""
        state = self._state()
        if self.known.is_hidden or state is None or len(self.known.columns.wanted):
            return None
        return whole_files(state, options)

    def counted_rows(self) -> int | None:
        """The number of rows, from the metadata; None if deletes have to be read, or policies hide rows."""
        state = self._state()
        if self.known.is_hidden or (state is not None and state.range is not None):
            return None
        if state is None:
            return 0
        totals = state.opened.totals(state.snapshot)
        if totals.rows is not None:
            log_plan(state, ScanOptions(columns=[]), None, 0)
        return totals.rows

    @property
    def offers_statistics(self) -> bool:
        """Whether clients are told to ask for the statistics of the columns."""
        return tables.offers_statistics(self.known.record, self.known.inherited_offer)

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:  # noqa: ARG002
        """The statistics of the column in the snapshot that the transaction reads, which is pinned by this call."""
        known = self.known
        if known.restriction is not None and (known.restriction.filters or column in known.masked):
            return ColumnStatistics()
        if known.is_listing:
            return announced_statistics(known)
        state = self._state()
        if state is None:
            return ColumnStatistics(has_not_null=False)
        if state.range is not None:
            return ColumnStatistics()
        by_name = known.context.statistics.of(
            known.realm, known.id, state.snapshot, known.columns, handle=lambda: state.handle
        )
        return in_type(by_name[column], known.columns.stored.field(column), self.schema.field(column))

    def _require_read(self) -> None:
        self.known.context.callers.require("table.read", self.known.record)

    def _state(self) -> TableState | None:
        self._require_read()
        return self.known.state()


def announced_schema(table: TableInCall) -> pa.Schema:
    """The columns as they were announced to the client. Those with a mask may be NULL."""
    announced, masked = table.columns.announced, table.masked
    return with_optional(announced, masked) if masked else announced


# -- scans ----------------------------------------------------------------------------------------------------------------


def parts(state: TableState, options: ScanOptions, mode: ScanMode) -> Sequence[Part | FunctionCall]:
    """The parts of a scan, or the calls with which the client reads the files itself."""
    table, snapshot = state.table, state.snapshot
    if table.is_hidden:  # the number of parts, and what is pruned, would tell about hidden rows
        log_plan(state, options, state.files, 1)
        return [Part(snapshot.id, [])]
    readable = state.readable()
    files = _chosen_files(state, options, readable)
    most, part_bytes = table.context.max_parts, table.context.part_bytes
    if mode != "server" and table.restriction is None:  # files have all rows and columns
        groups = [part.of(files) for part in scans.split(snapshot.id, files, part_bytes=1, most=most)]
        calls = file_calls(table.columns, state.handle, snapshot, groups)
        if calls is not None:
            log_plan(state, options, files, len(calls), reader="client")
            return calls
    matching = _matching_parts(state, files, options, readable)
    files = scans.without_empty(files, matching)
    planned = scans.split(snapshot.id, files, part_bytes=part_bytes, most=most, within_files=True, matching=matching)
    log_plan(state, options, files, len(planned))
    return planned


def _chosen_files(state: TableState, options: ScanOptions, readable: pa.Schema) -> pa.Table:
    """The files to read: those that the filter leaves, and of a range of snapshots only the appended ones."""
    files = state.handle.plan(state.snapshot, options.filter or None, schema=readable)
    appended = state.range
    return files if appended is None else appended.appended(state.opened, files)


def _matching_parts(
    state: TableState, files: pa.Table, options: ScanOptions, readable: pa.Schema
) -> Mapping[int, MatchingPart]:
    """How much of the chosen files the filter leaves, if that saves parts without matching rows.

    A part without matching rows costs the client 5 ms. A lookup in a file of 100 MiB had three of them.
    """
    if not options.filter or files.num_rows > scans.MAX_PARTS:
        return {}
    size = pc.sum(files["size_bytes"], min_count=0).as_py()
    is_parquet = pc.all(pc.equal(files["format"], "parquet"), min_count=0).as_py()
    if not is_parquet or size <= state.table.context.part_bytes:
        return {}
    return state.handle.matching_parts(state.snapshot, files, options.filter, schema=readable)


def all_rows(
    state: TableState, planned: Sequence[Part | FunctionCall], options: ScanOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of all parts, which are read one after the other."""
    return (batch for part in planned if isinstance(part, Part) for batch in part_rows(state, part, options))


def original_rows(state: TableState, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """The rows as they are stored, for policies to be applied."""
    files = _chosen_files(state, options, state.readable())
    return all_rows(state, scans.split(state.snapshot.id, files), options)


def part_rows(state: TableState, part: Part, options: ScanOptions) -> CountedBatches:
    """The rows of a part, in the columns that the client knows."""
    table, snapshot, handle = state.table, state.snapshot, state.handle
    all_files = handle.files(snapshot)
    files = part.of(all_files)
    shares = 1 if part.share is None else part.share[1]
    schema = announced_schema(table)
    wanted = schema.names if options.columns is None else options.columns
    readable = state.readable()
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
    batches = scans.numbered(rows, RowIds.of(table.id, snapshot.id, all_files)) if ROWID in wanted else iter(rows)
    if len(table.columns.wanted):
        batches = (table.columns.shown(batch, table=table.name) for batch in batches)
    gone = [schema.field(name) for name in wanted if name != ROWID and name not in there]
    expected = pc.sum(files["row_count"], min_count=0).as_py() // shares
    return CountedBatches(with_nulls(batches, gone) if gone else batches, expected)


def whole_files(state: TableState, options: ScanOptions) -> list[FileGroup] | None:
    """The files for DuckDB to read, if it reads them as a scan does."""
    columns, snapshot = state.table.columns.stored, state.snapshot
    if not all(map(scans.is_direct, columns)):
        return None  # without a plan, which a scan makes
    readable = state.readable()
    chosen = _chosen_files(state, options, readable)
    has_all = len(readable) == len(columns) and chosen.num_rows <= scans.MAX_FILES
    files = state.handle.whole_files(snapshot, chosen, max_remote=scans.MAX_REMOTE_FILES) if has_all else None
    groups = None if files is None else scans.file_groups(readable, files)
    if groups is not None:
        log_plan(state, options, chosen, 1)
    return groups


def log_plan(
    state: TableState, options: ScanOptions, files: pa.Table | None, parts: int, *, reader: str = "server"
) -> None:
    """Record which files a scan reads; without `files`, none."""
    table, context = state.table, state.table.context
    totals = state.opened.totals(state.snapshot)
    subject = context.callers.authenticated.subject
    size: int = 0 if files is None else pc.sum(files["size_bytes"], min_count=0).as_py()
    context.usage.read(
        table.realm,
        table.id,
        caller=subject,
        unit=unit_of_work(current_request()),
        columns=table.columns.stored.names if options.columns is None else options.columns,
        size_bytes=size,
    )
    if context.callers.bound is None:  # the tables of a view with definer rights are none of the caller's business
        current_measures().reads.append(
            TableRead(
                table_id=table.id,
                name=_full_name(table),
                filter=(filters.to_sql(options.filter) or "") if options.filter else "",
                columns=options.columns,
                snapshot_id=state.snapshot.id,
                files_considered=totals.files,
                files_read=0 if files is None else files.num_rows,
                bytes_considered=totals.size_bytes,
                bytes_read=size,
                reader=reader,
            )
        )
    context.plans.add(
        Plan(
            account_id=table.realm.account_id,
            planned_at=context.plans.clock(),
            subject=subject,
            catalog=table.catalog,
            schema_name=table.schema_name,
            table_name=table.name,
            snapshot_id=state.snapshot.id,
            filter=options.json_filters,
            columns=options.columns,
            files_considered=totals.files,
            files_read=0 if files is None else files.num_rows,
            bytes_considered=totals.size_bytes,
            bytes_read=size,
            endpoints=parts,
            reader=reader,
        )
    )


def _full_name(table: TableInCall) -> str:
    return f"{table.catalog}.{table.schema_name}.{table.name}"


# -- policies -------------------------------------------------------------------------------------------------------------


def restricted_rows(table: TableInCall, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """The rows that policies leave. Files are pruned by row filters and, without any, by harmless conditions."""
    assert table.restriction is not None
    if table.context.callers.bound is None:
        current_measures().reads.append(TableRead(table.id, _full_name(table), reader=POLICIES))
    part = None if options.part is None else Part.unpacked(options.part)
    pruning = pruning_filter(options, table.restriction, table.masked)

    def original(wanted: ScanOptions) -> Iterator[pa.RecordBatch]:
        state = table.state() if part is None else table.planned_state(part.snapshot_id)
        if state is not None:
            pruned = with_parsed_filter(replace(wanted), pruning) if pruning else wanted
            yield from part_rows(state, part, pruned) if part and part.ordinals else original_rows(state, pruned)

    has_ids = not table.restriction.filters  # the positions of rows would tell how many are hidden
    base = (scans.with_row_ids if has_ids else scans.ScannedTable)(table.name, table.columns.announced, original)
    return under_policies(table, base).rows(options)


def under_policies(table: TableInCall, base: Table) -> RestrictedRows:
    """Reads `base`, which has the rows of the table, as policies show it."""
    assert table.restriction is not None
    name = (table.catalog, table.schema_name, table.name)
    return RestrictedRows(table.context, table.restriction, base, name, table.columns.stored)


# -- statistics -----------------------------------------------------------------------------------------------------------


def announced_statistics(table: TableInCall) -> ColumnStatistics:
    """The statistics in a listing, which only say that statistics exist."""
    if not table.has_statistics:
        raise Unsupported(f"table {table.name!r} has no statistics yet")
    return ColumnStatistics(has_not_null=False)

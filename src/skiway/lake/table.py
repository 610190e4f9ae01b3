"""A table of the lake as clients read it: managed or mirrored, in its current state or at a point in time (`time_travel`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import (
    Bindable,
    ColumnStatistics,
    FunctionCall,
    HasStatistics,
    Planned,
    ScanOptions,
    Table,
    TimePoint,
    TimeTravel,
    current_request,
)
from skiway.airport.conversion import to_column
from skiway.airport.scan import with_parsed_filter
from skiway.airport.server.bindings import table_changed
from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.formats import FILE_ORDINAL, ROW_POSITION, MatchingPart, OpenedTable, Snapshot, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.schemas import field_id
from skiway.lake.bindings import Binding
from skiway.lake.client_scans import file_calls, may_read_files
from skiway.lake.columns import ROWID, Columns, columns_of
from skiway.lake.context import Context
from skiway.lake.direct_files import MAX_FILES, MAX_REMOTE_FILES, file_groups, is_direct
from skiway.lake.policies import OriginalRows, RestrictedRows, masked_columns, pruning_filter, with_optional
from skiway.lake.row_ids import RowIds, WithRowIds
from skiway.lake.scans import MAX_PARTS, Part, Plan, split
from skiway.lake.time_travel import AppendedRange, snapshot_at, snapshot_with_id
from skiway.lake.transactions import is_explicit
from skiway.lake.usage import unit_of_work
from skiway.metastore import Realm, snapshots, statistics
from skiway.metastore.records.policies import Restriction
from skiway.metastore.resources.catalogs import ScanMode
from skiway.metastore.transactions.combined_writes import TransactionState
from skiway.model import v1
from skiway.sandbox.relations import FileGroup
from skiway.sql import CountsRows, DirectFiles

__all__ = ["LakeTable"]


BATCH_ROWS = 65_536
FIRST_BATCH_ROWS = 16_384
"""Of a scan without a filter: a client that needs only a few rows ends it after the first batch, for which the server decodes
1.5 instead of 6 MB."""
COMMIT_TIME = timedelta(minutes=1)
"""Longer than a commit takes from the time in its record to the moment when others see it."""


class LakeTable(Table, TimeTravel, Planned, Bindable, HasStatistics, DirectFiles, CountsRows):
    """A table, for the duration of one call. `columns` are those that the client knows, by default the current ones."""

    def __init__(
        self,
        context: Context,
        record: v1.Table,
        *,
        catalog: str,
        schema_name: str,
        listing: bool = False,
        columns: Columns | None = None,
        scan_mode: ScanMode = "server",
    ) -> None:
        self.name = record.display_name
        self.comment = record.description
        self.record = record
        self._context = context
        self._catalog, self._schema_name = catalog, schema_name
        self._listing, self._scan_mode = listing, scan_mode
        self.is_created_by_caller = False
        self._columns = columns
        self._point: TimePoint | None = None
        self._expected_rows: int | None = None

    @property
    def id(self) -> str:
        """The table's id, which does not change when the table is renamed."""
        return self.record.resource_id.id

    # -- columns ------------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The columns that this client knows."""
        if self._columns is None:  # kept, because looking them up takes as long as their description is wide
            self._columns = columns_of(self.record.schema_json)
        return self._columns

    @property
    def schema(self) -> pa.Schema:
        """The columns as they were announced to the client."""
        announced = self.columns.announced
        masked = self._masked
        return with_optional(announced, masked) if masked else announced

    # -- policies -----------------------------------------------------------------------------------------------------

    @cached_property
    def restriction(self) -> Restriction | None:
        """What policies leave of the table for the caller; None if none restricts it."""
        return self._context.callers.restriction(self.record)

    @property
    def _masked(self) -> Mapping[str, v1.Policy]:
        """The policies that mask columns that the client knows, by their names."""
        return masked_columns(self.restriction, self.columns.stored) if self.restriction else {}

    @property
    def _is_hidden(self) -> bool:
        """Whether the caller must not see some rows or values, so that only `_restricted_rows` may read them."""
        return self.restriction is not None and bool(
            self.restriction.filters or self.restriction.missing or self._masked
        )

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

    def binding(self) -> str:
        """The table's id and that of its schema."""
        now = self.columns
        found = self._context.columns(self.id, now.id, lambda: replace(now, wanted=pa.schema([])))
        return str(Binding(self.id, found.id, now.wanted if self.is_created_by_caller else None))

    def bound(self, binding: str) -> Self:
        """The table as a client with this binding knows it."""
        table_id, columns_id, created = Binding.split(binding)
        if table_id != self.id:
            raise table_changed(self.name, "it was replaced by another of the same name")
        known = self._context.columns(self.id, columns_id, lambda: self._known_columns(columns_id))
        if created is None:
            return self._like(columns=known)
        # Always the same object, because what is derived from it is as large as the table is wide.
        as_created = self._context.columns(
            self.id, binding, lambda: replace(known, wanted=Binding.parse(binding).wanted or pa.schema([]))
        )
        return self._like(columns=as_created, created=True)

    def created_as(self, given: pa.Schema) -> Self:
        """The table as the client knows it that has just created it with the columns `given`."""
        return self._like(columns=self.columns.created_as(given), created=True)

    def at(self, point: TimePoint) -> Self:
        """The table at a point in time, with the columns that it had then."""
        then = self._like(point=point)
        snapshot = then._snapshot()
        assert snapshot is not None  # a point without a snapshot is an error
        columns = columns_of(then._opened.at(snapshot).schema_at(snapshot).json)
        then._columns = replace(columns, wanted=self.columns.wanted)
        return then

    def _like(self, *, columns: Columns | None = None, point: TimePoint | None = None, created: bool = False) -> Self:
        other = copy.copy(self)
        other._columns = columns or self._columns
        other._point = point or self._point
        other.is_created_by_caller = created or self.is_created_by_caller
        return other

    def _known_columns(self, columns_id: str) -> Columns:
        """Columns that another server announced, or that are no longer in the cache."""
        for schema_json in self._schemas():
            found = columns_of(schema_json)
            if found.id == columns_id:
                return found
        raise table_changed(self.name, "its schema at the time of ATTACH is no longer known")

    def _schemas(self) -> Iterator[str]:
        from skiway.formats.iceberg.types import arrow_schema

        yield self.record.schema_json
        handle = self._opened.handle
        if isinstance(handle, IcebergTable):
            yield from (arrow_schema(schema).json for schema in handle.metadata.schemas)
        yield from (each.schema_json for each in snapshots.scan(self._realm, self.id) if each.schema_json)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    @cached_property
    def _realm(self) -> Realm:
        return self._context.callers.realm().without_policies()  # this class applies them

    @cached_property
    def _opened(self) -> OpenedTable:
        return self._context.handles.open(self._realm, self.record)

    def _snapshot(self) -> Snapshot | None:
        """The snapshot that the request's transaction reads; None if the table has none."""
        return self._snapshot_in(self._state())

    def _state(self) -> TransactionState:
        """The table as the transaction of the request sees it."""
        transaction = current_request().transaction_id
        point = f"{self._point.unit}:{self._point.value}" if self._point else ""
        found = self._context.transactions.pinned(transaction, self.id, point, find=self._find)
        if self._point is not None:
            return TransactionState(transaction, found, ())
        return self._context.transactions.state(transaction, self.id, read=found)

    def _snapshot_in(self, state: TransactionState) -> Snapshot | None:
        """The snapshot of a state. Only its transaction sees the one of a state with writes."""
        if not state.writes:
            return None if state.base_id is None else self._with_id(state.base_id)
        self._opened = self._opened_again()
        if state.base_id is not None:
            self._with_id(state.base_id)
        handle = self._opened.handle
        assert isinstance(handle, IcebergTable)  # as are all managed tables
        self._opened = self._context.handles.open_in_transaction(self._realm, self.record, handle, state)
        assert self._opened.current is not None
        return self._opened.current

    def _find(self, as_of: datetime | None) -> int | None:
        self._opened = self._opened_again()
        if self._point is not None:
            return snapshot_at(self._opened, self._point).id
        if as_of is not None and self._may_have_changed(as_of):
            found, is_replaced = snapshots.current_at(self._realm, self.id, as_of)
            if is_replaced:
                own = snapshots.written_by(self._realm, current_request().transaction_id, self.id)
                return found if own is None else own
        current = self._opened.current
        return None if current is None else current.id

    def _may_have_changed(self, moment: datetime) -> bool:
        """Whether the table may have had another snapshot at a moment.

        If it did not exist then, it is read in its current state. If it is a managed table and was last changed some time
        before, nothing has to be looked up.
        """
        if self.record.created_at.ToDatetime(UTC) > moment:
            return False
        return not self.record.metadata_location or self.record.updated_at.ToDatetime(UTC) >= moment - COMMIT_TIME

    def _planned(self, snapshot_id: int) -> Snapshot:
        """The snapshot of a planned part: one of the table, or the table as the transaction has changed it by then."""
        if self._point is None and is_explicit():
            state = self._state().earlier(snapshot_id)
            found = None if state is None else self._snapshot_in(state)
            if found is not None:
                return found
        return self._with_id(snapshot_id)

    def _with_id(self, snapshot_id: int) -> Snapshot:
        try:
            return self._listed(snapshot_id)
        except NotFound:  # another server may have listed a folder that has changed since this one did
            self._opened = self._opened_again()
        try:
            return self._listed(snapshot_id)
        except NotFound:  # removed from the table, but a transaction that began before may still read it
            if not current_request().transaction_id or self._point is not None:
                raise
            earlier = self._context.handles.open_earlier(self._realm, self.record, snapshot_id)
            if earlier is None:
                raise
            self._opened = earlier
            return self._listed(snapshot_id)

    def _listed(self, snapshot_id: int) -> Snapshot:
        now = self._opened.current
        return now if now and now.id == snapshot_id else snapshot_with_id(self._opened, snapshot_id)

    def _opened_again(self) -> OpenedTable:
        return self._context.handles.open(self._realm, self.record, relist=True)

    def files(self, snapshot: Snapshot) -> pa.Table:
        """The data files of a snapshot."""
        return data_files(self._opened.at(snapshot).files(snapshot))

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
        matching = self._matching_parts(snapshot, chosen, options) if options.filter else {}
        chosen = _without_empty(chosen, matching)
        parts = split(snapshot.id, chosen, part_bytes=part_bytes, most=most, within_files=True, matching=matching)
        self._log_plan(options, snapshot, chosen, len(parts))
        return parts

    def _matching_parts(self, snapshot: Snapshot, chosen: pa.Table, options: ScanOptions) -> Mapping[int, MatchingPart]:
        """How much of the chosen files the filter leaves, if that saves parts without matching rows.

        A part without matching rows costs the client 5 ms. A lookup in a file of 100 MiB had three of them.
        """
        size = pc.sum(chosen["size_bytes"], min_count=0).as_py()
        is_parquet = pc.all(pc.equal(chosen["format"], "parquet"), min_count=0).as_py()
        if not options.filter or not is_parquet or chosen.num_rows > MAX_PARTS or size <= self._context.part_bytes:
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
        if not all(is_direct(field.type) for field in self.columns.stored):
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
        files = self.files(snapshot)
        if files["deleted_rows"].null_count or files["row_count"].null_count:
            return None
        self._log_plan(ScanOptions(columns=[]), snapshot, files.slice(0, 0), 0)
        deleted = pc.sum(files["deleted_rows"], min_count=0).as_py()
        return int(pc.sum(files["row_count"], min_count=0).as_py() - deleted)

    def row_count(self) -> int | None:
        """The number of rows of the part that is read; None before a scan, and if policies hide some of them."""
        return self._expected_rows

    def _read(self, part: Part, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        if options.batch_size is not None and options.batch_size < 1:
            raise InvalidArgument(f"the batch size is {options.batch_size}: use at least one row")
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
            batch_rows=options.batch_size or BATCH_ROWS,
            first_batch_rows=None if options.filter else FIRST_BATCH_ROWS,
            share=part.share,
        )
        numbered = _numbered(rows, RowIds.of(self.id, snapshot.id, all_files)) if ROWID in wanted else iter(rows)
        if len(self.columns.wanted):
            numbered = (self.columns.shown(batch, table=self.name) for batch in numbered)
        gone = [self.schema.field(name) for name in wanted if name != ROWID and name not in there]
        numbered = _with_nulls(numbered, gone) if gone else numbered
        # The client filters again, so with a filter the server does not know which rows count towards the limit.
        return numbered if options.limit is None or options.filter else _first(numbered, options.limit)

    def _readable(self, snapshot: Snapshot) -> pa.Schema:
        """The columns to read: in time travel those of the snapshot, otherwise those that the client knows and that
        still exist.

        A transaction that began before the last change reads an older snapshot, and also has its columns.
        """
        if self._point is not None:
            return self.columns.stored
        opened = self._opened
        there = opened.handle.schema.arrow
        if opened.current is None or opened.current.id != snapshot.id:
            ids = set(map(field_id, there))
            then = opened.at(snapshot).schema_at(snapshot).arrow
            there = pa.schema([*there, *(field for field in then if field_id(field) not in ids)])
        return self.columns.readable(there, table=self.name)

    def _log_plan(
        self, options: ScanOptions, snapshot: Snapshot, chosen: pa.Table, parts: int, *, reader: str = "server"
    ) -> None:
        files = self.files(snapshot)
        callers, plans = self._context.callers, self._context.plans
        size: int = pc.sum(chosen["size_bytes"], min_count=0).as_py()
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
                files_considered=files.num_rows,
                files_read=chosen.num_rows,
                bytes_considered=pc.sum(files["size_bytes"], min_count=0).as_py(),
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
        return _in_type(found[column], self.columns.stored.field(column), self.schema.field(column))

    @cached_property
    def _announceable(self) -> ColumnStatistics:
        """The statistics in a listing, which only say that statistics exist.

        Files have bounds, of mirrored tables as well as of managed ones.
        """
        has_files = self.record.metadata_location or self.record.upstream.HasField("connector_id")
        if not has_files and not statistics.has_column_statistics(self._realm, self.id):
            raise Unsupported(f"table {self.name!r} has no statistics yet")
        return ColumnStatistics(has_not_null=False)


def _numbered(rows: pa.RecordBatchReader, ids: RowIds) -> Iterator[pa.RecordBatch]:
    """The batches with row ids instead of file ordinals and positions."""
    for batch in rows:
        numbers = ids.encode(batch.column(FILE_ORDINAL), batch.column(ROW_POSITION))
        columns = [*batch.columns[:-2], numbers]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-2], ROWID])


def _with_nulls(batches: Iterator[pa.RecordBatch], gone: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
    """The batches with the columns that the client knows and the table no longer has."""
    for batch in batches:
        nulls = [pa.nulls(batch.num_rows, field.type) for field in gone]
        names = [*batch.schema.names, *(field.name for field in gone)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], names=names)


def _in_type(found: ColumnStatistics, stored: pa.Field, announced: pa.Field) -> ColumnStatistics:
    """The statistics with bounds in the announced type; without bounds if it cannot represent them."""
    if stored.type == announced.type or None in (found.min, found.max):
        return found
    try:
        low, high = (to_column(pa.repeat(bound, 1), announced)[0] for bound in (found.min, found.max))
    except InvalidArgument:
        return replace(found, min=None, max=None)
    return replace(found, min=low, max=high)


def _without_empty(files: pa.Table, matching: Mapping[int, MatchingPart]) -> pa.Table:
    """The files without those of which the filter leaves nothing."""
    empty = [ordinal for ordinal, part in matching.items() if not part.row_groups]
    return files.filter(pc.invert(pc.is_in(files["ordinal"], pa.array(empty, pa.int32())))) if empty else files


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= batch.num_rows
        if limit <= 0:
            return

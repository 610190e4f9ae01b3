"""The state in which a call reads a table: the columns that its client knows, and the snapshot that its transaction reads.

A client sends the binding of a table back with every call, so that no server remembers what it knows:

    3f2c…@4-9ab0        the id of the table and the id of its schema that the client knows
    3f2c…@4-9ab0@eJx…   the same for the client that created the table, with the columns whose types it chose

The second form also tells the INSERT of CREATE TABLE … AS from any other: see `skiway.lake.context`.
"""

from __future__ import annotations

import copy
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, Self

import pyarrow as pa

from skiway.airport import Bindable, Table, TimePoint, TimeTravel, current_request
from skiway.airport.server.tickets import table_changed
from skiway.errors import InvalidArgument, NotFound
from skiway.formats import OpenedTable, Snapshot, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.schemas import field_id
from skiway.lake.context import Context
from skiway.lake.policies import masked_columns, with_optional
from skiway.lake.reading.columns import Columns, columns_of
from skiway.lake.reading.opened_tables import snapshot_at, snapshot_with_id
from skiway.lake.transactions import is_explicit
from skiway.metastore import Realm, snapshots, tables
from skiway.metastore.records.policies import Restriction
from skiway.metastore.resources.catalogs import ScanMode
from skiway.metastore.transactions.staged_writes import TransactionState
from skiway.model import v1

_MAX_BYTES: Final = 4 << 20  # a client sends the binding


@dataclass(frozen=True, slots=True)
class Binding:
    """What a client knows. `wanted` is None unless the client created the table."""

    table_id: str
    columns_id: str
    wanted: pa.Schema | None = None

    @staticmethod
    def split(text: str) -> tuple[str, str, str | None]:
        """The ids of the table and its schema in a text that a client sent, and the part of a client that created it."""
        table_id, _, rest = text.partition("@")
        columns_id, created, packed = rest.partition("@")
        return table_id, columns_id, packed if created else None

    @classmethod
    def parse(cls, text: str) -> Binding:
        """The binding in a text that a client sent."""
        table_id, columns_id, packed = cls.split(text)
        if packed is None:
            return cls(table_id, columns_id)
        try:
            wanted = pa.ipc.read_schema(pa.py_buffer(unpack(packed))) if packed else pa.schema([])
        except (ValueError, zlib.error, pa.ArrowException, OSError) as error:
            raise InvalidArgument(
                "the table's binding is not from this server: DETACH and ATTACH again", key="table.binding"
            ) from error
        return cls(table_id, columns_id, wanted)

    def __str__(self) -> str:
        text = f"{self.table_id}@{self.columns_id}"
        if self.wanted is None:
            return text
        return f"{text}@{pack(self.wanted.serialize().to_pybytes()) if len(self.wanted) else ''}"


def pack(data: bytes) -> str:
    """Bytes as short text that can be part of a path."""
    return urlsafe_b64encode(zlib.compress(data)).decode()


def unpack(text: str) -> bytes:
    """The bytes that `pack` made a text of, up to a limit."""
    return zlib.decompressobj().decompress(urlsafe_b64decode(text), _MAX_BYTES)


COMMIT_TIME = timedelta(minutes=1)
"""Longer than a commit takes from the time in its record to the moment when others see it."""


class TableInCall(Table, TimeTravel, Bindable):
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
        problem = record.upstream.problem and tables.problem_of(context.callers.realm(), record)
        self.comment = f"cannot be synchronised: {problem}" if problem else record.description
        self.record = record
        self._context = context
        self._catalog, self._schema_name = catalog, schema_name
        self._listing, self._scan_mode = listing, scan_mode
        self.is_created_by_caller = False
        self._columns = columns
        self._point: TimePoint | None = None

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
        callers = self._context.callers
        if not self._context.lookups.get("policies", lambda: callers.is_under_policies):
            return None
        return callers.restriction(self.record)

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
        return self._context.handles.open(self._realm, self.record, relist=True, current=self._current)

    def _current(self) -> snapshots.StoredSnapshot | None:
        """The current snapshot of a mirrored table."""
        return self._context.lookups.get(("snapshot", self.id), lambda: snapshots.current(self._realm, self.id))

    def files(self, snapshot: Snapshot) -> pa.Table:
        """The data files of a snapshot."""
        return data_files(self._opened.at(snapshot).files(snapshot))

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

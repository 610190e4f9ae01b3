"""The state in which a call reads a table: the columns that its client knows, and the snapshot that its transaction reads.

`TableInCall` is what a call knows of a table before it reads it. Its method `state` finds out which snapshot the call reads, and
returns it as a `TableState`. Both are immutable: scans, writes and statistics are functions of a state.

A client sends the binding of a table back with every call, so that no server remembers what it knows:

    3f2c…@4-9ab0        the id of the table and the id of its schema that the client knows
    3f2c…@4-9ab0@eJx…   the same for the client that created the table, with the columns whose types it chose

    rows-follow:eJx…    the definition of a table that CREATE TABLE … AS creates with its first rows

The second form also tells the INSERT of CREATE TABLE … AS from any other: see `skiway.lake.context`.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec
import pyarrow as pa

from skiway.airport import TimePoint, current_request
from skiway.airport.server.tickets import table_changed
from skiway.errors import InvalidArgument, NotFound
from skiway.formats import OpenedTable, Snapshot, TableHandle, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.schemas import field_id
from skiway.lake.context import Context
from skiway.lake.policies import masked_columns
from skiway.lake.reading.columns import Columns, columns_of
from skiway.lake.reading.opened_tables import AppendedRange, snapshot_at, snapshot_with_id
from skiway.lake.transactions import is_explicit
from skiway.metastore import Realm, snapshots, statistics
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
        with _from_this_server("DETACH and ATTACH again"):
            wanted = pa.ipc.read_schema(pa.py_buffer(unpack(packed))) if packed else pa.schema([])
            return cls(table_id, columns_id, wanted)

    def __str__(self) -> str:
        text = f"{self.table_id}@{self.columns_id}"
        if self.wanted is None:
            return text
        return f"{text}@{pack(self.wanted.serialize().to_pybytes()) if len(self.wanted) else ''}"


_PENDING: Final = "rows-follow:"


class PendingCreate(msgspec.Struct, frozen=True, array_like=True):
    """The definition of a table that is created when its first rows arrive."""

    columns: bytes  # a serialized Arrow schema
    replace: bool
    comment: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return {"comment": self.comment} if self.comment else {}

    def binding(self) -> str:
        """The definition as a text that clients send back."""
        return _PENDING + pack(msgspec.msgpack.encode(self))

    @classmethod
    def of(cls, binding: str) -> PendingCreate | None:
        """The definition in a binding; None for the binding of an existing table."""
        if not binding.startswith(_PENDING):
            return None
        with _from_this_server("CREATE the table again"):
            pending = msgspec.msgpack.decode(unpack(binding.removeprefix(_PENDING)), type=cls)
            _ = pending.schema
            return pending


@contextmanager
def _from_this_server(remedy: str) -> Iterator[None]:
    """A block that reads a binding; raise `InvalidArgument` if it is malformed."""
    try:
        yield
    except (ValueError, zlib.error, msgspec.MsgspecError, pa.ArrowException, OSError) as error:
        message = f"the table's binding is not from this server: {remedy}"
        raise InvalidArgument(message, key="table.binding") from error


def pack(data: bytes) -> str:
    """Bytes as short text that can be part of a path."""
    return urlsafe_b64encode(zlib.compress(data)).decode()


def unpack(text: str) -> bytes:
    """The bytes that `pack` made a text of, up to a limit."""
    return zlib.decompressobj().decompress(urlsafe_b64decode(text), _MAX_BYTES)


COMMIT_TIME = timedelta(minutes=1)
"""Longer than a commit takes from the time in its record to the moment when others see it."""


@dataclass(frozen=True, eq=False)
class TableInCall:
    """A table as the client of a call knows it, at a point in time if the call names one.

    Without `bound_columns`, the client knows the current columns.
    """

    context: Context
    record: v1.Table
    catalog: str
    schema_name: str
    comment: str = ""
    is_listing: bool = False
    scan_mode: ScanMode = "server"
    bound_columns: Columns | None = None
    point: TimePoint | None = None
    is_created_by_caller: bool = False
    inherited_offer: Callable[[], str] = str
    """What the schema and the catalog say about the offer of statistics."""

    @property
    def id(self) -> str:
        """The table's id, which does not change when the table is renamed."""
        return self.record.resource_id.id

    @property
    def name(self) -> str:
        """The name of the table, without its schema."""
        return self.record.display_name

    @cached_property
    def realm(self) -> Realm:
        """The metastore of the caller's account without policies, which are applied here."""
        return self.context.callers.realm().without_policies()

    # -- policies -----------------------------------------------------------------------------------------------------

    @cached_property
    def restriction(self) -> Restriction | None:
        """What policies leave of the table for the caller; None if none restricts it."""
        callers = self.context.callers
        if not self.context.lookups.get("policies", lambda: callers.is_under_policies):
            return None
        return callers.restriction(self.record)

    @property
    def masked(self) -> Mapping[str, v1.Policy]:
        """The policies that mask columns that the client knows, by their names."""
        return masked_columns(self.restriction, self.columns.stored) if self.restriction else {}

    @property
    def is_hidden(self) -> bool:
        """Whether the caller must not see some rows or values, so that only the query that applies policies may read them."""
        return self.restriction is not None and bool(
            self.restriction.filters or self.restriction.missing or self.masked
        )

    # -- columns and their statistics ------------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> Columns:
        """The columns that this client knows, kept because a lookup takes as long as their description is wide."""
        return self.bound_columns or columns_of(self.record.schema_json)

    @cached_property
    def has_statistics(self) -> bool:
        """Whether columns have statistics: those of files, or of a profile. Files of mirrored and managed tables have bounds."""
        has_files = self.record.metadata_location or self.record.upstream.HasField("connector_id")
        return bool(has_files) or statistics.has_column_statistics(self.realm, self.id)

    @property
    def binding(self) -> str:
        """The ids of the table and of the columns that the client knows."""
        columns = self.columns
        shared = self.context.columns(self.id, columns.id, lambda: replace(columns, wanted=pa.schema([])))
        return str(Binding(self.id, shared.id, columns.wanted if self.is_created_by_caller else None))

    def bound(self, binding: str) -> TableInCall:
        """The table as a client with this binding knows it."""
        table_id, columns_id, created = Binding.split(binding)
        if table_id != self.id:
            raise table_changed(self.name, "it was replaced by another of the same name")
        known = self.context.columns(self.id, columns_id, lambda: self._known_columns(columns_id))
        if created is None:
            return replace(self, bound_columns=known)
        # Always the same object, because what is derived from it is as large as the table is wide.
        as_created = self.context.columns(
            self.id, binding, lambda: replace(known, wanted=Binding.parse(binding).wanted or pa.schema([]))
        )
        return replace(self, bound_columns=as_created, is_created_by_caller=True)

    def created_as(self, columns: pa.Schema) -> TableInCall:
        """The table as the client knows it that has just created it with these columns."""
        return replace(self, bound_columns=self.columns.created_as(columns), is_created_by_caller=True)

    def at(self, point: TimePoint) -> TableInCall:
        """The table at a point in time, with the columns that it had then."""
        then = replace(self, point=point)
        state = then.state()
        assert state is not None  # a point without a snapshot is an error
        columns = columns_of(state.handle.schema_at(state.snapshot).json)
        return replace(then, bound_columns=replace(columns, wanted=self.columns.wanted))

    def _known_columns(self, columns_id: str) -> Columns:
        """Columns that another server announced, or that are no longer in the cache."""
        for schema_json in self._schemas():
            columns = columns_of(schema_json)
            if columns.id == columns_id:
                return columns
        raise table_changed(self.name, "its schema at the time of ATTACH is no longer known")

    def _schemas(self) -> Iterator[str]:
        from skiway.formats.iceberg.types import arrow_schema

        yield self.record.schema_json
        handle = self._open().handle
        if isinstance(handle, IcebergTable):
            yield from (arrow_schema(schema).json for schema in handle.metadata.schemas)
        yield from (stored.schema_json for stored in snapshots.scan(self.realm, self.id) if stored.schema_json)

    # -- states -------------------------------------------------------------------------------------------------------

    def state(self) -> TableState | None:
        """The state that the transaction of the request reads; None if the table has no snapshot."""
        opened, transaction = self._in_transaction()
        return self._state_of(transaction, opened)

    def planned_state(self, snapshot_id: int) -> TableState:
        """The state of a planned part: a snapshot of the table, or the table as the transaction had changed it by then."""
        opened = None
        if self.point is None and is_explicit():
            opened, transaction = self._in_transaction()
            earlier = transaction.earlier(snapshot_id)
            state = None if earlier is None else self._state_of(earlier, opened)
            if state is not None:
                return state
        return self._with_id(snapshot_id, opened or self._open())

    def _in_transaction(self) -> tuple[OpenedTable | None, TransactionState]:
        """What the transaction of the request reads and has written, and the table if it was opened to find that out."""
        reopened: list[OpenedTable] = []

        def find(as_of: datetime | None) -> int | None:
            reopened.append(self._open(relist=True))
            return self._snapshot_id(reopened[0], as_of)

        transactions, transaction = self.context.transactions, current_request().transaction_id
        point = f"{self.point.unit}:{self.point.value}" if self.point else ""
        pinned = transactions.pinned(transaction, self.id, point, find=find)
        opened = reopened[0] if reopened else None
        if self.point is not None:
            return opened, TransactionState(transaction, pinned, ())
        return opened, transactions.state(transaction, self.id, read=pinned)

    def _state_of(self, transaction: TransactionState, opened: OpenedTable | None) -> TableState | None:
        """What a transaction reads. Only the transaction itself sees a state with writes."""
        if not transaction.writes:
            if transaction.base_id is None:
                return None
            return self._with_id(transaction.base_id, opened or self._open(), transaction)
        base = opened or self._open(relist=True)
        if transaction.base_id is not None:
            base = self._with_id(transaction.base_id, base).opened
        assert isinstance(base.handle, IcebergTable)  # as are all managed tables
        changed = self.context.handles.open_in_transaction(self.realm, self.record, base.handle, transaction)
        assert changed.current is not None
        return TableState(self, changed, changed.current, transaction)

    def _snapshot_id(self, opened: OpenedTable, as_of: datetime | None) -> int | None:
        """The snapshot at the point in time, or the one that was current at the begin of a transaction."""
        if self.point is not None:
            return snapshot_at(opened, self.point).id
        if as_of is not None and self._may_have_changed(as_of):
            earlier, is_replaced = snapshots.current_at(self.realm, self.id, as_of)
            if is_replaced:
                own = snapshots.written_by(self.realm, current_request().transaction_id, self.id)
                return earlier if own is None else own
        return None if opened.current is None else opened.current.id

    def _may_have_changed(self, moment: datetime) -> bool:
        """Whether the table may have had another snapshot at a moment.

        If it did not exist then, it is read in its current state. If it is a managed table and was last changed some time
        before, nothing has to be looked up.
        """
        if self.record.created_at.ToDatetime(UTC) > moment:
            return False
        return not self.record.metadata_location or self.record.updated_at.ToDatetime(UTC) >= moment - COMMIT_TIME

    def _with_id(
        self, snapshot_id: int, opened: OpenedTable, transaction: TransactionState | None = None
    ) -> TableState:
        try:
            return TableState(self, opened, _listed(opened, snapshot_id), transaction)
        except NotFound:  # another server may have listed a folder that has changed since this one did
            reopened = self._open(relist=True)
        try:
            return TableState(self, reopened, _listed(reopened, snapshot_id), transaction)
        except NotFound:  # removed from the table, but a transaction that began before may still read it
            if not current_request().transaction_id or self.point is not None:
                raise
            earlier = self.context.handles.open_earlier(self.realm, self.record, snapshot_id)
            if earlier is None:
                raise
            return TableState(self, earlier, _listed(earlier, snapshot_id), transaction)

    def _open(self, *, relist: bool = False) -> OpenedTable:
        return self.context.handles.open(self.realm, self.record, relist=relist, current=self._current)

    def _current(self) -> snapshots.StoredSnapshot | None:
        """The current snapshot of a mirrored table."""
        return self.context.lookups.get(("snapshot", self.id), lambda: snapshots.current(self.realm, self.id))


def _listed(opened: OpenedTable, snapshot_id: int) -> Snapshot:
    current = opened.current
    return current if current and current.id == snapshot_id else snapshot_with_id(opened, snapshot_id)


@dataclass(frozen=True, eq=False)
class TableState:
    """A table as a call reads it: in one snapshot, with the columns that the client of the call knows."""

    table: TableInCall
    opened: OpenedTable
    snapshot: Snapshot
    transaction: TransactionState | None = None
    """The writes of the transaction that the snapshot contains; None for the snapshot of a planned part."""

    @property
    def handle(self) -> TableHandle:
        """What reads the snapshot."""
        return self.opened.at(self.snapshot)

    @property
    def iceberg(self) -> IcebergTable:
        """What reads the snapshot of a managed table."""
        assert isinstance(self.opened.handle, IcebergTable)  # as are all managed tables
        return self.opened.handle

    @property
    def staged(self) -> TransactionState | None:
        """The state of the explicit transaction to which a statement adds its changes; None if the statement commits."""
        return self.transaction if is_explicit() else None

    @property
    def range(self) -> AppendedRange | None:
        """The range of snapshots to read; None for a single snapshot."""
        point = self.table.point
        if point is None or point.unit == "timestamp" or point.value in self.opened.handle.refs:
            return None
        return AppendedRange.parse(point.value)

    @property
    def files(self) -> pa.Table:
        """The data files of the snapshot."""
        return data_files(self.handle.files(self.snapshot))

    def readable(self) -> pa.Schema:
        """The columns to read: in time travel those of the snapshot, otherwise those that the client knows and that
        still exist.

        A transaction that began before the last change reads an older snapshot, and also has its columns.
        """
        columns, opened = self.table.columns, self.opened
        if self.table.point is not None:
            return columns.stored
        there = opened.handle.schema.arrow
        if opened.current is None or opened.current.id != self.snapshot.id:
            ids = set(map(field_id, there))
            then = self.handle.schema_at(self.snapshot).arrow
            there = pa.schema([*there, *(field for field in then if field_id(field) not in ids)])
        return columns.readable(there, table=self.table.name)

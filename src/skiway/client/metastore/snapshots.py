"""Snapshots, which are the states of a table, and their statistics: of the table, its columns and its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from google.protobuf.message import Message

from skiway.client.metastore.calls import Ref, table_id
from skiway.client.metastore.collection import (
    Area,
    Json,
    Listing,
    Operations,
    build,
    listing_of,
    schema_text,
    timestamp,
)
from skiway.client.metastore.resources import Attribute, Meta, TableStats, Versioned
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import SNAPSHOT
from skiway.model import v1


@dataclass(frozen=True, repr=False, eq=False)
class Snapshot(Versioned[v1.Snapshot]):
    """A state of a table. `message` is the message that the server sent."""

    kind = "snapshot"

    id = Attribute[int]("snapshot_id")
    """The id, unique among the snapshots of the table."""
    damage = Attribute[str]()
    """In listings, what is wrong if the record is lost or corrupt; then only the id is known. Otherwise ""."""
    parent_id = Attribute[int | None]("parent_snapshot_id")
    """The id of the snapshot that it is based on, which may be deleted."""
    created_at = Attribute[datetime | None]("upstream_created_at")
    """The time of creation in the table's source."""
    ingested_at = Attribute[datetime]()
    """The time when the metastore recorded the snapshot."""
    schema_json = Attribute[str]()
    """The table's schema in this snapshot, as JSON."""
    summary = Attribute[Mapping[str, str]]()
    """The summary that its writer recorded."""

    def _key(self) -> Mapping[str, Any]:
        return {"table_id": self.message.table_id, "snapshot": snapshot_ref(self)}

    def __hash__(self) -> int:
        return hash((self.message.table_id.id, self.id))

    def __repr__(self) -> str:
        return f"Snapshot(id={self.id}, parent_id={self.parent_id}, created_at={self.created_at})"


At = int | datetime | Snapshot | None
"""A snapshot of a table: by its id, as of a time, or None for the current one."""


def snapshot_ref(at: At) -> v1.SnapshotRef:
    """Return the reference to a snapshot as a message."""
    match at:
        case None:
            return v1.SnapshotRef(special=v1.SS_CURRENT)
        case datetime():
            return v1.SnapshotRef(as_of=timestamp(at))
        case _:
            return build(v1.SnapshotRef, snapshot_id=snapshot_id(at))


def snapshot_id(snapshot: int | Snapshot) -> int:
    """Return the id of a snapshot."""
    return snapshot.id if isinstance(snapshot, Snapshot) else snapshot


class SnapshotFields(TypedDict, total=False):
    """What people set, besides the time of creation. Without a `schema`, a new snapshot has that of the table."""

    parent: int | Snapshot | None
    schema: Json | None
    schema_id: int | None
    partition_spec: v1.PartitionSpecInfo | None
    sequence_number: int | None
    manifest_list: str | None
    metadata_location: str | None
    summary: Mapping[str, str] | None
    format_metadata: Mapping[str, bytes] | None


class SnapshotChanges(SnapshotFields, total=False):
    """What can be changed."""

    created_at: datetime


class Snapshots(Operations[Snapshot]):
    """`lake.snapshots`, identified by their table and their id."""

    __slots__ = ()
    _kind, _record = SNAPSHOT, Snapshot

    def __call__(self, table: Ref, *, page_size: int | None = None) -> Listing[Snapshot]:
        """List the snapshots of a table, newest first."""
        return self._list(page_size, lambda: {"table_id": table_id(self._calls, table)})

    def get(self, table: Ref, at: At = None) -> Snapshot:
        """Return a snapshot by its id, as of a time, or the current one; raise `NotFound` if there is none."""
        return self._get({"table_id": table_id(self._calls, table), "snapshot": snapshot_ref(at)})

    def find(self, table: Ref, at: At = None) -> Snapshot | None:
        """Return the snapshot, or None if there is none."""
        try:
            return self.get(table, at)
        except NotFound:
            return None

    def create(
        self,
        table: Ref,
        snapshot: int,
        *,
        created_at: datetime,
        idempotency_key: str | None = None,
        **fields: Unpack[SnapshotFields],
    ) -> Snapshot:
        """Create a snapshot, which becomes current if it is the newest."""
        return self._create({**self._spec_key(table, snapshot), "created_at": created_at, **fields}, idempotency_key)

    def update(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        if_version: int | None = None,
        if_etag: str | None = None,
        **changes: Unpack[SnapshotChanges],
    ) -> Snapshot:
        """Change the given values; None clears a value. This does not change which snapshot is current."""
        return self._update(changes, if_version, if_etag, spec_key=lambda: self._spec_key(table, snapshot))

    def delete(
        self, table: Ref, snapshot: int | Snapshot, *, if_version: int | None = None, if_etag: str | None = None
    ) -> Meta:
        """Delete a snapshot and its statistics; return its last stored version.

        The current snapshot can be deleted only if it is the last one.
        """
        return self._delete(self._spec_key(table, snapshot), if_version, if_etag)

    def set_current(self, table: Ref, snapshot: int | Snapshot) -> Snapshot:
        """Make a snapshot the current one; an older one rolls the table back."""
        response = self._calls.rpc("SetCurrentSnapshot", **self._spec_key(table, snapshot))
        return self._reader()(response.snapshot, response.meta)

    def _spec_key(self, table: Ref, snapshot: int | Snapshot) -> dict[str, Any]:
        return {"table_id": table_id(self._calls, table), "snapshot_id": snapshot_id(snapshot)}

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        spec = dict(given)
        if "parent" in spec:
            parent = spec.pop("parent")
            spec["parent_snapshot_id"] = None if parent is None else snapshot_id(parent)
        if "schema" in spec:
            spec["schema_json"] = schema_text(spec.pop("schema"))
        if "created_at" in spec:
            spec["upstream_created_at"] = timestamp(spec.pop("created_at"))
        return spec


MESSAGE_BYTES: Final = 512 * 1024
"""The approximate size of a message of an upload, far below the limit of servers."""


class StatisticsFields(TypedDict, total=False):
    """What is known about a table, besides its rows."""

    data_file_count: int | None
    total_size_bytes: int | None
    ndv: v1.Ndv | None
    upstream: v1.UpstreamStamp | None
    properties: Mapping[str, str] | None


class Statistics(Area):
    """`lake.statistics`, identified by a table and its snapshot."""

    def get(self, table: Ref, at: At = None) -> TableStats:
        """Return the statistics of a table in a snapshot, by default the current one; raise `NotFound` if there are none."""
        key = {"table_id": table_id(self._calls, table), "snapshot": snapshot_ref(at)}
        return TableStats(self._calls.rpc("GetTableStats", **key).stats)

    def find(self, table: Ref, at: At = None) -> TableStats | None:
        """Return the statistics of a table, or None if there are none."""
        try:
            return self.get(table, at)
        except NotFound:
            return None

    def columns(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.ColumnStats]:
        """List the statistics of the columns of a table, by column id."""
        return self._list("ListColumnStats", "columns", table, at, page_size)

    def files(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.FileColumnStats]:
        """List the statistics of the files of a table, by path."""
        return self._list("ListFileColumnStats", "files", table, at, page_size)

    def partitions(self, table: Ref, at: At = None, *, page_size: int | None = None) -> Listing[v1.PartitionStats]:
        """List the partitions of a table with their rows, bytes and files, and counts and bounds of columns."""
        return self._list("ListPartitionStats", "partitions", table, at, page_size)

    def history(
        self, table: Ref, *, columns: Sequence[str] = (), page_size: int | None = None
    ) -> Listing[v1.ProfiledSnapshot]:
        """List the statistics of profiled snapshots, the newest first: of all columns, or of those with these names."""

        def fields() -> Mapping[str, Any]:
            return {"table_id": table_id(self._calls, table), "columns": columns}

        return listing_of(self._calls, "ListStatisticsHistory", "snapshots", _same, page_size, fields)

    def _list(self, method: str, items: str, table: Ref, at: At, page_size: int | None) -> Listing[Any]:
        def fields() -> Mapping[str, Any]:
            return {"table_id": table_id(self._calls, table), "snapshot": snapshot_ref(at)}

        return listing_of(self._calls, method, items, _same, page_size, fields)

    def put(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        row_count: int,
        idempotency_key: str | None = None,
        **fields: Unpack[StatisticsFields],
    ) -> TableStats:
        """Store the statistics of a table, replacing existing ones. The snapshot need not exist yet."""
        request = build(
            v1.PutTableStatsRequest,
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot_id(snapshot),
            stats=build(v1.TableStats, row_count=row_count, **fields),
            idempotency=self._calls.key(idempotency_key),
        )
        return TableStats(self._calls.call(request, v1.PutTableStatsResponse).stats)

    def put_columns(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        columns: Iterable[v1.ColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Upload the statistics of columns, replacing existing ones of the same columns; return their number.

        The upload streams with bounded memory. A list is sent again if the connection breaks. An iterator cannot be: call
        this again with a new one and the same `idempotency_key`, and statistics that were stored are not stored twice.
        """
        upload = _Upload(v1.PutColumnStatsRequest, v1.PutColumnStatsResponse, "columns", v1.ColumnStats, columns)
        return self._upload(table, snapshot, upload, idempotency_key, timeout_s)

    def put_files(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        files: Iterable[v1.FileColumnStats],
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = 600.0,
    ) -> int:
        """Upload the statistics of files, replacing existing ones of the same files; return their number.

        See `put_columns`.
        """
        upload = _Upload(
            v1.PutFileColumnStatsRequest, v1.PutFileColumnStatsResponse, "files", v1.FileColumnStats, files
        )
        return self._upload(table, snapshot, upload, idempotency_key, timeout_s)

    def _upload(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        upload: _Upload,
        idempotency_key: str | None,
        timeout_s: float | None,
    ) -> int:
        # Getting the snapshot first reports a wrong one before the iterator is consumed, and notices a connection that
        # broke while it was idle with a call that can be retried.
        found = self._calls.rpc(
            "GetSnapshot", table_id=table_id(self._calls, table), snapshot=snapshot_ref(snapshot)
        ).snapshot
        key = self._calls.key(idempotency_key)

        def requests() -> Iterator[Message]:
            for chunk in _chunks(upload.items, upload.item_type):
                fields = {upload.field: chunk, "idempotency": key}
                yield build(upload.request, table_id=found.table_id, snapshot_id=found.snapshot_id, **fields)

        is_repeatable = iter(upload.items) is not upload.items
        response: Any = self._calls.upload(
            requests, upload.response, kind=upload.request, timeout_s=timeout_s, repeatable=is_repeatable
        )
        return int(response.upserted)


def _same(message: Any) -> Any:
    return message


@dataclass(frozen=True, slots=True)
class _Upload:
    """The items of an upload, and the field of the request that carries them."""

    request: type[Message]
    response: type[Message]
    field: str
    item_type: type[Message]
    items: Iterable[Message]


def _chunks(items: Iterable[Message], item_type: type[Message]) -> Iterator[list[Message]]:
    """Group items into chunks of about `MESSAGE_BYTES`; a larger item is a chunk of its own."""
    chunk: list[Message] = []
    size = 0
    for item in items:
        if not isinstance(item, item_type):
            raise InvalidArgument(
                f"cannot store {item!r:.100}: expected messages of type {item_type.DESCRIPTOR.full_name}", key="field"
            )
        item_bytes = item.ByteSize()
        if chunk and size + item_bytes > MESSAGE_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += item_bytes
    if chunk:
        yield chunk

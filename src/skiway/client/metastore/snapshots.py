"""Snapshots, which are the states of a table, and their statistics: of the table, its columns and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from google.protobuf.message import Message

from skiway.client.metastore.calls import Ref, table_id
from skiway.client.metastore.collection import (
    KEEP,
    Area,
    Json,
    Keep,
    Listing,
    Operations,
    build,
    listing_of,
    schema_text,
    timestamp,
)
from skiway.client.metastore.resources import Meta, Parents, TableStats, Versioned, time_of
from skiway.errors import InvalidArgument, NotFound
from skiway.model import v1


@dataclass(frozen=True, repr=False, eq=False)
class Snapshot(Versioned[v1.Snapshot]):
    """A state of a table. `message` is the message that the server sent."""

    kind = "snapshot"

    @property
    def id(self) -> int:
        """The id, unique among the snapshots of the table."""
        return self.message.snapshot_id

    @property
    def damage(self) -> str:
        """In listings, what is wrong if the record is lost or corrupt; then only the id is known. Otherwise ""."""
        return self.message.damage

    @property
    def parent_id(self) -> int | None:
        """The id of the snapshot that it is based on, which may be deleted."""
        return self.message.parent_snapshot_id if self.message.HasField("parent_snapshot_id") else None

    @property
    def created_at(self) -> datetime | None:
        """The time of creation in the table's source."""
        stamp = self.message.upstream_created_at
        return time_of(stamp) if self.message.HasField("upstream_created_at") else None

    @property
    def ingested_at(self) -> datetime:
        """The time when the metastore recorded the snapshot."""
        return time_of(self.message.ingested_at)

    @property
    def schema_json(self) -> str:
        """The table's schema in this snapshot, as JSON."""
        return self.message.schema_json

    @property
    def summary(self) -> Mapping[str, str]:
        """The summary that its writer recorded."""
        return dict(self.message.summary)

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


class Snapshots(Operations[Snapshot]):
    """`lake.snapshots`, identified by their table and their id."""

    __slots__ = ()
    _kind, _spec = "snapshot", v1.SnapshotSpec

    def __call__(self, table: Ref, *, page_size: int | None = None) -> Listing[Snapshot]:
        """List the snapshots of a table, newest first."""
        return self._list(lambda: {"table_id": table_id(self._calls, table)}, page_size)

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
        parent: int | Snapshot | None = None,
        schema: Json | None = None,
        schema_id: int | None = None,
        partition_spec: v1.PartitionSpecInfo | None = None,
        sequence_number: int | None = None,
        manifest_list: str | None = None,
        metadata_location: str | None = None,
        summary: Mapping[str, str] | None = None,
        format_metadata: Mapping[str, bytes] | None = None,
        idempotency_key: str | None = None,
    ) -> Snapshot:
        """Create a snapshot, which becomes current if it is the newest. Without `schema` it has the table's schema."""
        spec = {
            **self._spec_key(table, snapshot),
            "parent_snapshot_id": None if parent is None else snapshot_id(parent),
            "upstream_created_at": timestamp(created_at),
            "schema_json": schema_text(schema),
            "schema_id": schema_id,
            "partition_spec": partition_spec,
            "sequence_number": sequence_number,
            "manifest_list": manifest_list,
            "metadata_location": metadata_location,
            "summary": summary,
            "format_metadata": format_metadata,
        }
        return self._create(spec, idempotency_key)

    def update(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        created_at: datetime | Keep = KEEP,
        parent: int | Keep | None = KEEP,
        schema: Json | Keep = KEEP,
        schema_id: int | Keep | None = KEEP,
        partition_spec: v1.PartitionSpecInfo | Keep | None = KEEP,
        sequence_number: int | Keep | None = KEEP,
        manifest_list: str | Keep | None = KEEP,
        metadata_location: str | Keep | None = KEEP,
        summary: Mapping[str, str] | Keep | None = KEEP,
        format_metadata: Mapping[str, bytes] | Keep | None = KEEP,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Snapshot:
        """Change the given values; None clears a value. This does not change which snapshot is current."""
        changes = {
            "parent_snapshot_id": parent,
            "upstream_created_at": timestamp(created_at),
            "schema_json": schema_text(schema),
            "schema_id": schema_id,
            "partition_spec": partition_spec,
            "sequence_number": sequence_number,
            "manifest_list": manifest_list,
            "metadata_location": metadata_location,
            "summary": summary,
            "format_metadata": format_metadata,
        }
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
        return self._from_response(self._calls.rpc("SetCurrentSnapshot", **self._spec_key(table, snapshot)))

    def _spec_key(self, table: Ref, snapshot: int | Snapshot) -> dict[str, Any]:
        return {"table_id": table_id(self._calls, table), "snapshot_id": snapshot_id(snapshot)}

    def _wrap(self, message: v1.Snapshot, meta: v1.MutationMeta | None, parents: Parents) -> Snapshot:
        return Snapshot(message, self._calls, meta, parents)


MESSAGE_BYTES: Final = 512 * 1024
"""The approximate size of a message of an upload, far below the limit of servers."""


class Statistics(Area):
    """`lake.statistics`, identified by a table and its snapshot."""

    def get(self, table: Ref, at: At = None) -> TableStats:
        """Return the statistics of a table in a snapshot, by default the current one; raise `NotFound` if there are none."""
        request = v1.GetTableStatsRequest(table_id=table_id(self._calls, table), snapshot=snapshot_ref(at))
        return TableStats(self._calls.call(request, v1.GetTableStatsResponse).stats)

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

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
            return {"table_id": table_id(self._calls, table), "columns": columns}, lambda message: message

        return listing_of(self._calls, "ListStatisticsHistory", "snapshots", start, page_size)

    def _list(self, method: str, items: str, table: Ref, at: At, page_size: int | None) -> Listing[Any]:
        def start() -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
            return {"table_id": table_id(self._calls, table), "snapshot": snapshot_ref(at)}, lambda message: message

        return listing_of(self._calls, method, items, start, page_size)

    def put(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        row_count: int,
        data_file_count: int | None = None,
        total_size_bytes: int | None = None,
        ndv: v1.Ndv | None = None,
        upstream: v1.UpstreamStamp | None = None,
        properties: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> TableStats:
        """Store the statistics of a table, replacing existing ones. The snapshot need not exist yet."""
        stats = build(
            v1.TableStats,
            row_count=row_count,
            data_file_count=data_file_count,
            total_size_bytes=total_size_bytes,
            ndv=ndv,
            upstream=upstream,
            properties=properties,
        )
        request = build(
            v1.PutTableStatsRequest,
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot_id(snapshot),
            stats=stats,
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
        request, response = v1.PutColumnStatsRequest, v1.PutColumnStatsResponse
        upload = _Upload(request, "columns", v1.ColumnStats, columns)
        return self._upload(table, snapshot, upload, response, idempotency_key, timeout_s)

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
        request, response = v1.PutFileColumnStatsRequest, v1.PutFileColumnStatsResponse
        upload = _Upload(request, "files", v1.FileColumnStats, files)
        return self._upload(table, snapshot, upload, response, idempotency_key, timeout_s)

    def _upload(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        upload: _Upload,
        response: Any,
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

        result = self._calls.upload(
            requests,
            response,
            kind=upload.request,
            timeout_s=timeout_s,
            repeatable=iter(upload.items) is not upload.items,
        )
        upserted: int = result.upserted
        return upserted


@dataclass(frozen=True, slots=True)
class _Upload:
    """The items of an upload, and the field of the request that carries them."""

    request: type[Message]
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

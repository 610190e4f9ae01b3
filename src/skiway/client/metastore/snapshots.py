"""A snapshot, and how one of a table's is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.collection import (
    KEEP,
    Area,
    Json,
    Keep,
    Listing,
    Turn,
    filled,
    masked,
    precondition,
    schema_text,
    time_of,
    timestamp,
)
from skiway.client.metastore.references import Ref, table_id
from skiway.client.metastore.resources import Meta
from skiway.errors import Conflict, NotFound
from skiway.model import v1

__all__ = ["At", "Snapshot", "Snapshots", "snapshot_id", "snapshot_ref"]


@dataclass(frozen=True, repr=False, eq=False)
class Snapshot:
    """A state of a table. `message` is what was received."""

    message: v1.Snapshot
    _calls: Calls
    _meta: v1.MutationMeta | None = None

    @property
    def id(self) -> int:
        """Its id among the snapshots of its table."""
        return self.message.snapshot_id

    @property
    def parent_id(self) -> int | None:
        """The snapshot it was made from, which may be gone."""
        return self.message.parent_snapshot_id if self.message.HasField("parent_snapshot_id") else None

    @property
    def created_at(self) -> datetime | None:
        """When it came to be where the table comes from."""
        stamp = self.message.upstream_created_at
        return time_of(stamp) if self.message.HasField("upstream_created_at") else None

    @property
    def ingested_at(self) -> datetime:
        """When the metastore came to know it."""
        return time_of(self.message.ingested_at)

    @property
    def schema_json(self) -> str:
        """The table's schema then, as JSON."""
        return self.message.schema_json

    @property
    def summary(self) -> Mapping[str, str]:
        """What its writer noted."""
        return dict(self.message.summary)

    @cached_property
    def meta(self) -> Meta:
        """In which version this very content is stored; `Conflict` if it has changed since it was listed."""
        if self._meta is not None:
            return Meta.of(self._meta)
        request = v1.GetSnapshotRequest(table_id=self.message.table_id, snapshot=snapshot_ref(self))
        answer = self._calls.ask(request, v1.GetSnapshotResponse)
        if answer.snapshot != self.message:
            raise Conflict(f"{self!r} has changed since it was listed: get it again", key="version.unknown")
        return Meta.of(answer.meta)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and bool(self.message == other.message)

    def __hash__(self) -> int:
        return hash((self.message.table_id.id, self.id))

    def __repr__(self) -> str:
        return f"Snapshot(id={self.id}, parent_id={self.parent_id}, created_at={self.created_at})"


At = int | datetime | Snapshot | None
"""A snapshot of a table: by its id, the newest at a time, or None for the current one."""


def snapshot_ref(at: At) -> v1.SnapshotRef:
    """The snapshot that is meant, in the form of messages."""
    match at:
        case None:
            return v1.SnapshotRef(special=v1.SS_CURRENT)
        case datetime():
            return v1.SnapshotRef(as_of=timestamp(at))
        case _:
            return filled(v1.SnapshotRef, snapshot_id=snapshot_id(at))


def snapshot_id(snapshot: int | Snapshot) -> int:
    """The id of a snapshot."""
    return snapshot.id if isinstance(snapshot, Snapshot) else snapshot


# --------------------
# Snapshots: the states of a table.


class Snapshots(Area):
    """`lake.snapshots`: named by their table and their number."""

    def __call__(self, table: Ref, *, page_size: int | None = None) -> Listing[Snapshot]:
        """The snapshots of a table, newest first."""

        def open_() -> Turn[Snapshot]:
            return self._turn(table_id(self._calls, table))

        return Listing(open_, page_size)

    def get(self, table: Ref, at: At = None) -> Snapshot:
        """The snapshot with an id, the newest at a time, or the current one; `NotFound` if there is none."""
        request = v1.GetSnapshotRequest(table_id=table_id(self._calls, table), snapshot=snapshot_ref(at))
        answer = self._calls.ask(request, v1.GetSnapshotResponse)
        return Snapshot(answer.snapshot, self._calls, answer.meta)

    def find(self, table: Ref, at: At = None) -> Snapshot | None:
        """The snapshot, or None."""
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
        """A new snapshot, current if it is the newest; without a schema it has the table's."""
        spec = filled(
            v1.SnapshotSpec,
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot,
            parent_snapshot_id=None if parent is None else snapshot_id(parent),
            upstream_created_at=timestamp(created_at),
            schema_json=schema_text(schema),
            schema_id=schema_id,
            partition_spec=partition_spec,
            sequence_number=sequence_number,
            manifest_list=manifest_list,
            metadata_location=metadata_location,
            summary=summary,
            format_metadata=format_metadata,
        )
        request = v1.CreateSnapshotRequest(spec=spec, idempotency=self._calls.key(idempotency_key))
        answer = self._calls.ask(request, v1.CreateSnapshotResponse)
        return Snapshot(answer.snapshot, self._calls, answer.meta)

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
        """The snapshot after what is given was changed; None clears. Which one is current does not change."""
        spec, mask = masked(
            v1.SnapshotSpec,
            parent_snapshot_id=parent,
            upstream_created_at=timestamp(created_at),
            schema_json=schema_text(schema),
            schema_id=schema_id,
            partition_spec=partition_spec,
            sequence_number=sequence_number,
            manifest_list=manifest_list,
            metadata_location=metadata_location,
            summary=summary,
            format_metadata=format_metadata,
        )
        spec.table_id.CopyFrom(table_id(self._calls, table))
        spec.snapshot_id = snapshot_id(snapshot)
        request = v1.UpdateSnapshotRequest(spec=spec, update_mask=mask, precondition=precondition(if_version, if_etag))
        answer = self._calls.ask(request, v1.UpdateSnapshotResponse)
        return Snapshot(answer.snapshot, self._calls, answer.meta)

    def delete(
        self,
        table: Ref,
        snapshot: int | Snapshot,
        *,
        if_version: int | None = None,
        if_etag: str | None = None,
    ) -> Meta:
        """Delete a snapshot and its statistics; how it was stored last. The current one can go only as the last."""
        request = v1.DeleteSnapshotRequest(
            table_id=table_id(self._calls, table),
            snapshot_id=snapshot_id(snapshot),
            precondition=precondition(if_version, if_etag),
        )
        return Meta.of(self._calls.ask(request, v1.DeleteSnapshotResponse).meta)

    def set_current(self, table: Ref, snapshot: int | Snapshot) -> Snapshot:
        """Make a snapshot the current one, such as an older one to roll back."""
        request = v1.SetCurrentSnapshotRequest(table_id=table_id(self._calls, table), snapshot_id=snapshot_id(snapshot))
        answer = self._calls.ask(request, v1.SetCurrentSnapshotResponse)
        return Snapshot(answer.snapshot, self._calls, answer.meta)

    def _turn(self, table: v1.ResourceId) -> Turn[Snapshot]:
        def turn(page: v1.PageRequest) -> tuple[Sequence[Snapshot], v1.PageResponse]:
            request = v1.ListSnapshotsRequest(table_id=table, page=page)
            answer = self._calls.ask(request, v1.ListSnapshotsResponse)
            return [Snapshot(each, self._calls) for each in answer.snapshots], answer.page

        return turn

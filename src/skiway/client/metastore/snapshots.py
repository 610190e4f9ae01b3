"""Snapshots: the states of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from skiway.client.metastore.area import Area
from skiway.client.metastore.changes import KEEP, Json, Keep, filled, masked, precondition, schema_text, timestamp
from skiway.client.metastore.listing import Listing, Turn
from skiway.client.metastore.references import Ref, table_id
from skiway.client.metastore.resources import Meta
from skiway.client.metastore.snapshot import At, Snapshot, snapshot_id, snapshot_ref
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["Snapshots"]


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

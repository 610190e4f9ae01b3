"""A snapshot, and how one of a table's is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.changes import filled, time_of, timestamp
from skiway.client.metastore.resources import Meta
from skiway.errors import Conflict
from skiway.model import v1

__all__ = ["At", "Snapshot", "snapshot_id", "snapshot_ref"]


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

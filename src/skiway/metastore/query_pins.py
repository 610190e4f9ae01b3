"""The snapshot of each table that a query reads, and where all of it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import file_table, keys, places
from skiway.metastore.current import current, meant
from skiway.metastore.failures import failure
from skiway.metastore.kinds import SNAPSHOT
from skiway.metastore.query_inputs import Read
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Stored
from skiway.metastore.snapshots import STATISTICS
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["Pin", "PinnedSnapshot", "pins"]


@dataclass(frozen=True, slots=True)
class Pin:
    """A table in one state: what the query is told, what is stored of it, and the pointers it was read from."""

    told: v1.SnapshotPin
    stored: v1.PinnedTable
    pointers: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """A table as a query reads it, whatever happened to it since."""

    realm: Realm
    of: v1.PinnedTable

    def table(self) -> v1.Table:
        """The table, as it was defined when the query began."""
        return v1.Table.FromString(self._blob(self.of.table_uri))

    def snapshot(self) -> v1.Snapshot:
        """The snapshot."""
        return v1.Snapshot.FromString(self._blob(self.of.snapshot_uri))

    def table_stats(self) -> v1.TableStats | None:
        """The statistics of the table, if there were any."""
        return v1.TableStats.FromString(self._blob(self.of.table_stats_uri)) if self.of.table_stats_uri else None

    def columns(self) -> list[v1.ColumnStats]:
        """The statistics of the columns that had any."""
        uri = self.of.column_stats_uri
        return list(v1.ColumnStatsSet.FromString(self._blob(uri)).columns) if uri else []

    def files(self) -> pa.Table:
        """All files with their statistics, as `file_table.SCHEMA` says; empty where none were put."""
        uri = self.of.file_stats_uri
        return file_table.opened(v1.FileStatsSet.FromString(self._blob(uri)).arrow_file if uri else b"")

    def _blob(self, uri: str) -> bytes:
        return self.realm.stores.blobs.get(uri)


def pins(realm: Realm, reads: Iterable[Read], *, default: v1.SnapshotRef) -> list[Pin]:
    """One pin for each table, in the order in which the tables first come up; `default` is for what is left open."""
    wishes: dict[str, list[Read]] = {}
    for read in reads:
        wishes.setdefault(read.table_id.id, []).append(read)
    return [_pin(realm, each, default) for each in wishes.values()]


def _pin(realm: Realm, reads: list[Read], default: v1.SnapshotRef) -> Pin:
    table = places.table(realm, reads[0].table_id)
    said = [read.snapshot for read in reads if read.snapshot.WhichOneof("which")]
    first, *others = said or [default]
    snapshot = _snapshot(realm, table.value.resource_id.id, first)
    for other in others:
        _require_same(snapshot.value, _snapshot(realm, table.value.resource_id.id, other).value)
    return _stored(realm, table, snapshot, first)


def _snapshot(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    match ref.WhichOneof("which"):
        case "snapshot_id":
            found = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, ref.snapshot_id))
            if found is None:
                snapshot_id = str(ref.snapshot_id)
                raise failure(NotFound, "query.snapshot.not.in.table", table_id=table_id, snapshot_id=snapshot_id)
            return found
        case "as_of":
            try:
                return meant(realm, table_id, ref)
            except NotFound:
                as_of = ref.as_of.ToJsonString()
                raise failure(NotFound, "query.snapshot.not.found.at.time", table_id=table_id, as_of=as_of) from None
        case "special" if ref.special != v1.SS_CURRENT:
            raise failure(InvalidArgument, "snapshot.special.unsupported", field="snapshot", found=str(ref.special))
        case _:
            found = current(realm, table_id)
            if found is None:
                raise failure(NotFound, "query.table.no.queryable.snapshot", table_id=table_id)
            return found


def _require_same(pinned: v1.Snapshot, requested: v1.Snapshot) -> None:
    if pinned.snapshot_id != requested.snapshot_id:
        raise failure(
            PreconditionFailed,
            "query.table.pin.conflict",
            table_id=pinned.table_id.id,
            pinned_snapshot=str(pinned.snapshot_id),
            requested_snapshot=str(requested.snapshot_id),
        )


def _stored(realm: Realm, table: Stored[v1.Table], snapshot: Stored[v1.Snapshot], ref: v1.SnapshotRef) -> Pin:
    table_id, snapshot_id = table.value.resource_id, snapshot.value.snapshot_id
    statistics = {
        of: realm.stores.pointers.get(keys.statistics(realm.account_id, table_id.id, snapshot_id, of=of))
        for of in STATISTICS
    }
    uris = {of: pointer.blob_uri if pointer else "" for of, pointer in statistics.items()}
    as_of = ref.as_of if ref.WhichOneof("which") == "as_of" else None
    return Pin(
        v1.SnapshotPin(table_id=table_id, snapshot_id=snapshot_id, as_of=as_of),
        v1.PinnedTable(
            table_id=table_id,
            snapshot_id=snapshot_id,
            table_uri=table.pointer.blob_uri,
            snapshot_uri=snapshot.pointer.blob_uri,
            table_stats_uri=uris["table"],
            column_stats_uri=uris["columns"],
            file_stats_uri=uris["files"],
        ),
        (table.pointer, snapshot.pointer, *filter(None, statistics.values())),
    )

"""Which snapshot of a table is meant: by id, by time, or the current one.

The current snapshot is stored, never guessed from times: after a rollback it is an older one.
"""

from __future__ import annotations

from skiway.errors import Conflict, InvalidArgument, PreconditionFailed
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Claim, once
from skiway.metastore.records.kinds import SNAPSHOT
from skiway.metastore.records.names import refuse_secrets
from skiway.metastore.records.paging import listed
from skiway.metastore.records.parents import applied, retrying
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copy_field, masked_paths
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.current_snapshot import advancing, check_id, current, current_id, meant, newer
from skiway.metastore.resources.ownership import refuse_snapshots
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer

__all__ = ["STATISTICS", "create", "delete", "get", "list_", "set_current", "update"]


# --------------------
# Snapshots: the states of a table. What a snapshot says of its parent stays, whatever becomes of the parent.


MUTABLE = tuple(
    field.name for field in v1.SnapshotSpec.DESCRIPTOR.fields if field.name not in ("table_id", "snapshot_id")
)
REQUIRED = frozenset(("schema_json", "upstream_created_at"))
STATISTICS = ("table", "columns", "files")


def create(realm: Realm, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
    """A new snapshot, current if it is newer than the current one. Creating the same again returns the stored one."""
    spec = _normal(realm, request.spec)
    claim = Claim(realm, "CreateSnapshot", request.idempotency.key, spec, v1.CreateSnapshotResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def get(realm: Realm, request: v1.GetSnapshotRequest) -> v1.GetSnapshotResponse:
    """The snapshot with an id, as of a time, or the current one."""
    table_id = hierarchy.table(realm, request.table_id).value.resource_id.id
    found = meant(realm, table_id, request.snapshot)
    return v1.GetSnapshotResponse(snapshot=found.value, meta=found.meta)


def list_(realm: Realm, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
    """The snapshots of a table, newest first."""
    table_id = hierarchy.table(realm, request.table_id).value.resource_id.id
    found, page = listed(realm.all(SNAPSHOT), keys.snapshot_time(realm.account_id, table_id), request.page)
    return v1.ListSnapshotsResponse(snapshots=found, page=page)


def update(realm: Realm, request: v1.UpdateSnapshotRequest) -> v1.UpdateSnapshotResponse:
    """The snapshot after the masked fields were taken over. Which one is current does not change."""
    paths = masked_paths(request.update_mask, allowed=MUTABLE, resource="snapshot")
    spec = _normal(realm, request.spec)

    def edit(snapshot: v1.Snapshot) -> None:
        for path in paths:
            copy_field(spec, snapshot, path, required=path in REQUIRED)

    def attempt() -> Stored[v1.Snapshot]:
        table = hierarchy.table(realm, spec.table_id)
        refuse_snapshots(table.value)
        return updates.update(
            realm,
            realm.all(SNAPSHOT),
            keys.snapshot(realm.account_id, spec.table_id.id, spec.snapshot_id),
            name=str(spec.snapshot_id),
            precondition=request.precondition,
            edit=edit,
            write=lambda current, desired: realm.all(SNAPSHOT).update(
                current, desired, also=lambda _: [_unchanged(table)]
            ),
        )

    updated = retrying(attempt)
    return v1.UpdateSnapshotResponse(snapshot=updated.value, meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
    """Delete a snapshot and its statistics at once. The current one can go only as the last."""
    table_id = refuse_snapshots(hierarchy.table(realm, request.table_id).value).resource_id.id
    check_id(request.snapshot_id, field="snapshot_id")

    def remove(pointer: Pointer, snapshot: v1.Snapshot | None) -> None:
        batch = [
            *_leave_current(realm, table_id, request.snapshot_id),
            *_without_statistics(realm, table_id, request.snapshot_id),
        ]
        realm.all(SNAPSHOT).delete(pointer, snapshot, also=batch)

    meta = updates.delete(
        realm.all(SNAPSHOT),
        keys.snapshot(realm.account_id, table_id, request.snapshot_id),
        name=str(request.snapshot_id),
        precondition=request.precondition,
        remove=remove,
    )
    return v1.DeleteSnapshotResponse(meta=meta)


def set_current(realm: Realm, request: v1.SetCurrentSnapshotRequest) -> v1.SetCurrentSnapshotResponse:
    """Make a snapshot the current one, whatever its age."""

    def attempt() -> Stored[v1.Snapshot]:
        table = hierarchy.table(realm, request.table_id)
        table_id = refuse_snapshots(table.value).resource_id.id
        found = meant(realm, table_id, v1.SnapshotRef(snapshot_id=request.snapshot_id))
        before = realm.stores.pointers.get(keys.current_snapshot(realm.account_id, table_id))
        exists = Check(found.pointer.key, expect=found.pointer.version)
        batch = (_unchanged(table), exists, advancing(realm, table_id, request.snapshot_id, before=before))
        applied(realm, batch, what=f"the current snapshot of table {table_id}")
        return found

    found = retrying(attempt)
    return v1.SetCurrentSnapshotResponse(snapshot=found.value, meta=found.meta)


def _normal(realm: Realm, given: v1.SnapshotSpec) -> v1.SnapshotSpec:
    if not given.HasField("table_id") or not given.HasField("snapshot_id"):
        raise failure(InvalidArgument, "spec.missing.ids", field="spec")
    spec = updates.copied(given)
    table_id = local_id(realm, spec.table_id, v1.RK_TABLE, field="table_id")
    spec.table_id.CopyFrom(resource_id(realm, table_id, v1.RK_TABLE))
    check_id(spec.snapshot_id, field="snapshot_id")
    if spec.HasField("parent_snapshot_id"):
        check_id(spec.parent_snapshot_id, field="parent_snapshot_id")
    if not spec.schema_json.strip():
        spec.ClearField("schema_json")
    refuse_secrets(spec.summary, field="summary")
    return spec


def _create(realm: Realm, spec: v1.SnapshotSpec, claim: Claim[v1.CreateSnapshotResponse]) -> v1.CreateSnapshotResponse:
    table = hierarchy.table(realm, spec.table_id)
    table_id = refuse_snapshots(table.value).resource_id.id
    known = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, spec.snapshot_id))
    if known is not None:
        return _same_again(spec, known)
    snapshot = _new(realm, spec, schema_json=table.value.schema_json)
    pointer = realm.stores.pointers.get(keys.current_snapshot(realm.account_id, table_id))
    present = current(realm, table_id) if pointer else None

    def also(stored: Stored[v1.Snapshot]) -> list[Operation]:
        answer = v1.CreateSnapshotResponse(snapshot=stored.value, meta=stored.meta)
        advance: Operation = advancing(realm, table_id, snapshot.snapshot_id, before=pointer)
        if present is not None and not newer(snapshot, present.value):
            # The present one stays, but must not go meanwhile: a table that has snapshots has a current one.
            advance = Check(advance.key, expect=advance.expect)
        return [_unchanged(table), advance, *claim.remembering(answer)]

    created = realm.all(SNAPSHOT).create(snapshot, also=also)
    return v1.CreateSnapshotResponse(snapshot=created.value, meta=created.meta)


def _new(realm: Realm, spec: v1.SnapshotSpec, *, schema_json: str) -> v1.Snapshot:
    now = realm.now()
    snapshot = v1.Snapshot(table_id=spec.table_id, snapshot_id=spec.snapshot_id, ingested_at=now, updated_at=now)
    for field in MUTABLE:
        copy_field(spec, snapshot, field)
    snapshot.schema_json = spec.schema_json or schema_json
    return snapshot


def _same_again(spec: v1.SnapshotSpec, known: Stored[v1.Snapshot]) -> v1.CreateSnapshotResponse:
    """The stored snapshot, if it is what is asked for. A schema that is left out is that of then, not of now."""
    asked = updates.copied(known.value)
    for field in MUTABLE:
        if field != "schema_json" or spec.schema_json:
            copy_field(spec, asked, field)
    if asked != known.value:
        table_id, snapshot_id = spec.table_id.id, str(spec.snapshot_id)
        raise failure(Conflict, "snapshot.mismatch", table_id=table_id, snapshot_id=snapshot_id)
    return v1.CreateSnapshotResponse(snapshot=known.value, meta=known.meta)


def _unchanged(table: Stored[v1.Table]) -> Check:
    """Nothing is added to a table that is deleted meanwhile."""
    return Check(table.pointer.key, expect=table.pointer.version)


def _leave_current(realm: Realm, table_id: str, snapshot_id: int) -> list[Operation]:
    pointer = realm.stores.pointers.get(keys.current_snapshot(realm.account_id, table_id))
    if pointer is None:
        return [Check(keys.current_snapshot(realm.account_id, table_id), expect=ABSENT)]
    if current_id(pointer) != snapshot_id:
        return [Check(pointer.key, expect=pointer.version)]
    if len(realm.stores.pointers.page(keys.snapshot_time(realm.account_id, table_id), size=2).items) > 1:
        raise failure(PreconditionFailed, "snapshot.current", table_id=table_id, snapshot_id=str(snapshot_id))
    return [Delete(pointer.key, expect=pointer.version)]


def _without_statistics(realm: Realm, table_id: str, snapshot_id: int) -> list[Operation]:
    wanted = [keys.statistics(realm.account_id, table_id, snapshot_id, of=of) for of in STATISTICS]
    found = [(key, realm.stores.pointers.get(key)) for key in wanted]
    return [Delete(key, expect=at.version) if at else Check(key, expect=ABSENT) for key, at in found]

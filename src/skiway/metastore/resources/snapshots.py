"""Snapshots: the states of a table.

Which snapshot is current is stored, never derived from times: after a rollback it is an older one. A snapshot keeps the
id of its parent even after the parent is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeAlias

from skiway.errors import Conflict, Internal, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import SNAPSHOT
from skiway.metastore.records.names import refuse_secrets
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import Claim, apply_batch, copy_fields, masked_paths, once, retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import refuse_snapshots
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, Put

StoredSnapshot: TypeAlias = Stored[v1.Snapshot]

MUTABLE = tuple(
    field.name for field in v1.SnapshotSpec.DESCRIPTOR.fields if field.name not in ("table_id", "snapshot_id")
)
REQUIRED = frozenset(("schema_json", "upstream_created_at"))
STATISTICS = ("table", "columns", "files")


def create(realm: Realm, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
    """Create a snapshot, and make it current if it is newer than the current one.

    Creating the same snapshot again returns the stored one.
    """
    spec = _normal(realm, request.spec)
    claim = Claim(realm, "CreateSnapshot", request.idempotency.key, spec, v1.CreateSnapshotResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def get(realm: Realm, request: v1.GetSnapshotRequest) -> v1.GetSnapshotResponse:
    """Return the snapshot with an id, as of a time, or the current one."""
    table_id = hierarchy.table(realm, request.table_id).value.resource_id.id
    found = resolve(realm, table_id, request.snapshot)
    return v1.GetSnapshotResponse(snapshot=found.value, meta=found.meta)


def list_(realm: Realm, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
    """List the snapshots of a table, newest first."""
    table_id = hierarchy.table(realm, request.table_id, damaged=True).value.resource_id.id
    found, page = listed(realm.all(SNAPSHOT), keys.snapshot_time(realm.account_id, table_id), request.page)
    return v1.ListSnapshotsResponse(snapshots=found, page=page)


def update(realm: Realm, request: v1.UpdateSnapshotRequest) -> v1.UpdateSnapshotResponse:
    """Update the masked fields of a snapshot. Which snapshot is current does not change."""
    paths = masked_paths(request.update_mask, allowed=MUTABLE, resource="snapshot")
    spec = _normal(realm, request.spec)

    def edit(snapshot: v1.Snapshot) -> None:
        copy_fields(snapshot, spec, paths, REQUIRED)

    def attempt() -> Stored[v1.Snapshot]:
        table = hierarchy.table(realm, spec.table_id)
        refuse_snapshots(table.value)

        def write(current: Stored[v1.Snapshot], desired: v1.Snapshot) -> Stored[v1.Snapshot]:
            return realm.all(SNAPSHOT).update(current, desired, also=lambda _: [_unchanged(table)])

        key = keys.snapshot(realm.account_id, spec.table_id.id, spec.snapshot_id)
        return updates.update(realm, SNAPSHOT, str(spec.snapshot_id), request.precondition, edit, write, key=key)

    updated = retrying(attempt)
    return v1.UpdateSnapshotResponse(snapshot=updated.value, meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
    """Delete a snapshot together with its statistics. The current one can only be deleted last."""
    table_id = refuse_snapshots(hierarchy.table(realm, request.table_id).value).resource_id.id
    check_id(request.snapshot_id, field="snapshot_id")

    def remove(pointer: Pointer, snapshot: v1.Snapshot | None) -> None:
        batch = [
            *_leave_current(realm, table_id, request.snapshot_id),
            *without_statistics(realm, table_id, request.snapshot_id),
        ]
        realm.all(SNAPSHOT).delete(pointer, snapshot, also=batch)

    key = keys.snapshot(realm.account_id, table_id, request.snapshot_id)
    meta = updates.delete(realm.all(SNAPSHOT), key, str(request.snapshot_id), request.precondition, remove)
    return v1.DeleteSnapshotResponse(meta=meta)


def set_current(realm: Realm, request: v1.SetCurrentSnapshotRequest) -> v1.SetCurrentSnapshotResponse:
    """Make a snapshot current, even if it is an older one."""

    def attempt() -> Stored[v1.Snapshot]:
        table = hierarchy.table(realm, request.table_id)
        realm.require("table.write", table.value)
        table_id = refuse_snapshots(table.value).resource_id.id
        found = resolve(realm, table_id, v1.SnapshotRef(snapshot_id=request.snapshot_id))
        before = _current_pointer(realm, table_id)
        exists = Check(found.pointer.key, expect=found.pointer.version)
        batch = (_unchanged(table), exists, current_put(realm, table_id, request.snapshot_id, before=before))
        apply_batch(realm, batch, what=f"the current snapshot of table {table_id}")
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
    stored = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, spec.snapshot_id))
    if stored is not None:
        return _same_again(spec, stored)
    snapshot = _new(realm, spec, schema_json=table.value.schema_json)
    pointer = _current_pointer(realm, table_id)
    present = current(realm, table_id) if pointer else None
    advance: Operation = current_put(realm, table_id, snapshot.snapshot_id, before=pointer)
    if present is not None and _age(snapshot) <= _age(present.value):
        # The current one stays, but must not be deleted in the meantime: a table with snapshots has a current one.
        advance = Check(advance.key, expect=advance.expect)
    return claim.created(realm.all(SNAPSHOT), snapshot, (_unchanged(table), advance))


def _new(realm: Realm, spec: v1.SnapshotSpec, *, schema_json: str) -> v1.Snapshot:
    now = realm.now()
    snapshot = v1.Snapshot(table_id=spec.table_id, snapshot_id=spec.snapshot_id, ingested_at=now, updated_at=now)
    copy_fields(snapshot, spec, MUTABLE)
    snapshot.schema_json = spec.schema_json or schema_json
    return snapshot


def _same_again(spec: v1.SnapshotSpec, stored: Stored[v1.Snapshot]) -> v1.CreateSnapshotResponse:
    """The stored snapshot if it equals the spec.

    A missing schema means the one stored then, not the table's current one.
    """
    wanted = updates.copied(stored.value)
    copy_fields(wanted, spec, MUTABLE if spec.schema_json else set(MUTABLE) - {"schema_json"})
    if wanted != stored.value:
        table_id, snapshot_id = spec.table_id.id, str(spec.snapshot_id)
        raise failure(Conflict, "snapshot.mismatch", table_id=table_id, snapshot_id=snapshot_id)
    return v1.CreateSnapshotResponse(snapshot=stored.value, meta=stored.meta)


def _unchanged(table: Stored[v1.Table]) -> Check:
    """The check that the table has not changed and still exists."""
    return Check(table.pointer.key, expect=table.pointer.version)


def _leave_current(realm: Realm, table_id: str, snapshot_id: int) -> list[Operation]:
    pointer = _current_pointer(realm, table_id)
    if pointer is None:
        return [Check(keys.current_snapshot(realm.account_id, table_id), expect=ABSENT)]
    if stored_id(pointer) != snapshot_id:
        return [Check(pointer.key, expect=pointer.version)]
    if len(realm.stores.pointers.page(keys.snapshot_time(realm.account_id, table_id), size=2).items) > 1:
        raise failure(PreconditionFailed, "snapshot.current", table_id=table_id, snapshot_id=str(snapshot_id))
    return [Delete(pointer.key, expect=pointer.version)]


def without_statistics(
    realm: Realm, table_id: str, snapshot_id: int, *, kinds: Sequence[str] = STATISTICS
) -> list[Operation]:
    """The operations that delete statistics of a snapshot."""
    wanted = [keys.statistics(realm.account_id, table_id, snapshot_id, of=of) for of in kinds]
    found = [(key, realm.stores.pointers.get(key)) for key in wanted]
    return [Delete(key, expect=at.version) if at else Check(key, expect=ABSENT) for key, at in found]


# --- finding a snapshot -----------------------------------------------------------------------------------------------


def resolve(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    """The snapshot that `ref` names: by id, by time, or the current one."""
    match ref.WhichOneof("which"):
        case "snapshot_id":
            key = keys.snapshot(realm.account_id, table_id, ref.snapshot_id)
            return realm.all(SNAPSHOT).require(key, name=str(ref.snapshot_id))
        case "as_of":
            return _as_of(realm, table_id, ref)
        case "special" if ref.special == v1.SS_CURRENT:
            found = current(realm, table_id)
            if found is None:
                raise failure(NotFound, "snapshot.none", table_id=table_id)
            return found
        case "special":
            raise failure(InvalidArgument, "snapshot.special.missing", field="snapshot", found=str(ref.special))
        case _:
            raise failure(InvalidArgument, "snapshot.missing", field="snapshot")


def scan(realm: Realm, table_id: str) -> Iterator[v1.Snapshot]:
    """All snapshots of a table, by id."""
    return (found.value for found in realm.all(SNAPSHOT).scan(keys.snapshot(realm.account_id, table_id)))


def entries(realm: Realm, table_id: str) -> Iterator[v1.Snapshot]:
    """All snapshots of a table for a listing, by id. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(SNAPSHOT).entries(keys.snapshot(realm.account_id, table_id)))


def current(realm: Realm, table_id: str) -> StoredSnapshot | None:
    """The current snapshot, or None if the table has none yet."""
    where = keys.current_snapshot(realm.account_id, table_id)
    while (pointer := realm.stores.pointers.get(where)) is not None:
        snapshot = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, stored_id(pointer)))
        if snapshot is not None:
            return snapshot
        if realm.stores.pointers.get(where) == pointer:
            raise failure(Internal, "pointer.dangling", pointer=where)
    return None


def current_id(realm: Realm, table_id: str) -> int | None:
    """The id of the current snapshot, or None if the table has none yet."""
    pointer = _current_pointer(realm, table_id)
    return None if pointer is None else stored_id(pointer)


def current_at(realm: Realm, table_id: str, moment: datetime) -> tuple[int | None, bool]:
    """The id of the snapshot that was current at a recent moment, and whether the table has had another one since then.

    The moment is compared with the times of the commits, by the clocks of the servers. These are recorded for two hours.
    """
    micros = int(moment.timestamp() * 1_000_000)
    while True:
        now = _current_pointer(realm, table_id)
        found, is_replaced = (None if now is None else stored_id(now)), False
        for each in realm.stores.pointers.scan(keys.replaced_snapshot(realm.account_id, table_id), page_size=10):
            replaced_at, _, before = each.blob_uri.partition(":")
            if int(replaced_at) <= micros:
                break
            found, is_replaced = (int(before) if before else None), True
        if _current_pointer(realm, table_id) == now:
            return found, is_replaced


def writing(realm: Realm, transaction_id: str, table_id: str, snapshot_id: int, *, until: datetime) -> Put:
    """The operation that records which snapshot of a table a transaction has written last, for all servers."""
    key = keys.written_snapshot(realm.account_id, transaction_id, table_id)
    before = realm.stores.pointers.get(key)
    return Put(key, str(snapshot_id), expect=before.version if before else ABSENT, expires_at=until)


def written_by(realm: Realm, transaction_id: str, table_id: str) -> int | None:
    """The id of the snapshot of a table that a transaction has written last; None if it has not written to the table."""
    pointer = realm.stores.pointers.get(keys.written_snapshot(realm.account_id, transaction_id, table_id))
    return None if pointer is None else stored_id(pointer)


def stored_id(pointer: Pointer) -> int:
    """The snapshot id that the pointer to the current snapshot holds."""
    return int(pointer.blob_uri)


def current_put(realm: Realm, table_id: str, snapshot_id: int, *, before: Pointer | None) -> Put:
    """The operation that makes a snapshot the current one."""
    expect = ABSENT if before is None else before.version
    return Put(keys.current_snapshot(realm.account_id, table_id), str(snapshot_id), expect=expect)


def check_id(snapshot_id: int, *, field: str) -> None:
    """Raise unless the id is valid. 0 is."""
    if snapshot_id < 0:
        raise invalid_field(field, str(snapshot_id), "use a number from 0 on")


def _current_pointer(realm: Realm, table_id: str) -> Pointer | None:
    return realm.stores.pointers.get(keys.current_snapshot(realm.account_id, table_id))


def _age(snapshot: v1.Snapshot) -> tuple[int, int]:
    """Greater for a newer snapshot: of the same moment upstream, the greater id is newer; no time is the oldest."""
    return snapshot.upstream_created_at.ToNanoseconds(), snapshot.snapshot_id


def _as_of(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    prefix = keys.snapshot_time(realm.account_id, table_id)
    # Keys sort from new to old: everything behind the key of this moment is as old or older.
    before = keys.snapshot_time(realm.account_id, table_id, ref.as_of.ToMicroseconds()).rpartition("-")[0]
    pointers = realm.stores.pointers
    page = pointers.page(prefix, size=1, token=pointers.token_after(prefix, before))
    found = realm.all(SNAPSHOT).find_named(page.items[0].key) if page.items else None
    if found is None:
        as_of = ref.as_of.ToJsonString()
        raise failure(NotFound, "snapshot.not.found.at.time", table_id=table_id, as_of=as_of)
    return found

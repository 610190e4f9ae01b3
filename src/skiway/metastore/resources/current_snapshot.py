"""Which snapshot of a table a caller means: one by id, one by time, or the current one."""

from __future__ import annotations

from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import SNAPSHOT
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.model import v1
from skiway.storage import ABSENT, Pointer, Put

__all__ = ["advancing", "check_id", "current", "current_id", "meant", "newer"]


def meant(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    """The snapshot that `ref` names."""
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


def check_id(snapshot_id: int, *, field: str) -> None:
    """Raise unless a snapshot can have this id; 0 is one like any other."""
    if snapshot_id < 0:
        raise failure(
            InvalidArgument, "field.invalid", field=field, found=str(snapshot_id), wanted="use a number from 0 on"
        )


def current(realm: Realm, table_id: str) -> Stored[v1.Snapshot] | None:
    """The current snapshot, or None while the table has none."""
    where = keys.current_snapshot(realm.account_id, table_id)
    while (pointer := realm.stores.pointers.get(where)) is not None:
        key = keys.snapshot(realm.account_id, table_id, current_id(pointer))
        found = realm.all(SNAPSHOT).find(key)
        if found is not None:
            return found
        if realm.stores.pointers.get(where) == pointer:
            raise failure(Internal, "pointer.dangling", pointer=where)
    return None


def current_id(pointer: Pointer) -> int:
    """The id that the pointer to the current snapshot holds."""
    return int(pointer.blob_uri)


def advancing(realm: Realm, table_id: str, snapshot_id: int, *, before: Pointer | None) -> Put:
    """What a batch must do to make a snapshot the current one."""
    expect = ABSENT if before is None else before.version
    return Put(keys.current_snapshot(realm.account_id, table_id), str(snapshot_id), expect=expect)


def newer(one: v1.Snapshot, other: v1.Snapshot) -> bool:
    """Whether the one was made later upstream; of the same moment, the greater id is later. No time is the oldest."""
    return _age(one) > _age(other)


def _age(snapshot: v1.Snapshot) -> tuple[int, int]:
    return snapshot.upstream_created_at.ToNanoseconds(), snapshot.snapshot_id


def _as_of(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    prefix = keys.snapshot_time(realm.account_id, table_id)
    # Newest first: what follows the key of this moment is as old or older.
    before = keys.snapshot_time(realm.account_id, table_id, ref.as_of.ToMicroseconds()).rpartition("-")[0]
    pointers = realm.stores.pointers
    page = pointers.page(prefix, size=1, token=pointers.token_after(prefix, before))
    found = realm.all(SNAPSHOT).find_named(page.items[0].key) if page.items else None
    if found is None:
        as_of = ref.as_of.ToJsonString()
        raise failure(NotFound, "snapshot.not.found.at.time", table_id=table_id, as_of=as_of)
    return found

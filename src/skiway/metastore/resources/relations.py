"""What is left of a table that was deleted: its snapshots and statistics, which nobody can reach any more."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

from google.protobuf.message import Message

from skiway.errors import Conflict
from skiway.metastore.records import keys, updates
from skiway.metastore.records.kinds import TABLE, VIEW
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.ownership import remover, writable_id
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer

__all__ = ["clear", "counts", "entered", "place_ids", "purge_table"]


def purge_table(realm: Realm, table_id: str) -> int:
    """Delete the pointers of a table that is gone, in batches; how many. Gc does it for those who died on the way."""
    purged = 0
    remains = realm.stores.pointers.scan(keys.of_table(realm.account_id, table_id))
    gone = Check(keys.table(realm.account_id, table_id), expect=ABSENT)
    # The check takes one place; DynamoDB has the smallest batches.
    size = realm.stores.pointers.max_batch - 1
    while batch := list(islice(remains, size)):
        purged += _delete_all(realm, batch, gone)
    return purged


def _delete_all(realm: Realm, batch: list[Pointer], gone: Check) -> int:
    try:
        realm.stores.pointers.apply([gone, *(Delete(each.key, expect=each.version) for each in batch)])
    except Conflict:
        # Another is purging the same table.
        return 0
    return len(batch)


# --------------------
# Tables and views have this in common: they are in a namespace, under names that they share.


M = TypeVar("M", bound=Message)


def place_ids(realm: Realm, spec: v1.TableSpec | v1.ViewSpec) -> None:
    """Check the ids of catalog and namespace in a spec, those that are there, and write them as they are kept."""
    if spec.HasField("catalog_id"):
        catalog_id = writable_id(realm, spec.catalog_id, v1.RK_CATALOG, field="catalog_id")
        spec.catalog_id.CopyFrom(resource_id(realm, catalog_id, v1.RK_CATALOG))
    if spec.HasField("namespace_id"):
        namespace_id = writable_id(realm, spec.namespace_id, v1.RK_NAMESPACE, field="namespace_id")
        spec.namespace_id.CopyFrom(resource_id(realm, namespace_id, v1.RK_NAMESPACE))


def entered(
    realm: Realm, wanted: v1.Table | v1.View, current: v1.Table | v1.View | None = None
) -> tuple[Operation, ...]:
    """What a batch must check that puts a relation where it is wanted: nothing, if it is there already."""
    if current and (current.catalog_id, current.namespace_id) == (wanted.catalog_id, wanted.namespace_id):
        return ()
    return inside(hierarchy.namespace_in(realm, wanted.namespace_id, wanted.catalog_id).pointer)


def counts(realm: Realm, namespace_id: str) -> list[tuple[int, str]]:
    """How many tables and views a namespace holds."""
    count = realm.stores.pointers.count
    return [
        (count(keys.table_name(realm.account_id, namespace_id)), "table"),
        (count(keys.view_name(realm.account_id, namespace_id)), "view"),
    ]


def clear(realm: Realm, namespace_id: str) -> None:
    """Delete all tables and views of a namespace, one after the other."""
    for pointer in realm.stores.pointers.scan(keys.table_name(realm.account_id, namespace_id)):
        _delete(remover(realm, TABLE), keys.owner(pointer))
        purge_table(realm, keys.owner(pointer).rpartition("/")[2])
    for pointer in realm.stores.pointers.scan(keys.view_name(realm.account_id, namespace_id)):
        _delete(remover(realm, VIEW), keys.owner(pointer))


def _delete(repository: Repository[M], key: str) -> None:
    updates.delete(repository, key, name=key, precondition=v1.Precondition())

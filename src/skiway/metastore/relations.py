"""Tables and views have this in common: they are in a namespace, under names that they share."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from skiway.metastore import changes, keys, places
from skiway.metastore.ids import resource_id
from skiway.metastore.kinds import TABLE, VIEW
from skiway.metastore.managed import remover
from skiway.metastore.parents import inside
from skiway.metastore.purging import purge_table
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Repository
from skiway.metastore.reserved import writable_id
from skiway.model import v1
from skiway.storage import Operation

__all__ = ["clear", "counts", "entered", "place_ids"]

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
    return inside(places.namespace_in(realm, wanted.namespace_id, wanted.catalog_id).pointer)


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
    changes.delete(repository, key, name=key, precondition=v1.Precondition())

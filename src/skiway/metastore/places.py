"""The catalog, namespace or table that a caller means by an id."""

from __future__ import annotations

from skiway.errors import InvalidArgument
from skiway.metastore import keys
from skiway.metastore.failures import failure
from skiway.metastore.ids import local_id
from skiway.metastore.kinds import CATALOG, NAMESPACE, TABLE
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Stored
from skiway.model import v1

__all__ = ["catalog", "namespace", "namespace_in", "table"]


def catalog(realm: Realm, given: v1.ResourceId, *, field: str = "catalog_id") -> Stored[v1.Catalog]:
    """The catalog whose id was sent as `field`."""
    catalog_id = local_id(realm, given, v1.RK_CATALOG, field=field)
    return realm.all(CATALOG).require(keys.catalog(realm.account_id, catalog_id), name=catalog_id)


def namespace(realm: Realm, given: v1.ResourceId, *, field: str = "namespace_id") -> Stored[v1.Namespace]:
    """The namespace whose id was sent as `field`."""
    namespace_id = local_id(realm, given, v1.RK_NAMESPACE, field=field)
    return realm.all(NAMESPACE).require(keys.namespace(realm.account_id, namespace_id), name=namespace_id)


def namespace_in(realm: Realm, namespace_id: v1.ResourceId, catalog_id: v1.ResourceId) -> Stored[v1.Namespace]:
    """The namespace, which must be in that catalog."""
    wanted = local_id(realm, catalog_id, v1.RK_CATALOG, field="catalog_id")
    found = namespace(realm, namespace_id)
    if found.value.catalog_id.id != wanted:
        catalog(realm, catalog_id)
        raise failure(
            InvalidArgument, "namespace.catalog.mismatch", namespace_id=namespace_id.id, catalog_id=catalog_id.id
        )
    return found


def table(realm: Realm, given: v1.ResourceId, *, field: str = "table_id") -> Stored[v1.Table]:
    """The table whose id was sent as `field`."""
    table_id = local_id(realm, given, v1.RK_TABLE, field=field)
    return realm.all(TABLE).require(keys.table(realm.account_id, table_id), name=table_id)

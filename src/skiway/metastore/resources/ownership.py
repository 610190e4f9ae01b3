"""Who may change what: system objects, managed catalogs and managed tables.

System objects are the same for all accounts, visible in every catalog, and read-only.

A managed catalog has no connector, so its users created everything in it. Engines that read it may be case-insensitive,
so names in a managed catalog that differ only in case are the same name: whoever writes a namespace, table or view
there also reserves its case-folded name. Names that a connector mirrors may differ in case only, as they do upstream.
Whether a catalog is managed can change only while it is empty, so everything in a managed catalog has its reservation,
and nothing elsewhere has one.

The record of a managed table follows from its metadata file, so its schema, properties and snapshots change only by
commits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Final, TypeVar

from skiway.errors import AlreadyExists, PermissionDenied, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CATALOG, Kind, folding
from skiway.metastore.records.names import dotted, folded
from skiway.metastore.records.realm import Realm, kind_name, local_id
from skiway.metastore.records.repository import Repository
from skiway.model import v1

__all__ = [
    "SYSTEM_ACCOUNT",
    "SYSTEM_NAMESPACES",
    "is_managed",
    "refuse_fields",
    "refuse_snapshots",
    "refuse_system_path",
    "remover",
    "require_managed",
    "writable_id",
    "writer",
]

C = TypeVar("C", v1.Namespace, v1.Table, v1.View)

_COMMITTED: Final = ("schema_json", "properties", "upstream")
SYSTEM_ACCOUNT = "_system"
"""The account in the ids of system objects."""

SYSTEM_NAMESPACES = ("information_schema", "skiway")
"""The namespaces at the top of every catalog."""


def refuse_system_path(path: Sequence[str]) -> None:
    """Raise if a namespace at `path` would hide a system namespace, or be inside one.

    Names are compared case-insensitively.
    """
    if folded(path[0]) not in SYSTEM_NAMESPACES:
        return
    if len(path) == 1:
        raise failure(AlreadyExists, "namespace.reserved", resource="namespace", name=path[0])
    raise failure(PermissionDenied, "system.object.immutable", resource="namespace", name=dotted(path))


def writable_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    """The text of an id that the request has in `field`, of a resource to be changed. Raise for a system object."""
    if given.account_id == SYSTEM_ACCOUNT:
        raise failure(PermissionDenied, "system.object.immutable", resource=kind_name(kind), name=given.id)
    return local_id(realm, given, kind, field=field)


def is_managed(catalog: v1.Catalog) -> bool:
    """Whether the catalog has no connector."""
    return not catalog.connector_ref


def writer(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which one resource is created or updated. Get a new one for each resource."""

    @cache
    def managed(catalog_id: str) -> bool:
        return is_managed(realm.all(CATALOG).require(keys.catalog(realm.account_id, catalog_id), name=catalog_id).value)

    return realm.all(folding(kind, managed))


def remover(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which a resource is deleted, together with its case-folded reservation if it has one."""
    return realm.all(folding(kind, lambda _: True))


def refuse_fields(table: v1.Table, paths: Collection[str]) -> None:
    """Raise if the table is managed and one of the fields comes from its metadata."""
    owned = sorted(path for path in paths if path.partition(".")[0] in _COMMITTED)
    if table.metadata_location and owned:
        raise _refused(table, ", ".join(owned))


def refuse_snapshots(table: v1.Table) -> v1.Table:
    """Return the table. Raise if it is managed."""
    if table.metadata_location:
        raise _refused(table, "snapshots")
    return table


def require_managed(table: v1.Table) -> v1.Table:
    """Return the table. Raise if it is not managed."""
    if not table.metadata_location:
        raise PreconditionFailed(
            f"table {table.display_name} is not a managed table: trigger the connector that mirrors it",
            key="table.not_managed",
            id=table.resource_id.id,
        )
    return table


def _refused(table: v1.Table, what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{what} of managed table {table.display_name} cannot be set, because its commits define them: change the table "
        "with SQL, or commit to it as an Iceberg table",
        key="table.managed",
        id=table.resource_id.id,
    )

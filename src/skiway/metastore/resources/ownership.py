"""What belongs to the system: it is the same for all accounts, visible from every catalog, and written by nobody."""

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

SYSTEM_ACCOUNT = "_system"
"""The account in the ids of system objects."""

SYSTEM_NAMESPACES = ("information_schema", "skiway")
"""They are in every catalog, at its top."""


def refuse_system_path(path: Sequence[str]) -> None:
    """Raise if a namespace at `path` would hide one of the system's, or be inside one; case makes no difference."""
    if folded(path[0]) not in SYSTEM_NAMESPACES:
        return
    if len(path) == 1:
        raise failure(AlreadyExists, "namespace.reserved", resource="namespace", name=path[0])
    raise failure(PermissionDenied, "system.object.immutable", resource="namespace", name=dotted(path))


def writable_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    """The text of an id that was sent as `field` by somebody who wants to change what it stands for."""
    if given.account_id == SYSTEM_ACCOUNT:
        raise failure(PermissionDenied, "system.object.immutable", resource=kind_name(kind), name=given.id)
    return local_id(realm, given, kind, field=field)


# --------------------
# Managed catalogs: those without a connector, so that all they hold was put there by their users.
#
# Engines that read them may not tell upper from lower case, so in a managed catalog names that differ in case only are one
# name: whoever writes a namespace, table or view there claims it in its folded form too. What a connector brings in is
# named as it is upstream, in any case. Whether a catalog is managed changes only while it is empty, so all that is in a
# managed catalog has its claim, and nothing elsewhere has one.


C = TypeVar("C", v1.Namespace, v1.Table, v1.View)


def is_managed(catalog: v1.Catalog) -> bool:
    """Whether no connector fills the catalog."""
    return not catalog.connector_ref


def writer(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which one resource is created or updated; for the next one, take another."""

    @cache
    def managed(catalog_id: str) -> bool:
        return is_managed(realm.all(CATALOG).require(keys.catalog(realm.account_id, catalog_id), name=catalog_id).value)

    return realm.all(folding(kind, managed))


def remover(realm: Realm, kind: Kind[C]) -> Repository[C]:
    """The repository through which a resource is deleted: with its claim, wherever there is one."""
    return realm.all(folding(kind, lambda _: True))


# --------------------
# What of a managed table only a commit may change: its record says what its metadata file says, and nothing else.


_COMMITTED: Final = ("schema_json", "properties", "upstream")


def refuse_fields(table: v1.Table, paths: Collection[str]) -> None:
    """Raise if the table is managed and one of the fields comes from its metadata."""
    owned = sorted(path for path in paths if path.partition(".")[0] in _COMMITTED)
    if table.metadata_location and owned:
        raise _refused(table, ", ".join(owned))


def refuse_snapshots(table: v1.Table) -> v1.Table:
    """The table, or an error if it is managed."""
    if table.metadata_location:
        raise _refused(table, "snapshots")
    return table


def require_managed(table: v1.Table) -> v1.Table:
    """The table, or an error if it is not managed."""
    if not table.metadata_location:
        raise PreconditionFailed(
            f"table {table.display_name} is not managed here: trigger the connector that brings it in",
            key="table.not_managed",
            id=table.resource_id.id,
        )
    return table


def _refused(table: v1.Table, what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{what} of managed table {table.display_name} cannot be set: they follow from its commits; change the table "
        "with SQL, or commit to it as an Iceberg table",
        key="table.managed",
        id=table.resource_id.id,
    )

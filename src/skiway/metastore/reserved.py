"""What belongs to the system: it is the same for all accounts, visible from every catalog, and written by nobody."""

from __future__ import annotations

from collections.abc import Sequence

from skiway.errors import AlreadyExists, PermissionDenied
from skiway.metastore.failures import failure
from skiway.metastore.ids import kind_name, local_id
from skiway.metastore.names import dotted, folded
from skiway.metastore.realm import Realm
from skiway.model import v1

__all__ = ["SYSTEM_ACCOUNT", "SYSTEM_NAMESPACES", "refuse_system_path", "writable_id"]

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

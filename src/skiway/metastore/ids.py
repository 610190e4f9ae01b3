"""Ids as callers send them: checked for kind, and never looked for outside the caller's account."""

from __future__ import annotations

from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.failures import failure
from skiway.metastore.realm import Realm
from skiway.model import v1

__all__ = ["kind_name", "local_id", "resource_id"]


def resource_id(realm: Realm, text: str, kind: v1.ResourceKind.ValueType) -> v1.ResourceId:
    """The id `text` in the realm's account."""
    return v1.ResourceId(account_id=realm.account_id, id=text, kind=kind)


def local_id(realm: Realm, given: v1.ResourceId, kind: v1.ResourceKind.ValueType, *, field: str) -> str:
    """The text of an id that was sent as `field`. An id of another account is answered as one that does not exist."""
    if given.kind not in (kind, v1.RK_UNSPECIFIED):
        raise failure(InvalidArgument, "kind", field=field, found=kind_name(given.kind), wanted=kind_name(kind))
    if not given.id.strip():
        raise failure(InvalidArgument, "field", field=field)
    if given.account_id not in ("", realm.account_id):
        raise failure(NotFound, kind_name(kind), resource=kind_name(kind), id=given.id)
    return given.id


def kind_name(kind: int) -> str:
    """What people call a kind of resource; numbers of the future have no name yet."""
    known = v1.ResourceKind.DESCRIPTOR.values_by_number.get(kind)
    return f"kind {kind}" if known is None else known.name.removeprefix("RK_").lower()

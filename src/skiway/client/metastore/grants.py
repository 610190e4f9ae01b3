"""Grants: privileges of users and roles on catalogs, namespaces, tables and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from skiway.client.metastore.collection import Area, Listing, listing_of
from skiway.client.metastore.names import Id, Ref
from skiway.client.metastore.objects import ObjectKind, object_id
from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = ["Grant", "Grants", "Privilege"]

Privilege = Literal["read", "write", "manage"]

_PRIVILEGES: Final[Mapping[str, v1.Privilege.ValueType]] = {
    "read": v1.PV_READ,
    "write": v1.PV_WRITE,
    "manage": v1.PV_MANAGE,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """A privilege of a grantee on an object. `grantee` is `user:<subject>` or `role:<name>`."""

    object_id: Id
    kind: str
    grantee: str
    privilege: str
    created_at: datetime
    damage: str = ""
    """In listings, what is wrong if the record is lost or corrupt; then it grants nothing."""

    @classmethod
    def of(cls, grant: v1.Grant) -> Grant:
        """Convert the message."""
        return cls(
            Id(grant.object_id.id),
            v1.ResourceKind.Name(grant.object_id.kind).removeprefix("RK_").lower(),
            grant.grantee,
            v1.Privilege.Name(grant.privilege).removeprefix("PV_").lower(),
            grant.created_at.ToDatetime(UTC),
            grant.damage,
        )


class Grants(Area):
    """`lake.grants`. An object is named like `lake`, `lake.sales` or `lake.sales.people`.

    `kind` is needed only for an `Id`, and where a namespace and a table or view have the same name.
    """

    def __call__(
        self,
        on: Ref | None = None,
        *,
        kind: ObjectKind | None = None,
        grantee: str = "",
        page_size: int | None = None,
    ) -> Listing[Grant]:
        """List the grants on an object, or on all; to a grantee, or to all."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Grant]]:
            found = None if on is None else object_id(self._calls, on, kind)
            return {"object_id": found, "grantee": grantee}, Grant.of

        return listing_of(self._calls, "ListGrants", "grants", start, page_size)

    def add(self, on: Ref, grantee: str, privilege: Privilege, *, kind: ObjectKind | None = None) -> Grant:
        """Grant a privilege, in place of the one that the grantee has on the object."""
        if privilege not in _PRIVILEGES:
            raise InvalidArgument(
                f"privilege {privilege!r} does not exist: choose from {', '.join(_PRIVILEGES)}",
                key="field.invalid",
                field="privilege",
            )
        response = self._calls.rpc(
            "AddGrant", object_id=object_id(self._calls, on, kind), grantee=grantee, privilege=_PRIVILEGES[privilege]
        )
        return Grant.of(response.grant)

    def revoke(self, on: Ref, grantee: str, *, kind: ObjectKind | None = None) -> bool:
        """Revoke the privilege that a grantee has on an object; return whether it had one."""
        response = self._calls.rpc("RevokeGrant", object_id=object_id(self._calls, on, kind), grantee=grantee)
        return bool(response.meta.pointer_version)

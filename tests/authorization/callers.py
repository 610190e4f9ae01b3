"""The columns of the authorization matrix: callers by role and by grant, and what the matrix expects of them.

The rows are all calls of all doors. A row names the least privilege that suffices for a caller without any role: on the
table `lake.sales.people`, its namespace or its catalog. Whoever has it on what contains the object has it on the object.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import scope
from skiway.errors import Unauthorized
from skiway.metastore import Realm
from skiway.metastore.resources import grants, policies
from skiway.model import v1
from skiway.security import Principal, Roles
from skiway.security.authentication import ROLES

CONTAINS: Final = {
    "catalog": {"catalog", "namespace", "table"},
    "namespace": {"namespace", "table"},
    "table": {"table"},
    "elsewhere": {"elsewhere"},
}
"""What each object contains. `elsewhere` is a table of another catalog, about which no row asks."""

RANKS: Final = {"read": v1.PV_READ, "write": v1.PV_WRITE, "manage": v1.PV_MANAGE}


@dataclass(frozen=True, slots=True)
class Least:
    """The least privilege for a call, on an object. Without an object, a privilege on any object admits the caller."""

    privilege: str
    on: str = ""


ROLES_ONLY: Final = None
"""No grant suffices for the call."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller in account `a1`, unless said otherwise, with roles or with grants.

    One that is `trusted_elsewhere` also has all privileges on `elsewhere`: they admit it to every call, so that only the
    check of the object can stop it.
    """

    name: str
    account_id: str = "a1"
    permissions: frozenset[str] = frozenset()
    on: str = ""
    privilege: str = ""
    trusted_elsewhere: bool = False

    @property
    def grants(self) -> Mapping[str, str]:
        """Privileges by object."""
        own = {self.on: self.privilege} if self.on else {}
        return own | ({"elsewhere": "manage"} if self.trusted_elsewhere else {})

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.account_id, frozenset({"tester"}), self.permissions)

    def has_role_for(self, any_of: Collection[str]) -> bool:
        return not self.permissions.isdisjoint(any_of)

    def has_grant_for(self, least: Least | None) -> bool:
        return least is not None and any(
            RANKS[privilege] >= RANKS[least.privilege] and (not least.on or least.on in CONTAINS[on])
            for on, privilege in self.grants.items()
        )

    def __str__(self) -> str:
        return self.name


def _grantee(on: str, privilege: str) -> Caller:
    return Caller(f"{privilege} on {on}", permissions=ROLES["member"], on=on, privilege=privilege)


EVERYTHING: Final = frozenset().union(*Roles().table().values())
TRUSTED_ELSEWHERE: Final = [
    replace(_grantee(on, "read"), name=f"read on {on}, all elsewhere", trusted_elsewhere=True)
    for on in ("catalog", "table")
]
GRANTEES: Final = [*(_grantee(on, privilege) for on in CONTAINS for privilege in RANKS), *TRUSTED_ELSEWHERE]
CALLERS: Final = [
    Caller("nobody", account_id=""),
    Caller("stranger", account_id="a2", permissions=EVERYTHING - Roles().platform_permissions(["platform-admin"])),
    *(Caller(role, permissions=permissions) for role, permissions in ROLES.items()),
    *(Caller(role, account_id="", permissions=permissions) for role, permissions in Roles().platform_table().items()),
    *GRANTEES,
]
RESTRICTED: Final = Caller("restricted", permissions=ROLES["administrator"])
"""A caller who may do everything, but for policies on the table: a row filter, and a mask."""

FEW: Final = (
    *("nobody", "stranger", "default", "administrator", "member", "platform-admin"),
    *("read on table", "write on table", "read on namespace", "write on namespace", "write on catalog"),
    *("manage on catalog", "manage on elsewhere", "read on catalog, all elsewhere"),
)
SOME: Final = [caller for caller in CALLERS if scope.ALL or caller.name in FEW]
"""The callers that differ most, for doors whose calls take longer."""


class ByName:
    """An authenticator whose tokens are the names of the callers. `nobody` has a token that is not known."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        name = headers.get("authorization", "").removeprefix("Bearer ")
        known = {caller.name: caller for caller in (*CALLERS, RESTRICTED) if caller.name != "nobody"}
        if name not in known:
            raise Unauthorized("this token is not known", key="token.unknown")
        return known[name].principal


def add_policies(realm: Realm, table_id: v1.ResourceId) -> None:
    """Restrict `RESTRICTED`, and nobody else, on a table."""
    for name, rule in (
        ("some rows", {"row_filter": v1.PolicyFilter(predicate="1 = 2")}),
        ("no names", {"mask": v1.PolicyMask(kind=v1.MK_NULL, columns=["name"])}),
    ):
        spec = v1.PolicySpec(display_name=name, subjects=["user:restricted"], objects=[table_id], **rule)
        policies.calls(lambda *_: []).create(realm, v1.CreatePolicyRequest(spec=spec))


def add_view_policy(realm: Realm, view_id: v1.ResourceId) -> None:
    """Restrict `RESTRICTED`, and nobody else, on a view."""
    hidden = v1.PolicyFilter(predicate="1 = 2")
    spec = v1.PolicySpec(display_name="no adults", subjects=["user:restricted"], objects=[view_id], row_filter=hidden)
    policies.calls(lambda *_: []).create(realm, v1.CreatePolicyRequest(spec=spec))


def add_grants(realm: Realm, objects: Mapping[str, v1.ResourceId]) -> None:
    """Give each grantee of the matrix its grant; `objects` are the objects by the names of `CONTAINS`."""
    for caller in GRANTEES:
        for on, privilege in caller.grants.items():
            request = v1.AddGrantRequest(
                object_id=objects[on], grantee=f"user:{caller.name}", privilege=RANKS[privilege]
            )
            grants.add(realm, request)

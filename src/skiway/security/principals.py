"""Principals, roles and permissions: who a caller is, and what they may do.

Account roles act inside one account. Platform roles act on all accounts, and only for callers without an account, to whom the
operator has assigned them. Role names are case-insensitive. A role that is not in a table grants nothing; identity
providers add roles of their own to every token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized

__all__ = [
    "DEFAULT_ROLE",
    "DEVELOPER_ROLE",
    "MANAGES_ACCOUNTS",
    "MEMBER_ROLE",
    "NOBODY",
    "OBSERVES_PLATFORM",
    "PLATFORM",
    "PLATFORM_ADMIN_ROLE",
    "PLATFORM_MONITOR_ROLE",
    "READ",
    "ROLES",
    "Accounts",
    "Authorizer",
    "Claim",
    "PermissionAuthorizer",
    "Principal",
    "Roles",
    "normal_roles",
]

Claim = str | float | bool | Sequence[str] | None
"""The value of a claim that policies can read."""

PLATFORM = ""
"""The account id of callers with a platform role, who belong to no account."""

MANAGES_ACCOUNTS = "platform.accounts"
"""The permission to act on all accounts. Account roles never have it."""

OBSERVES_PLATFORM = "platform.observe"
"""The permission to read the metrics of the whole server."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Only `permissions` decide. `roles` are in lower case and include unknown ones.

    Policies can name `groups`, and read `claims`, which are those of the caller's token. A job that maintains a table has its
    `table_id`: it may read and write this table, whatever grants and policies say. A function of a pipeline `reads` tables in the
    same way.
    """

    subject: str
    account_id: str
    roles: frozenset[str]
    permissions: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Claim] = field(default_factory=dict, hash=False)
    table_id: str = ""
    reads: frozenset[str] = frozenset()
    read_only: bool = False
    """Whether it can only read, also what was granted to it for writing."""

    @property
    def is_nobody(self) -> bool:
        """Whether this is the empty principal, that is, the call was not authenticated."""
        return not (self.subject or self.account_id or self.roles or self.permissions)

    @property
    def is_platform(self) -> bool:
        """Whether this is a caller with a platform role, who belongs to no account."""
        return self.account_id == PLATFORM and not self.is_nobody


NOBODY = Principal("", PLATFORM, frozenset(), frozenset())
"""The empty principal. Authorizers reject it."""


class Accounts(Protocol):
    """Lookup of accounts."""

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id, or else with this name."""

    def first(self) -> str | None:
        """The id of the first account in some stable order, or None if there is none."""


DEFAULT_ROLE = "default"
DEVELOPER_ROLE = "developer"
MEMBER_ROLE = "member"
"""The role of callers who may only do what was granted to them."""

PLATFORM_ADMIN_ROLE = "platform-admin"
PLATFORM_MONITOR_ROLE = "platform-monitor"

READ = frozenset({"account.read", "catalog.read", "namespace.read", "table.read", "view.read"})
WRITE = frozenset({"catalog.write", "namespace.write", "table.write", "view.write"})
WORK = READ | WRITE | {"connector.manage", "system-objects.read"}
ADMINISTER = WORK | {"account.delete", "grant.manage", "policy.manage", "webhook.manage"}
PLATFORM_ADMINISTER = frozenset(
    {"account.read", "account.write", "account.delete", MANAGES_ACCOUNTS, OBSERVES_PLATFORM}
)
START_ACCOUNT = frozenset(
    {"account.read", "account.write", "catalog.read", "catalog.write", "connector.create"}
    | {"namespace.read", "namespace.write"}
)
INTERNAL = frozenset({"storage-authority.resolve-internal", "reconcile-executor-control.internal"})

ROLES: Mapping[str, frozenset[str]] = {
    DEFAULT_ROLE: READ,
    "administrator": ADMINISTER,
    DEVELOPER_ROLE: ADMINISTER,
    MEMBER_ROLE: frozenset({"account.read"}),
    "init-account": START_ACCOUNT,
    "delete-account": frozenset({"account.delete"}),
    "system-objects": frozenset({"system-objects.read"}),
    "reconcile-worker": WORK | INTERNAL,
}
"""Permissions by account role."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The tables of account roles and platform roles, with the configured name of the platform administrator role."""

    platform_admin: str = PLATFORM_ADMIN_ROLE

    def __post_init__(self) -> None:
        name = self.platform_admin.strip().lower()
        if not name or name in ROLES or name == PLATFORM_MONITOR_ROLE:
            raise InvalidArgument(
                f"the name of the platform administrator role is {self.platform_admin!r}, which is "
                f"{'the name of another role' if name else 'blank'}: choose another, such as {PLATFORM_ADMIN_ROLE}"
            )
        object.__setattr__(self, "platform_admin", name)

    def permissions(self, roles: Iterable[str]) -> frozenset[str]:
        """The permissions of all these roles in an account; those of `default` if none is an account role."""
        known = normal_roles(roles) & ROLES.keys()
        return frozenset[str]().union(*(ROLES[role] for role in known or {DEFAULT_ROLE}))

    def platform_permissions(self, roles: Iterable[str]) -> frozenset[str]:
        """The permissions of all these roles on the platform; none if none is a platform role."""
        table = self.platform_table()
        return frozenset[str]().union(*(table[role] for role in normal_roles(roles) & table.keys()))

    def developer(self) -> frozenset[str]:
        """All permissions, for callers in mode `dev`."""
        return self.permissions([DEVELOPER_ROLE]) | PLATFORM_ADMINISTER | INTERNAL

    def granting(self, *permissions: str, platform: bool = False) -> list[str]:
        """The names of the roles that grant one of these permissions in an account, or on the platform, sorted."""
        table = self.platform_table() if platform else ROLES
        return sorted(role for role, allowed in table.items() if not allowed.isdisjoint(permissions))

    def platform_table(self) -> Mapping[str, frozenset[str]]:
        """Permissions by platform role."""
        return {self.platform_admin: PLATFORM_ADMINISTER, PLATFORM_MONITOR_ROLE: frozenset({OBSERVES_PLATFORM})}

    def table(self) -> Mapping[str, frozenset[str]]:
        """Permissions by role: account roles, then platform roles."""
        return {**ROLES, **self.platform_table()}


def normal_roles(roles: Iterable[str]) -> frozenset[str]:
    """The names in lower case, without blank ones."""
    return frozenset(name for role in roles if (name := role.strip().lower()))


class Authorizer(Protocol):
    """Decides whether a caller may do something. A server accepts any implementation."""

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return if the caller has one of the permissions.

        Raises `PermissionDenied` if it has none, and `Unauthorized` if the call was not authenticated.
        """


class PermissionAuthorizer:
    """Decides by the permissions of the principal only."""

    def __init__(self, roles: Roles | None = None) -> None:
        self._roles = roles or Roles()

    def require(self, principal: Principal, *any_of: str) -> None:
        """See `Authorizer`. Without any permission to choose from, every caller is rejected."""
        if principal.is_nobody:
            raise Unauthorized(
                f"this requires {_either(any_of)}, but the call is not authenticated: authenticate first",
                key="principal.missing",
            )
        if principal.permissions.isdisjoint(any_of):
            raise self._denied(principal, any_of)

    def _denied(self, principal: Principal, any_of: tuple[str, ...]) -> PermissionDenied:
        roles = ", ".join(sorted(principal.roles)) or "no role"
        where = f"in account {principal.account_id}" if principal.account_id else "on the platform"
        granting = self._roles.granting(*any_of, platform=principal.is_platform)
        remedy = f"ask for one of the roles {', '.join(granting)}" if granting else "no role grants it"
        return PermissionDenied(
            f"this requires {_either(any_of)}, but {principal.subject} {where} has {roles}: {remedy}",
            key="permission.missing",
            permission="|".join(any_of),
            subject=principal.subject,
            roles=", ".join(sorted(principal.roles)),
        )


def _either(permissions: tuple[str, ...]) -> str:
    return f"the permission {' or '.join(permissions)}" if permissions else "a permission that is not specified"

"""Who calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized

__all__ = [
    "DEFAULT_ROLE",
    "DEVELOPER_ROLE",
    "NOBODY",
    "PLATFORM",
    "PLATFORM_ADMIN_ROLE",
    "ROLES",
    "Accounts",
    "Authorizer",
    "PermissionAuthorizer",
    "Principal",
    "Roles",
    "normal_roles",
]

PLATFORM = ""
"""The account of those who look after all accounts, and own nothing themselves."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `permissions` decide; `roles` are where they came from, in lower case, also unknown ones."""

    subject: str
    account_id: str
    roles: frozenset[str]
    permissions: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None

    @property
    def is_nobody(self) -> bool:
        """Nothing is known of the caller: its identity was lost on the way, or it was never asked."""
        return not (self.subject or self.account_id or self.roles or self.permissions)

    @property
    def is_platform(self) -> bool:
        """The caller looks after accounts and is in none."""
        return self.account_id == PLATFORM and not self.is_nobody


NOBODY = Principal("", PLATFORM, frozenset(), frozenset())
"""The empty principal: no authorizer lets it pass."""


class Accounts(Protocol):
    """The accounts there are, as far as security must know them."""

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id, or else with this name."""

    def first(self) -> str | None:
        """The id of some account, always the same one while there is no new one; None when there is none."""


# --------------------
# Which role may do what.
#
# Names are compared without regard to case. A role that is not in the table grants nothing and does no harm: identity
# providers add their own to every token.


DEFAULT_ROLE = "default"
DEVELOPER_ROLE = "developer"
PLATFORM_ADMIN_ROLE = "platform-admin"

READ = frozenset({"account.read", "catalog.read", "namespace.read", "table.read", "view.read"})
WRITE = frozenset({"catalog.write", "namespace.write", "table.write", "view.write"})
WORK = READ | WRITE | {"connector.manage", "system-objects.read"}
ADMINISTER = WORK | {"account.delete"}
PLATFORM_ADMINISTER = frozenset({"account.read", "account.write", "account.delete"})
START_ACCOUNT = frozenset(
    {"account.read", "account.write", "catalog.read", "catalog.write", "connector.create"}
    | {"namespace.read", "namespace.write"}
)
INTERNAL = frozenset({"storage-authority.resolve-internal", "reconcile-executor-control.internal"})

ROLES: Mapping[str, frozenset[str]] = {
    DEFAULT_ROLE: READ,
    "administrator": ADMINISTER,
    DEVELOPER_ROLE: ADMINISTER,
    "init-account": START_ACCOUNT,
    "delete-account": frozenset({"account.delete"}),
    "system-objects": frozenset({"system-objects.read"}),
    "reconcile-worker": WORK | INTERNAL,
}
"""Permissions by role; that of the platform's administrator is beside it, as its name can be chosen."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The table of roles, with the name that the identity provider has for the platform's administrator."""

    platform_admin: str = PLATFORM_ADMIN_ROLE

    def __post_init__(self) -> None:
        name = self.platform_admin.strip().lower()
        if not name or name in ROLES:
            raise InvalidArgument(
                f"the role of the platform's administrator is called {self.platform_admin!r}, which is "
                f"{'the name of another role' if name else 'blank'}: choose another, such as {PLATFORM_ADMIN_ROLE}"
            )
        object.__setattr__(self, "platform_admin", name)

    def permissions(self, roles: Iterable[str]) -> frozenset[str]:
        """What these roles allow together; reading, for a caller without any role known here."""
        table = self.table()
        known = normal_roles(roles) & table.keys()
        return frozenset[str]().union(*(table[role] for role in known or {DEFAULT_ROLE}))

    def developer(self) -> frozenset[str]:
        """What the caller of a development server may: everything."""
        return self.permissions([DEVELOPER_ROLE]) | PLATFORM_ADMINISTER | INTERNAL

    def granting(self, *permissions: str) -> list[str]:
        """The roles that allow one of these, by name."""
        return sorted(role for role, allowed in self.table().items() if not allowed.isdisjoint(permissions))

    def table(self) -> Mapping[str, frozenset[str]]:
        """Permissions by role, with the platform's administrator."""
        return {**ROLES, self.platform_admin: PLATFORM_ADMINISTER}


def normal_roles(roles: Iterable[str]) -> frozenset[str]:
    """The names as they are compared, without blank ones."""
    return frozenset(name for role in roles if (name := role.strip().lower()))


# --------------------
# Who may do what.


class Authorizer(Protocol):
    """Decides whether a caller may do something. Replaceable: give the server another one."""

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return when the caller has one of the permissions.

        Raises `PermissionDenied` when it has none, and `Unauthorized` when there is no caller at all.
        """


class PermissionAuthorizer:
    """Looks into the principal's list of permissions, and nowhere else."""

    def __init__(self, roles: Roles | None = None) -> None:
        self._roles = roles or Roles()

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return when one of the permissions is in the list. A call for which none is named is nobody's to make."""
        if principal.is_nobody:
            raise Unauthorized(
                f"this needs {_either(any_of)}, and nobody is known to have called: authenticate first",
                key="principal.missing",
            )
        if principal.permissions.isdisjoint(any_of):
            raise self._denied(principal, any_of)

    def _denied(self, principal: Principal, any_of: tuple[str, ...]) -> PermissionDenied:
        roles = ", ".join(sorted(principal.roles)) or "no role"
        where = f"in account {principal.account_id}" if principal.account_id else "on the platform"
        granting = self._roles.granting(*any_of)
        remedy = f"ask for one of the roles {', '.join(granting)}" if granting else "no role grants it"
        return PermissionDenied(
            f"this needs {_either(any_of)}, and {principal.subject} {where} has {roles}: {remedy}",
            key="permission.missing",
            permission="|".join(any_of),
            subject=principal.subject,
            roles=", ".join(sorted(principal.roles)),
        )


def _either(permissions: tuple[str, ...]) -> str:
    return f"the permission {' or '.join(permissions)}" if permissions else "a permission that nobody named"

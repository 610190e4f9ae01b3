"""Which role may do what.

Names are compared without regard to case. A role that is not in the table grants nothing and does no harm: identity
providers add their own to every token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skiway.errors import InvalidArgument

__all__ = ["DEFAULT_ROLE", "DEVELOPER_ROLE", "PLATFORM_ADMIN_ROLE", "ROLES", "Roles", "normal_roles"]

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

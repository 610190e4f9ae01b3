"""Who may do what."""

from __future__ import annotations

from typing import Protocol

from skiway.errors import PermissionDenied, Unauthorized
from skiway.security.principals import Principal
from skiway.security.roles import Roles

__all__ = ["Authorizer", "PermissionAuthorizer"]


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

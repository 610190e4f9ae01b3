"""Who is asking: the principal behind an Airport call, and what it may do."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from skiway.airport import current_request
from skiway.metastore import Realm
from skiway.security import NOBODY, Authenticator, Authorizer, Principal

__all__ = ["Callers"]

_principal: ContextVar[Principal] = ContextVar("skiway_lake_principal", default=NOBODY)


@dataclass(frozen=True)
class Callers:
    """Finds out who calls, from the call's headers; it is an authenticator to the Airport server."""

    authenticator: Authenticator
    authorizer: Authorizer
    realm_of: Callable[[Principal], Realm]

    def authenticate(self, token: str | None) -> str:  # noqa: ARG002 - all headers count, not the token alone
        """The subject of the caller; raises `Unauthorized`."""
        sent = {name: value for name, value in current_request().metadata if isinstance(value, str)}
        principal = self.authenticator.authenticate(sent)
        _principal.set(principal)
        return principal.subject

    @property
    def principal(self) -> Principal:
        """The caller of now."""
        return _principal.get()

    def realm(self) -> Realm:
        """What the caller's account holds."""
        return self.realm_of(self.principal)

    def require(self, *any_of: str) -> None:
        """Raise unless the caller has one of these permissions."""
        self.authorizer.require(self.principal, *any_of)

    def may(self, permission: str) -> bool:
        """Whether the caller has the permission, for what is merely not shown to those without."""
        return permission in self.principal.permissions

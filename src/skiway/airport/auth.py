"""Who may call, and what catalogs they may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import msgspec

from skiway.airport.request import Request, enter
from skiway.errors import PermissionDenied, SkiwayError, Unauthorized

__all__ = ["Authenticator", "BearerAuth", "CatalogAuthorizer"]

# DuckDB uses the token of ATTACH for catalog work only and looks it up by scope for everything else, so people meet
# this error in the middle of a query; it must say what to type.
NO_TOKEN = (
    "this server needs a token, and the call had none. In DuckDB: "  # noqa: S105  (a sentence, not a secret)
    "CREATE SECRET (TYPE airport, auth_token '…', SCOPE '{location}'); a token given to ATTACH alone does not reach scans"
)


class Authenticator(Protocol):
    """Turns credentials into an identity."""

    def authenticate(self, token: str | None) -> str:
        """The identity behind `token`; raises `Unauthorized`. Headers are in `current_request()`."""


class CatalogAuthorizer(ABC):
    """An authenticator that also decides about catalogs; it is asked on every call, after `authenticate`."""

    @abstractmethod
    def authorize_catalog(self, request: Request, catalog: str) -> Request | None:
        """Allow by returning the request, enriched or as it is (or None for that); refuse by raising."""


class BearerAuth:
    """Checks `authorization: Bearer …` with a function from token to identity.

    `BearerAuth({"secret": "ada"}.get)` is enough: no identity means refused.
    """

    def __init__(self, check: Callable[[str], str | None]) -> None:
        self._check = check

    def authenticate(self, token: str | None) -> str:
        """The identity that the function gives for the token."""
        if token is None:
            raise Unauthorized("a bearer token is required")
        identity = self._check(token)
        if not identity:
            raise Unauthorized("the token is not valid here: ask for a new one, or check that it was copied whole")
        return identity


def admit(request: Request, authenticator: Authenticator | None) -> Request:
    """`request` with its identity, made current; refuses strangers where there is an authenticator."""
    enter(request)
    if authenticator is None:
        return request
    try:
        identity = authenticator.authenticate(request.token)
    except Unauthorized as refusal:
        if request.token is None:
            location = request.header("authority") or "grpc://…"
            raise Unauthorized(NO_TOKEN.format(location=location)) from refusal
        raise
    admitted = msgspec.structs.replace(request, identity=identity)
    enter(admitted)
    return admitted


def authorize(request: Request, authenticator: object) -> Request:
    """`request`, whose catalog is settled, after the authorizer let it pass; its refusal is `PermissionDenied`."""
    if not isinstance(authenticator, CatalogAuthorizer):
        enter(request)
        return request
    try:
        allowed = authenticator.authorize_catalog(request, request.catalog) or request
    except SkiwayError:
        raise
    except Exception as refusal:
        raise PermissionDenied(str(refusal) or f"no access to catalog {request.catalog!r}") from refusal
    enter(allowed)
    return allowed

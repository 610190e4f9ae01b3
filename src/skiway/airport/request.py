"""Who is asking, and for what: the facts of the call being served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from skiway.airport.wire import headers

__all__ = ["Request", "current_request"]


@dataclass(frozen=True)
class Request:
    """The call being served.

    `claims` is where a `CatalogAuthorizer` leaves what it knows about the caller, by returning `request.with_claims(…)`.
    """

    method: str = ""
    catalog: str = ""
    identity: str = ""
    trace_id: str = ""
    session_id: str = ""
    transaction_id: str = ""
    token: str | None = field(default=None, repr=False)
    peer: str = ""
    headers: Mapping[str, tuple[str | bytes, ...]] = field(default_factory=dict, repr=False)
    claims: Mapping[str, Any] = field(default_factory=dict)
    is_active: Callable[[], bool] = field(default=lambda: True, repr=False)

    def header(self, name: str) -> str:
        """The first value of a header, or ""; names are lower-case."""
        values = self.headers.get(name)
        return str(values[0]) if values else ""

    def with_claims(self, **claims: Any) -> Request:
        """The same request with more claims."""
        return replace(self, claims={**self.claims, **claims})


_current: ContextVar[Request | None] = ContextVar("skiway_airport_request", default=None)
_NOBODY = Request()


def current_request() -> Request:
    """The call that this thread is serving; outside of any call, one that names nobody and nothing."""
    return _current.get() or _NOBODY


def enter(request: Request) -> None:
    """Make `request` current for this thread, until the next call on it."""
    _current.set(request)


def read_request(
    method: str,
    metadata: Mapping[str, tuple[str | bytes, ...]],
    *,
    peer: str = "",
    is_active: Callable[[], bool] = lambda: True,
) -> Request:
    """The request that the headers tell of, before anyone checked them."""

    def first(name: str) -> str:
        values = metadata.get(name)
        return str(values[0]) if values else ""

    return Request(
        method=method,
        catalog=first(headers.CATALOG),
        trace_id=first(headers.TRACE_ID),
        session_id=first(headers.SESSION_ID),
        transaction_id=first(headers.TRANSACTION_ID) or first(headers.JSON_TRANSACTION_ID),
        token=_bearer(first(headers.AUTHORIZATION)),
        peer=peer,
        headers=metadata,
        is_active=is_active,
    )


def _bearer(authorization: str) -> str | None:
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None

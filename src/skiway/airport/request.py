"""The call being served: who calls, for what, and what observers learn about it.

A context variable holds the current request, and a new thread starts without one. `submit` and `with_request` pass it on:

    with ThreadPoolExecutor() as pool:
        files = [submit(pool, read, path) for path in paths]

`acting_as` sets it, to test a table without a server.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from skiway.airport.wire import protocol
from skiway.errors import InvalidArgument, PermissionDenied, SkiwayError, Unauthorized
from skiway.foundation.doors import bearer_token, is_valid_header

log = logging.getLogger("skiway.airport")


class Connection(Protocol):
    """The connection of a call, such as grpcio's servicer context."""

    def peer(self) -> str:
        """The client's address."""

    def is_active(self) -> bool:
        """Whether the client is still connected."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call a function when the call ends; False if it has ended."""


class Request(msgspec.Struct, frozen=True, kw_only=True):  # made on every call, and cheaper so than as a dataclass
    """The call being served.

    A `CatalogAuthorizer` stores what it knows about the caller in `claims`, by returning `request.with_claims(…)`.
    """

    method: str = ""
    catalog: str = ""
    identity: str = ""
    trace_id: str = ""
    session_id: str = ""
    transaction_id: str = ""
    token: str | None = None
    claims: Mapping[str, Any] = {}
    metadata: Sequence[tuple[str, str | bytes]] = ()
    connection: Any = None
    call: ServedCall | None = None

    @property
    def headers(self) -> Mapping[str, tuple[str | bytes, ...]]:
        """All headers; names are lower-case."""
        collected: dict[str, tuple[str | bytes, ...]] = {}
        for name, value in self.metadata:
            collected[name] = (*collected.get(name, ()), value)
        return collected

    def header(self, name: str) -> str:
        """The first value of a header, or ""."""
        return next((str(value) for key, value in self.metadata if key == name), "")

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.connection.peer() if self.connection is not None else ""

    def is_active(self) -> bool:
        """Whether the client is still connected; long-running work can check it and stop."""
        return self.connection is None or bool(self.connection.is_active())

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in another thread, when the call has ended or its client is gone; at once if it is already."""
        if self.connection is not None and not self.connection.add_callback(callback):
            callback()

    def with_claims(self, **claims: Any) -> Request:
        """The same request with more claims."""
        return msgspec.structs.replace(self, claims={**self.claims, **claims})

    def within(self, catalog: str) -> Request:
        """The same request, about `catalog`."""
        return self if catalog == self.catalog else msgspec.structs.replace(self, catalog=catalog)

    def __repr__(self) -> str:  # without the token, which the headers hold too
        shown = ("method", "catalog", "identity", "trace_id", "session_id", "transaction_id")
        return f"Request({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class ServedCall(msgspec.Struct, kw_only=True):
    """One call as an observer sees it.

    The facts are filled in while the call runs and are complete when the observer's block ends: the operation (`scan`,
    `insert`, `create_table`, ...), the schema and the name of the object, and the rows and bytes in both directions.
    `target` is the table or function itself. `request` has the caller's identity and the catalog. An error passes
    through the observer's block as an exception.
    """

    method: str
    correlation_id: str
    request: Request
    operation: str = ""
    schema: str = ""
    name: str = ""
    target: Any = None
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


Observer: TypeAlias = Callable[[ServedCall], AbstractContextManager[object]]
"""A function that returns a context manager for each call; it is entered before the caller is authenticated."""


_current: ContextVar[Request | None] = ContextVar("skiway_airport_request", default=None)
_NOBODY = Request()


def call_of(request: Request) -> ServedCall:
    """The call of a request, for its handlers to fill in; one that nobody observes if it has none."""
    return request.call or ServedCall(method=request.method, correlation_id="", request=request)


def current_request() -> Request:
    """The request that this thread is serving; outside of a call, an empty one.

    Threads that a call starts get its request with `submit` or `with_request`.
    """
    return _current.get() or _NOBODY


def enter(request: Request) -> None:
    """Make `request` current. grpcio gives each call a context of its own, so it ends with the call."""
    _current.set(request)
    if request.call is not None:
        request.call.request = request


@contextmanager
def entered(request: Request) -> Iterator[None]:
    """Make `request` current within the block."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)


def read_request(
    method: str, metadata: Sequence[tuple[str, str | bytes]], connection: Connection | None = None
) -> Request:
    """The request that the headers describe, not authenticated yet."""
    first: dict[str, Any] = dict(metadata[::-1])
    call = ServedCall(method=method, correlation_id=_correlation_id(first), request=_NOBODY)
    call.request = Request(
        method=method,
        call=call,
        catalog=first.get(protocol.CATALOG, ""),
        trace_id=first.get(protocol.TRACE_ID, ""),
        session_id=first.get(protocol.SESSION_ID, ""),
        transaction_id=first.get(protocol.TRANSACTION_ID) or first.get(protocol.JSON_TRANSACTION_ID, ""),
        token=bearer_token(first.get(protocol.AUTHORIZATION, "")),
        metadata=metadata,
        connection=connection,
    )
    return call.request


def _correlation_id(first: Mapping[str, Any]) -> str:
    """The caller's own id if it can be logged, else the trace id that DuckDB sends, else a new one."""
    for name in (protocol.CORRELATION_ID, protocol.TRACE_ID):
        value = str(first.get(name, "")).strip()
        if value and is_valid_header(value):
            return value
    return uuid.uuid4().hex


# -- authentication ---------------------------------------------------------------------------------------------------

# DuckDB uses the token of ATTACH only for the catalog and looks up a secret by scope for everything else, so users see
# this error in the middle of a query; it must say what to type.
NO_TOKEN = (
    "this server needs a token, and the call had none. In DuckDB: "  # noqa: S105  (a sentence, not a secret)
    "CREATE SECRET (TYPE airport, auth_token '…', SCOPE '{location}'); a token given to ATTACH alone does not reach scans"
)


class Authenticator(Protocol):
    """Identifies callers."""

    def authenticate(self, token: str | None) -> str:
        """Return the identity of `token`, or raise `Unauthorized`. Headers are in `current_request()`.

        Anything but a non-empty string denies access.
        """


class CatalogAuthorizer(ABC):
    """An authenticator that also decides about catalogs, on every call after `authenticate`."""

    @abstractmethod
    def authorize_catalog(self, request: Request, catalog: str) -> Request:
        """Allow by returning the request, with or without claims; deny by raising `PermissionDenied`.

        Anything but a request denies access.
        """


class BearerAuth:
    """Checks `authorization: Bearer …` with a function from token to identity.

    `BearerAuth({"secret": "ada"}.get)` is enough: a token without identity is rejected.
    """

    def __init__(self, check: Callable[[str], str | None]) -> None:
        passed: object = check
        if not callable(passed):
            fix = "write BearerAuth({…}.get)" if isinstance(passed, dict) else "pass a function from token to identity"
            raise InvalidArgument(f"BearerAuth got a {type(passed).__name__}, not a function: {fix}")
        self._check = check

    def authenticate(self, token: str | None) -> str:
        """Return the identity of the token."""
        if token is None:
            raise Unauthorized("a bearer token is required")
        identity = self._check(token)
        if not identity:
            raise Unauthorized("the token is not valid here: get a new one, or check that it was copied completely")
        return identity


def admit(request: Request, authenticator: Authenticator | None) -> Request:
    """Authenticate the caller and make `request` current, with its identity."""
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
    if not isinstance(identity, str) or not identity:
        log.error(
            "access denied: %s.authenticate returned %r instead of an identity; return a non-empty string, or raise "
            "Unauthorized",
            type(authenticator).__name__,
            identity,
        )
        raise Unauthorized("the server could not identify the caller")
    admitted = msgspec.structs.replace(request, identity=identity)
    enter(admitted)
    return admitted


def authorize(request: Request, authenticator: object) -> Request:
    """Ask the authorizer about the catalog of `request`; errors other than ours are `PermissionDenied`."""
    if not isinstance(authenticator, CatalogAuthorizer):
        enter(request)
        return request
    try:
        allowed: object = authenticator.authorize_catalog(request, request.catalog)
    except SkiwayError:
        raise
    except Exception as refusal:
        raise PermissionDenied(f"no access to catalog {request.catalog!r}") from refusal
    if not isinstance(allowed, Request):
        log.error(
            "access denied: %s.authorize_catalog returned %r instead of a Request; return the request to allow access, "
            "raise PermissionDenied to deny it",
            type(authenticator).__name__,
            allowed,
        )
        raise PermissionDenied(f"no access to catalog {request.catalog!r}")
    enter(allowed)
    return allowed


P = ParamSpec("P")
T = TypeVar("T")


def with_request(function: Callable[P, T]) -> Callable[P, T]:
    """`function` with the request that is current now, in whichever thread it runs.

    For `Thread(target=with_request(work))` and `executor.map(with_request(work), items)`. It may be called several times,
    also at once.
    """
    context = contextvars.copy_context()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)  # a context cannot be entered twice at once

    return run


def submit(executor: Executor, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Submit a call of `function` to a thread pool, where `current_request()` returns the request that is current now."""
    return executor.submit(with_request(function), *args, **kwargs)


@contextmanager
def acting_as(
    identity: str = "",
    *,
    transaction_id: str = "",
    catalog: str = "",
    token: str | None = None,
    claims: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Request]:
    """Run a block as if a server called it for `identity`, in a transaction or without one: for unit tests of tables.

    Code in the block gets this request from `current_request()`. Read the rows of a scan within the block, because a
    generator runs only when it is read.
    """
    request = Request(
        identity=identity,
        transaction_id=transaction_id,
        catalog=catalog,
        token=token,
        claims=dict(claims or {}),
        metadata=tuple((name.lower(), value) for name, value in (headers or {}).items()),
    )
    with entered(request):
        yield request

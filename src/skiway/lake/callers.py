"""The callers of the Airport server: what they may do, and what they have looked up.

Their calls run through the request pipeline. What they have looked up is kept as long as it is certain to be the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from skiway.airport.request import ServedCall
from skiway.airport.server.call_handlers import code_of
from skiway.errors import PermissionDenied
from skiway.foundation.cache import Cache
from skiway.lake.history import QueryLog
from skiway.metastore import Realm
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.policies import CallerPolicies, Restriction
from skiway.metastore.resources.views import BoundNames
from skiway.model import v1
from skiway.request_path import Access, Call, Kind, Observers, Operation, Pipeline, read_context
from skiway.security import NOBODY, Principal
from skiway.sql.measures import begin_measures

T = TypeVar("T")

COMPONENT: Final = "Airport"

_CATEGORIES: Final = {
    "create_schema": "namespace",
    "drop_schema": "namespace",
    "list_schemas": "catalog",
    "list_catalogs": "catalog",
    "list_flights": "catalog",
    "catalog_version": "catalog",
    "create_transaction": "query",
    "get_transaction_status": "query",
    "commit_transaction": "query",
    "rollback_transaction": "query",
    "column_statistics": "statistics",
    "handshake": "system",
    "list_actions": "system",
}
"""Under which category an operation of Airport is audited; the others are about a table."""

_KINDS: Final[dict[str, Kind]] = {
    "scan": "scans",
    "exchange": "exchanges",
    "put": "exchanges",
    "handshake": "handshakes",
}
"""The kind of a call in the quotas, by the operation that is known when the call begins."""

_call: ContextVar[Call | None] = ContextVar("skiway_lake_call", default=None)
_acting: ContextVar[Call | None] = ContextVar("skiway_lake_acting", default=None)
"""The call with the rights of the definer of a view, while the view is read."""
_bound: ContextVar[BoundNames | None] = ContextVar("skiway_lake_bound", default=None)
"""What the names in that view mean."""


@lru_cache(maxsize=1000)
def operation_of(name: str) -> Operation:
    """The operation that the request pipeline knows an operation of Airport by.

    It has no permissions of its own: the catalog, its schemas and its tables ask for them with `Callers.require`.
    Operations of Flight SQL begin with the name of that protocol.
    """
    protocol, _, own = name.rpartition("/")
    if protocol:
        category = "catalog" if own.startswith("Get") else "query"
        return Operation(protocol, own, category)
    return Operation(COMPONENT, name, _CATEGORIES.get(name, "table"), counts_as=_KINDS.get(name, "calls"))


class RunningCall(NamedTuple):
    """A call that is being served, and when it began."""

    served: ServedCall
    call: Call
    began: datetime


class Callers:
    """Runs the calls of the Airport server through the request pipeline, and tells the lake who calls.

    It is the authenticator and the observer of the Airport server.
    """

    def __init__(self, access: Access, observers: Observers | None = None, history: QueryLog | None = None) -> None:
        self.history = history or QueryLog()
        self._pipeline = Pipeline(
            access,
            observers or Observers(),
            log=logging.getLogger("skiway.airport"),
            status_of=lambda error: code_of(error).name,
        )
        self._lock = Lock()
        self._running: dict[int, RunningCall] = {}

    def running(self) -> list[RunningCall]:
        """The calls that this server is serving for the caller's account, from old to new."""
        with self._lock:
            calls = list(self._running.values())
        account_id = self.authenticated.account_id
        return [
            running for running in calls if running.call.principal and running.call.principal.account_id == account_id
        ]

    @contextmanager
    def observe(self, served: ServedCall) -> Iterator[None]:
        """Run a call of the Airport server inside the pipeline."""
        headers = {name: value for name, value in served.request.metadata if isinstance(value, str)}
        context, _ = read_context(
            headers, COMPONENT, ids=lambda: served.correlation_id, is_active=served.request.is_active
        )
        call = Call(operation_of(served.operation), headers, context)
        with self._pipeline.observe(call):
            _call.set(call)
            running = RunningCall(served, call, datetime.now(UTC))
            measures, failure = begin_measures(), None
            with self._lock:
                self._running[id(running)] = running
            try:
                yield
            except BaseException as error:
                failure = error
                raise
            finally:
                with self._lock:
                    del self._running[id(running)]
                call.operation = operation_of(served.operation)
                call.details = _details(served)
                self._pipeline.count_transfer(
                    call, rows=(served.rows_in, served.rows_out), sizes=(served.bytes_in, served.bytes_out)
                )
                if call.principal is not None and call.principal.account_id:
                    realm = partial(self._pipeline.access.realm_of, call.principal)
                    self.history.add(realm, served, call, measures, running.began, failure)

    def authenticate(self, token: str | None) -> str:  # noqa: ARG002 - every header counts, not only the token
        """The subject of the caller; raises `Unauthorized`."""
        call = _call.get()
        assert call is not None, "the Airport server enters `observe` before it authenticates"
        return self._pipeline.authenticate(call).subject

    @property
    def authenticated(self) -> Principal:
        """The caller of the current call."""
        return _principal(_call.get())

    def identity(self) -> tuple[str, str]:
        """The account and the subject of the caller."""
        caller = self.authenticated
        return caller.account_id, caller.subject

    @property
    def principal(self) -> Principal:
        """The principal that permissions are checked for: the caller or, while a view with definer rights is read, its definer."""
        return _principal(_acting.get() or _call.get())

    @property
    def bound(self) -> BoundNames | None:
        """What names mean while a view with definer rights is read; None for names that the caller chose."""
        return _bound.get()

    def acting_as(self, principal: Principal, bound: BoundNames, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """What `rows` yields with the rights of another one in the same account, who chose the names that it looks up."""
        call = _call.get()
        assert call is not None, "the Airport server enters `observe` before a view is read"
        assert principal.account_id == self.authenticated.account_id, "rights end with the account"
        acting = copy(call)
        acting.principal, acting.decision = principal, self._pipeline.access.decide(principal)
        return self._acting(acting, bound, rows)

    def _acting(self, acting: Call, bound: BoundNames | None, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        acting.realm = acting.rights = None
        acting.branches = {}
        context = copy_context()
        context.run(_acting.set, acting)
        context.run(_bound.set, bound)
        found = context.run(rows)
        try:
            while True:
                try:
                    row = context.run(next, found)
                except StopIteration:
                    return
                yield row
        finally:
            if isinstance(found, Generator):
                context.run(found.close)

    def seeing_as(self, name: str, policies: CallerPolicies, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """What `rows` yields with the rights of the caller and the policies of another one, under a name that nobody else has."""
        call = _call.get()
        assert call is not None, "the Airport server enters `observe` before a function is called"
        assert call.decision is not None, "and authenticates the caller"
        acting = copy(call)
        acting.principal, acting.decision = replace(_principal(call), subject=name), copy(call.decision)
        acting.decision.policies = policies
        return self._acting(acting, None, rows)

    def own_realm(self) -> Realm:
        """The realm of the caller, also while a view with definer rights is read."""
        return self._realm(_call.get())

    def realm(self) -> Realm:
        """What the caller may see and change of its account."""
        return self._realm(_acting.get() or _call.get())

    def _realm(self, call: Call | None) -> Realm:
        if call is None:
            return self._pipeline.access.realm_of(NOBODY)
        call.is_narrowed = True  # operations have no permissions of their own, so the decision holds for all of them
        return self._pipeline.realm(call)

    def state(self) -> tuple[Hashable, Hashable] | None:
        """The state of the store during this call, which every change in it changes, and the rights of the caller.

        None if the store cannot tell its state.
        """
        call = _acting.get() or _call.get()
        since = None if call is None else call.started
        stored = self._pipeline.access.realm_of(self.principal).stored_state(since=since)
        return None if stored is None else (stored, self.rights)

    def require(self, permission: str, on: Message | None = None) -> None:
        """Raise unless the caller has the permission: on an object, or on some object in the account."""
        if (principal := self.principal).is_platform:
            raise PermissionDenied(
                f"{principal.subject} belongs to no account, and catalogs belong to accounts: use a token of an account",
                key="account.required",
                subject=principal.subject,
            )
        decision = self._decision()
        if decision is None or not decision.somewhere(permission):
            self._pipeline.access.authorizer.require(self.principal, permission)
        elif on is not None:
            decision.require(permission, on)

    def refuse_query_tokens(self, what: str) -> None:
        """Raise if the caller is a query, with the token that it got to read tables."""
        if self.authenticated.read_only:
            raise PermissionDenied(f"a query on Spark cannot {what}", key="token.read_only")

    def may(self, permission: str) -> bool:
        """Whether the caller has the permission in the whole account, or on some object in it.

        Use it for objects that are hidden from other callers. `require` is for calls that are rejected.
        """
        decision = self._decision()
        return decision is not None and decision.somewhere(permission)

    def restriction(self, on: v1.Table | v1.View) -> Restriction | None:
        """What policies leave of a table or view for the caller; None if none restricts it."""
        decision = self._decision()
        return None if decision is None or decision.policies is None else decision.policies.of(on)

    @property
    def is_under_policies(self) -> bool:
        """Whether a policy of the account names the caller, on whichever tables."""
        decision = self._decision()
        return decision is not None and decision.policies is not None and decision.policies.restrict_anything

    @property
    def claims(self) -> Mapping[str, object]:
        """What `caller('…')` returns in the expressions of policies."""
        decision = self._decision()
        return {} if decision is None or decision.policies is None else decision.policies.subject.values

    @property
    def visibility(self) -> Hashable:
        """Equal for callers who see the same objects."""
        decision = self._decision()
        return None if decision is None else decision.visibility

    @property
    def rights(self) -> Hashable:
        """Equal for calls that, in the same state of the store, may see the same: grants and policies are stored."""
        call = _acting.get() or _call.get()
        if call is None or call.decision is None:
            return _lasting(self.principal), None
        if call.rights is None:  # asked for several times in a call
            call.rights = _shared_rights(_lasting(_principal(call)), call.decision.by_roles)
        return call.rights

    def _decision(self) -> AccessDecision | None:
        call = _acting.get() or _call.get()
        return None if call is None else call.decision


class BranchCallers(Callers):
    """The callers on a branch of the lake: the same, with the realm of the branch, and the rights that they have on main.

    `open_` returns the realm of a caller on the branch with an id.
    """

    def __init__(self, callers: Callers, branch_id: str, open_: Callable[[Realm], Realm]) -> None:
        self.__dict__.update(callers.__dict__)
        self._branch_id, self._on_branch = branch_id, open_

    def _realm(self, call: Call | None) -> Realm:
        main = super()._realm(call)
        if call is None:
            return self._on_branch(main)
        found = call.branches.get(self._branch_id)
        if found is None or found.access is None:
            found = call.branches[self._branch_id] = self._on_branch(main)
        return found

    def _decision(self) -> AccessDecision | None:
        return None if super()._decision() is None else self.realm().access


@lru_cache(maxsize=10_000)
def _shared_rights(principal: Principal, by_roles: tuple[bool, ...]) -> Hashable:  # noqa: ARG001 - the key of the cache
    """The same object for equal arguments, as long as it is cached. To compare objects takes less time than principals."""
    return object()


def _lasting(principal: Principal) -> Principal:
    """The caller without the end of its token: tokens of one caller have the same rights."""
    return replace(principal, expires_at=None)


def _principal(call: Call | None) -> Principal:
    return NOBODY if call is None or call.principal is None else call.principal


def _details(served: ServedCall) -> dict[str, str | int]:
    """The details of a call in its audit record: the statement, its table, and how much was transferred."""
    where = {"catalog": served.request.catalog, "schema": served.schema, "table": served.name}
    amounts = {
        "rows_in": served.rows_in,
        "rows_out": served.rows_out,
        "bytes_in": served.bytes_in,
        "bytes_out": served.bytes_out,
    }
    return {"statement": served.operation, **{name: value for name, value in where.items() if value}, **amounts}


_MAX_OBJECTS: Final = 5000
"""An opened table takes some 20 KB."""


class _Kept(NamedTuple):
    """Results of one state of the store, by what was looked up and by the rights of the caller."""

    stored: Hashable
    results: Cache[Hashable, Any]


class Lookups:
    """Keeps results while neither the store nor the rights of the caller change.

    A statement of DuckDB makes 4 to 24 calls, and all of them look up the same objects. To compare the state of the store takes
    less than half of the time of a lookup. If the store cannot tell its state, nothing is kept.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._kept = _Kept(None, Cache(_MAX_OBJECTS))

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The kept result, or else what `read` returns. Callers must not modify it."""
        state = self._callers.state()  # before anything is read
        if state is None:
            return read()
        stored, rights = state
        kept = self._kept
        if kept.stored != stored:  # results of older states are never looked up again
            kept = self._kept = _Kept(stored, Cache(_MAX_OBJECTS))
        result: T = kept.results.get((key, rights), read)
        return result

"""Calls, the steps that every call goes through at every door, and who may see what concerns the whole server."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote

from tenacity import RetryCallState, Retrying, retry_if_exception_type, retry_if_not_exception_type, stop_after_attempt

from skiway.errors import Busy, Contention, InvalidArgument, PermissionDenied, SkiwayError, Unauthorized
from skiway.foundation.doors import MAX_HEADER_LENGTH, disclosed, exhausted, is_valid_header, outcome_of
from skiway.foundation.memory_budget import MemoryBudget
from skiway.metastore import Realm
from skiway.metastore.records.access import AccessDecision, grantees_of
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.request_path.quotas import Kind, Lanes, Quotas, Slot
from skiway.security import NOBODY, Authenticator, Authorizer, PermissionAuthorizer, Principal
from skiway.telemetry import definitions
from skiway.telemetry.audit import AuditEntry, AuditLog
from skiway.telemetry.context import CallContext, enter, serving
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Span, Traces


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a door offers, such as `TableService/GetTable`, `IcebergRest/LoadTable` or `Airport/insert`.

    A caller needs any one of `permissions`, and an account unless `needs_account` is false. The call is audited in the
    file of `category`, and counts as `counts_as` in the quotas. If `by_object`, the permission only admits the caller, and each
    object is checked.
    """

    component: str
    name: str
    category: str
    permissions: tuple[str, ...] = ()
    needs_account: bool = True
    counts_as: Kind = "calls"
    by_object: bool = False

    @property
    def full_name(self) -> str:
        """The name in logs, metrics, spans and the audit trail."""
        return f"{self.component}/{self.name}"


@dataclass(slots=True)
class Call:
    """One call on its way through the pipeline.

    `context` names the caller as soon as it is authenticated. `resources` (ids by kind) and `details` (rows, bytes, the
    table) go into the audit record. A door that answers an error itself, instead of raising it, sets `outcome` to the
    error's code and `status` to its own.
    """

    operation: Operation
    headers: Mapping[str, str]
    context: CallContext
    invalid: SkiwayError | None = None
    principal: Principal | None = None
    resources: dict[str, str] = field(default_factory=dict)
    details: dict[str, str | int] = field(default_factory=dict)
    outcome: str = "OK"
    status: str = "OK"
    span: Span | None = None
    decision: AccessDecision | None = None
    """What the caller may do, set when it is authenticated."""
    is_narrowed: bool = False
    """Whether grants admitted the caller, and not its roles: it then sees only what they cover."""
    realm: Realm | None = None
    """The metastore as the caller sees it; see `Pipeline.realm`."""
    branches: dict[str, Realm] = field(default_factory=dict)
    """The realms of branches of the lake that the call has opened, by their ids."""
    rights: Hashable = None
    """What identifies the rights of the caller; see `Callers.rights` of the lake."""
    started: float = field(default_factory=time.monotonic)
    """By the monotonic clock."""
    slot: Slot | None = None
    memory: MemoryBudget | None = None

    def identify(self, principal: Principal, *, credentials: tuple[str, ...] = ()) -> None:
        """Record who calls, before anything is decided about the call: refused calls are audited with their caller.

        `credentials` are the headers to pass on to services that are called on behalf of the caller.
        """
        self.principal = principal
        known = self.context
        self.context = CallContext(
            correlation_id=known.correlation_id,
            query_id=known.query_id,
            engine_kind=known.engine_kind,
            engine_version=known.engine_version,
            account_id=principal.account_id,
            subject=principal.subject,
            operation=known.operation,
            authorization={name: self.headers[name] for name in credentials if name in self.headers},
            is_active=known.is_active,
        )
        enter(self.context)
        if self.span is not None:
            self.span.set(account_id=principal.account_id, subject=principal.subject)

    def transferred(self, size: int) -> None:
        """Count bytes that the call received or sent towards the quotas."""
        if self.slot is not None:
            self.slot.size += size

    def begin_work(self, memory: MemoryBudget) -> None:
        """Count the call as running work of the process; `LimitExceeded` if its memory budget is exceeded."""
        if self.memory is None:
            memory.begin()
            self.memory = memory

    def release(self) -> None:
        """Return what the call occupies: its place in the quotas and in the budget. More than once does no harm."""
        if self.slot is not None:
            self.slot.release()
        if self.memory is not None:
            self.memory.end()
            self.memory = None


# -- headers ----------------------------------------------------------------------------------------------------------

CORRELATION_ID: Final = "x-correlation-id"
QUERY_ID: Final = "x-query-id"
ENGINE_KIND: Final = "x-engine-kind"
ENGINE_VERSION: Final = "x-engine-version"


def read_context(
    headers: Mapping[str, str], operation: str, *, ids: Callable[[], str], is_active: Callable[[], bool] = lambda: True
) -> tuple[CallContext, InvalidArgument | None]:
    """The context that the headers describe, and the error for the first header with an invalid value.

    An invalid header is left out of the context, so that the error can be reported like any other. A call without a
    correlation id gets a new one from `ids`. `is_active` says whether the client still waits.
    """
    given, invalid = {}, None
    for name in (CORRELATION_ID, QUERY_ID, ENGINE_KIND, ENGINE_VERSION):
        value = headers.get(name, "").strip()
        if value and not is_valid_header(value):
            invalid = invalid or _invalid(name, value)
        else:
            given[name] = value
    kind = given.get(ENGINE_KIND, "").lower()
    context = CallContext(
        correlation_id=given.get(CORRELATION_ID) or ids(),
        query_id=given.get(QUERY_ID, ""),
        engine_kind=kind,
        engine_version=given.get(ENGINE_VERSION, "") if kind else "",
        operation=operation,
        is_active=is_active,
    )
    return context, invalid


def echo_headers(context: CallContext) -> tuple[tuple[str, str], ...]:
    """The headers of the response: always the correlation id, the others if the request had them."""
    if not context.query_id and not context.engine_kind:
        return ((CORRELATION_ID, context.correlation_id),)
    pairs = (
        (CORRELATION_ID, context.correlation_id),
        (QUERY_ID, context.query_id),
        (ENGINE_KIND, context.engine_kind),
        (ENGINE_VERSION, context.engine_version),
    )
    return tuple((name, value) for name, value in pairs if value)


def _invalid(name: str, value: str) -> InvalidArgument:
    found = f"{len(value)} characters" if len(value) > MAX_HEADER_LENGTH else "characters that cannot be printed"
    message = f"header {name} has {found}: send up to {MAX_HEADER_LENGTH} printable ASCII characters, or leave it out"
    return InvalidArgument(message, key="header.invalid", header=name, found=found, limit=str(MAX_HEADER_LENGTH))


_OK: Final = "OK"

RENEWED_S: Final = 1.0
"""How often the rights of a caller are checked while a call sends messages."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call, and which part of the metastore each caller sees: the same for all doors of a process.

    `credentials` are the headers that callers authenticate with. `quotas` limit what each caller and account may use,
    and `lanes` are those in which their calls wait for threads. Above the budget of `memory`, new calls are rejected.
    """

    realm_of: Callable[[Principal], Realm]
    authenticator: Authenticator
    authorizer: Authorizer
    credentials: tuple[str, ...] = ("authorization",)
    quotas: Quotas | None = None
    lanes: Lanes = field(default_factory=Lanes)
    memory: MemoryBudget = field(default_factory=lambda: MemoryBudget(0))

    def decide(self, principal: Principal) -> AccessDecision:
        """What the caller may do in its account, by its roles, as the authorizer sees them, and by grants; and which policies
        restrict it.
        """
        return AccessDecision(
            lambda: self.realm_of(principal).stores,
            principal.account_id,
            allows=self._allows(principal),
            grantees=grantees_of(principal.subject, sorted(principal.roles)),
            # A job that maintains a table rewrites all rows, and one that runs a function of a pipeline has an owner without
            # policies: policies are about people.
            policies=None
            if principal.table_id or principal.reads
            else CallerPolicies(
                lambda: self.realm_of(principal).stores,
                principal.account_id,
                Subject(principal.subject, principal.roles, principal.groups, principal.claims),
            ),
            table_id=principal.table_id,
            reads=principal.reads,
            read_only=principal.read_only,
        )

    def _allows(self, principal: Principal) -> Callable[[str], bool]:
        """Whether the caller has a permission in its whole account."""
        if type(self.authorizer) is PermissionAuthorizer:  # as `require` decides, a tenth of an Airport call faster
            return principal.permissions.__contains__

        def allows(permission: str) -> bool:
            try:
                self.authorizer.require(principal, permission)
            except (PermissionDenied, Unauthorized):
                return False
            return True

        return allows


FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies. A request with one of them comes from somebody else than the address that is connected."""

GRPC_PEER: Final = re.compile(r"ipv[46]:\[?(?P<host>[^\]]*?)\]?:\d+")


@dataclass(frozen=True, slots=True)
class Operators:
    """Who may see what concerns the whole server rather than one account: its metrics, and the list of its services.

    Callers from the operator's own networks are admitted, and callers with credentials.
    """

    access: Access
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, access: Access, networks: Iterable[str]) -> Operators:
        """`networks` are IP addresses and networks such as `10.0.0.0/8`."""
        return cls(access, tuple(ip_network(network) for network in networks))

    def admit(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """Return if the caller is in one of the networks, or authenticates and has one of the permissions, if any are given.

        `peer` is the IP address of the connection. Raises `Unauthorized` or `PermissionDenied`.
        """
        if self._is_operator(headers, peer):
            return
        principal = self.access.authenticator.authenticate(headers)
        if any_of:
            self.access.authorizer.require(principal, *any_of)

    def admit_grpc(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """The same for the peer of a gRPC call, such as `ipv4:127.0.0.1:5000`."""
        found = GRPC_PEER.fullmatch(unquote(peer))
        self.admit(headers, found["host"] if found else "", *any_of)

    def _is_operator(self, headers: Mapping[str, str], peer: str) -> bool:
        if not self.networks or any(name in headers for name in FORWARDED):
            return False
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class Observers:
    """Where calls are observed: metrics, traces and, if configured, the audit trail."""

    metrics: Metrics = field(default_factory=lambda: Metrics(enabled=False))
    traces: Traces = field(default_factory=Traces)
    audit: AuditLog | None = None


class Pipeline:
    """Authenticates, authorizes and observes the calls of one door.

    `status_of` gives the door's own status of an exception, which metrics are labelled with.
    """

    def __init__(
        self, access: Access, observers: Observers, *, log: logging.Logger, status_of: Callable[[BaseException], str]
    ) -> None:
        self.access = access
        self.metrics = observers.metrics
        self._traces, self._audit = observers.traces, observers.audit
        self._log, self._status_of = log, status_of
        self._active = observers.metrics.series(definitions.RPC_ACTIVE)
        self._requests = observers.metrics.series(definitions.RPC_REQUESTS)
        self._errors = observers.metrics.series(definitions.RPC_ERRORS)
        self._rows = observers.metrics.series(definitions.RPC_ROWS)
        self._bytes = observers.metrics.series(definitions.RPC_BYTES)
        self._latency = observers.metrics.series(definitions.RPC_LATENCY)

    def admit(self, call: Call) -> Principal:
        """Authenticate the caller and check that it may call the operation; raises an error for the caller."""
        if call.invalid is not None:
            raise call.invalid
        principal = self.authenticate(call)
        operation = call.operation
        try:
            self.access.authorizer.require(principal, *operation.permissions)
        except PermissionDenied:
            if call.decision is None or not call.decision.somewhere(*operation.permissions):
                raise
            call.is_narrowed = True
        call.is_narrowed = call.is_narrowed or (operation.by_object and call.decision is not None)
        if operation.needs_account and not principal.account_id:
            raise PermissionDenied(
                f"{operation.full_name} works inside an account, and {principal.subject} has none:"
                " call it with credentials of an account",
                key="account.required",
                operation=operation.full_name,
                subject=principal.subject,
            )
        return principal

    def authenticate(self, call: Call) -> Principal:
        """Find out who calls, record it in the call, and count the call; raises `Unauthorized` and `LimitExceeded`."""
        principal = self.access.authenticator.authenticate(call.headers)
        call.identify(principal, credentials=self.access.credentials)
        call.decision = self.access.decide(principal)
        self.access.lanes.learn(call.headers, principal.account_id)
        if self.access.quotas is not None and call.slot is None:
            call.slot = self.access.quotas.enter(principal, call.operation.counts_as)
        call.begin_work(self.access.memory)
        return principal

    def renewal(self, call: Call) -> Callable[[], None]:
        """A function for the time in which the call sends messages, for example events as they happen.

        It raises if the caller is not admitted any more, or has other rights than now: its token was revoked or has expired,
        or its roles, grants or policies have changed. It checks that once a second.
        """
        known, rights = call.principal, self.realm(call).rights
        checked_at = time.monotonic()

        def check() -> None:
            nonlocal checked_at
            if time.monotonic() - checked_at < RENEWED_S:
                return
            again = Call(call.operation, call.headers, call.context)
            again.principal = self.access.authenticator.authenticate(call.headers)
            again.decision = self.access.decide(again.principal)
            again.is_narrowed = call.is_narrowed
            if again.principal != known or self.realm(again).rights != rights:
                raise PermissionDenied(
                    "your roles, grants or policies have changed since this call began: call again",
                    key="rights.changed",
                )
            checked_at = time.monotonic()

        return check

    def realm(self, call: Call) -> Realm:
        """The metastore as the caller sees it: all of its account, or what grants allow, restricted by policies."""
        principal = call.principal or NOBODY
        access = call.decision if call.is_narrowed else None
        policies = None if call.decision is None else call.decision.policies
        # Made once per call: the lake asks for it in several places.
        if call.realm is None or call.realm.access is not access or call.realm.policies is not policies:
            call.realm = replace(
                self.access.realm_of(principal),
                caller=principal.subject,
                administers=call.decision is not None and call.decision.everywhere("grant.manage"),
                access=access,
                policies=policies,
                past_protection=bool(principal.table_id),  # a job that maintains the table
            )
        return call.realm

    @contextmanager
    def observe(self, call: Call) -> Iterator[None]:
        """Serve `call` inside: its context is current, and at the end it is counted, traced, logged and audited.

        Where the audit trail is required and cannot be written, leaving raises `Unavailable`.
        """
        started = time.perf_counter()
        where = call.operation.component, call.operation.name
        self._active.add(where, 1)
        try:
            with serving(call.context), self._traces.span(*where, headers=call.headers) as span:
                call.span = span
                try:
                    yield
                except BaseException as error:
                    self._failed(call, error)
                    raise
                finally:
                    span.end(call.operation.full_name, call.details)
                    self._record(call, time.perf_counter() - started)
        finally:
            call.release()
            self._active.add(where, -1)
            self._count(call, time.perf_counter() - started)

    def _failed(self, call: Call, error: BaseException) -> None:
        call.outcome, call.status = outcome_of(error), self._status_of(error)
        shown = disclosed(error)
        if (shown is None and isinstance(error, Exception)) or exhausted(error) is not None:
            self._log.error("%s failed", call.operation.full_name, exc_info=error)
        elif shown is not None and shown.detail:
            self._log.warning("%s failed: %s", call.operation.full_name, shown)

    def _record(self, call: Call, duration_s: float) -> None:
        if self._audit is None:
            return
        entry = AuditEntry(call.operation.full_name, call.outcome, duration_s, call.resources, call.details)
        try:
            self._audit.record(call.operation.category, entry, call.context)
        except SkiwayError as error:
            self._failed(call, error)
            raise

    def _count(self, call: Call, duration_s: float) -> None:
        if not self.metrics.enabled:
            return
        key = (call.context.account_id, call.operation.component, call.operation.name, call.status)
        self._requests.add(key, 1)
        self._latency.record(key, duration_s)
        if call.status != _OK:
            self._errors.add(key, 1)

    def count_transfer(self, call: Call, *, rows: tuple[int, int], sizes: tuple[int, int]) -> None:
        """Count what a call received and sent: rows and bytes, in that order."""
        call.transferred(sum(sizes))
        if not self.metrics.enabled:
            return
        for direction, count, size in zip(("in", "out"), rows, sizes, strict=True):
            key = (call.context.account_id, call.operation.component, call.operation.name, direction)
            if count:
                self._rows.add(key, count)
            if size:
                self._bytes.add(key, size)

    def count_retry(self, operation: Operation) -> None:
        """Count an attempt after the first one."""
        self.metrics.add(definitions.RPC_RETRIES, component=operation.component, operation=operation.name)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call is retried after `Contention`, and how long to wait before: longer each time, with jitter."""

    limit: int = 8
    first_wait_s: float = 0.005
    longest_wait_s: float = 0.2
    jitter: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def wait_s(self, attempt: int) -> float:
        """How long to wait after this attempt, counted from 1: the usual time, plus or minus up to `jitter` of it."""
        usual = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1))
        return usual * (1 + self.jitter * (2 * self.random() - 1))

    def retrying(self, *, on_retry: Callable[[RetryCallState], Any]) -> Retrying:
        """Call a function, and again on `Contention` only: waiting for so short a time does not change other errors."""
        return Retrying(
            retry=retry_if_exception_type(Contention) & retry_if_not_exception_type(Busy),
            stop=stop_after_attempt(self.limit + 1),
            wait=lambda state: self.wait_s(state.attempt_number),
            before_sleep=on_retry,
            sleep=self.sleep,
            reraise=True,
        )

"""Calls, the operations that they are calls of, and the headers that describe them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from skiway.errors import InvalidArgument, SkiwayError
from skiway.foundation.doors import MAX_HEADER_LENGTH, is_valid_header
from skiway.foundation.memory_budget import MemoryBudget
from skiway.metastore import Realm
from skiway.metastore.records.access import AccessDecision
from skiway.request_path.quotas import Kind, Slot
from skiway.security import Principal
from skiway.telemetry.context import CallContext, enter
from skiway.telemetry.traces import Span


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
    rights: Hashable = None
    """What identifies the rights of the caller; see `Callers.rights` of the lake."""
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
    headers: Mapping[str, str],
    operation: str,
    *,
    ids: Callable[[], str],
    is_active: Callable[[], bool] = lambda: True,
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

"""Calls and the operations that they are calls of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from skiway.errors import SkiwayError
from skiway.security import Principal
from skiway.telemetry.context import CallContext, enter
from skiway.telemetry.traces import Span

__all__ = ["Call", "Operation"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a door offers, such as `TableService/GetTable`, `IcebergRest/LoadTable` or `Airport/insert`.

    A caller needs any one of `permissions`, and an account unless `needs_account` is false. The call is audited in the
    file of `category`.
    """

    component: str
    name: str
    category: str
    permissions: tuple[str, ...] = ()
    needs_account: bool = True

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

    def identify(self, principal: Principal, *, credentials: tuple[str, ...] = ()) -> None:
        """Record who calls, before anything is decided about the call: refused calls are audited with their caller.

        `credentials` are the headers to pass on to services that are called on behalf of the caller.
        """
        self.principal = principal
        self.context = replace(
            self.context,
            account_id=principal.account_id,
            subject=principal.subject,
            authorization={name: self.headers[name] for name in credentials if name in self.headers},
        )
        enter(self.context)
        if self.span is not None:
            self.span.set(account_id=principal.account_id, subject=principal.subject)

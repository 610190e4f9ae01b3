"""Who calls, and may they?"""

from __future__ import annotations

import threading
from dataclasses import replace

from skiway.errors import LimitExceeded, PermissionDenied
from skiway.rpc.calls import Call, Handler
from skiway.security import Authenticator, Authorizer, Principal
from skiway.telemetry.context import serving

__all__ = ["admitted", "streaming_few"]


def admitted(
    inner: Handler, authenticator: Authenticator, authorizer: Authorizer, *, credentials: tuple[str, ...]
) -> Handler:
    """Let in only callers who are known and have a permission of the method, and say in the context who they are.

    `credentials` name the headers that callers authenticate with; services called on their behalf get them too.
    """

    def handle(call: Call, request: object) -> bytes:
        if call.refusal is not None:
            raise call.refusal
        principal = call.principal = authenticator.authenticate(call.headers)
        authorizer.require(principal, *call.method.rule.permissions)
        _require_account(call, principal)
        call.context = replace(
            call.context,
            account_id=principal.account_id,
            subject=principal.subject,
            authorization={name: call.headers[name] for name in credentials if name in call.headers},
        )
        with serving(call.context):
            return inner(call, request)

    return handle


def streaming_few(inner: Handler, limit: int) -> Handler:
    """Let no more than `limit` calls stream at a time. More are refused, not queued: each holds a thread meanwhile."""
    free = threading.Semaphore(limit)

    def handle(call: Call, request: object) -> bytes:
        if not call.method.streamed and not call.method.answers_many:
            return inner(call, request)
        if not free.acquire(blocking=False):
            raise LimitExceeded(
                f"{limit} calls stream to or from this server, which is its limit: try again in a moment",
                key="streams.limit",
                limit=str(limit),
            )
        try:
            return inner(call, request)
        finally:
            free.release()

    return handle


def _require_account(call: Call, principal: Principal) -> None:
    if not principal.account_id and not call.method.service.for_platform:
        raise PermissionDenied(
            f"{call.method.operation} works inside an account, and {principal.subject} has none:"
            " call it with credentials of an account",
            key="account.required",
            operation=call.method.operation,
            subject=principal.subject,
        )

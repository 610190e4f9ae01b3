"""The two outermost layers: what a call is known by, and how its errors are told."""

from __future__ import annotations

import contextlib
from typing import Never

import grpc

from skiway.rpc.calls import Call, Handler
from skiway.rpc.headers import LANGUAGE, echo
from skiway.rpc.status import DETAILS, Disclosure, failure_of, language
from skiway.telemetry.context import serving

__all__ = ["in_context", "told"]


def in_context(inner: Handler) -> Handler:
    """Everything inside happens for this call, and its ids go back to the caller, before and after the answer."""

    def handle(call: Call, request: object) -> bytes:
        ids = echo(call.context)
        with contextlib.suppress(grpc.RpcError):  # the client may be gone already, which is noticed further in
            call.client.send_initial_metadata(ids)
        call.client.set_trailing_metadata(ids)
        with serving(call.context):
            return inner(call, request)

    return handle


def told(inner: Handler, disclosure: Disclosure) -> Handler:
    """Errors become statuses; what is the server's fault is told without details."""

    def handle(call: Call, request: object) -> bytes:
        try:
            return inner(call, request)
        except Exception as error:  # noqa: BLE001  (here errors become statuses)
            _abort(call, error, disclosure)

    return handle


def _abort(call: Call, error: Exception, disclosure: Disclosure) -> Never:
    locale = call.principal.locale if call.principal else ""
    speaks = language(call.headers.get(LANGUAGE, ""), locale)
    failure = failure_of(error, call.context, language=speaks, disclosure=disclosure)
    call.client.set_trailing_metadata((*echo(call.context), (DETAILS, failure.details)))
    call.client.abort(failure.code, failure.message)

"""A call on its way through the layers, and the shape that all layers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from skiway.errors import Cancelled, InvalidArgument, TimedOut
from skiway.rpc import headers
from skiway.rpc.methods import Method
from skiway.rpc.resources import ids_in
from skiway.security import Principal
from skiway.telemetry.context import CallContext

__all__ = ["Call", "Handler", "open_call"]


@dataclass(slots=True)
class Call:
    """One call. `refusal` is what was wrong with its headers; `principal` is known once the call is admitted.

    `resources` are the ids it turned out to be about, by their kinds, for the audit trail. `send` takes the messages of
    an answer that is streamed, and returns when the client has room for more.
    """

    method: Method
    client: grpc.ServicerContext
    headers: Mapping[str, str]
    context: CallContext
    refusal: InvalidArgument | None = None
    principal: Principal | None = None
    resources: dict[str, str] = field(default_factory=dict)
    send: Callable[[bytes], None] | None = None

    def speaks_of(self, message: Message) -> None:
        """Take down which resources the message is about; what was known before stays."""
        self.resources = {**ids_in(message), **self.resources}

    def require_client(self) -> None:
        """Raise if nobody waits for the answer any more."""
        if self.client.is_active():
            return
        if self.client.time_remaining() == 0:
            raise TimedOut(f"the deadline of {self.method.operation} passed: allow more time", key="deadline.passed")
        raise Cancelled(f"the client took {self.method.operation} back", key="client.gone")


Handler = Callable[[Call, Any], bytes]
"""A layer: given the call and its request, the bytes of a message or an iterator of them, it returns the answer's.

An answer of many messages is sent from within; then none is returned.
"""


def open_call(method: Method, client: grpc.ServicerContext, *, ids: Callable[[], str]) -> Call:
    """The call as its headers describe it."""
    given = headers.text_headers(client.invocation_metadata())
    context, refusal = headers.read(given, method.operation, ids=ids)
    return Call(method, client, given, context, refusal)

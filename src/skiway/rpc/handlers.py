"""What a method does once its caller is admitted: decode the request, call one function of the metastore, encode.

A call whose client is gone starts nothing. A method that changes something is retried when it lost a race. Streams are
not retried: the requests of one that the client streams are consumed (its function retries step by step), and of one
that the server streams the client already has a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from tenacity import Retrying

from skiway.errors import Cancelled, InvalidArgument, TimedOut
from skiway.metastore import Realm
from skiway.metastore.records.realm import kind_name
from skiway.model import v1
from skiway.requests import Call
from skiway.rpc.methods import Method
from skiway.rpc.request_checks import check_lists, check_times
from skiway.streams import WatchedCall, deadline_passed

__all__ = ["RpcCall", "handle", "ids_in"]

DEPTH: Final = 2
"""How deep `ids_in` looks: enough for `spec.table_id` of a request and `table.resource_id` of a response."""

LONGEST_ID: Final = 100
"""Our ids are shorter; longer text from a caller is cut in the audit trail."""


def _nothing_to_renew() -> None:
    """Do nothing, because the call sends one message."""


@dataclass(slots=True, kw_only=True)
class RpcCall(Call):
    """A call of a gRPC method. `send` takes the messages of a streamed response; it blocks until the client has room.

    `renew` raises if the caller may not get them any more.
    """

    method: Method
    client: grpc.ServicerContext
    send: Callable[[bytes], None] | None = None
    renew: Callable[[], None] = _nothing_to_renew

    def watch(self, client: WatchedCall) -> None:
        """Tell `client` when this call waits for it to read."""
        if (send := self.send) is None:
            return

        def sent(message: bytes) -> None:
            client.wait()
            send(message)
            client.resume()

        self.send = sent

    def note_resources(self, message: Message) -> None:
        """Add the resources that the message names to those of the audit record."""
        self.resources = {**ids_in(message), **self.resources}

    def require_client(self) -> None:
        """Raise if nobody waits for the response any more."""
        if self.client.is_active():
            return
        name = self.method.operation.full_name
        if deadline_passed(self.client):
            raise TimedOut(f"the deadline of {name} passed: allow more time", key="deadline.passed")
        raise Cancelled(f"the client cancelled {name}", key="client.gone")


def handle(call: RpcCall, realm: Realm, retrying: Retrying, request: Any) -> bytes:
    """Run the method in the caller's realm; `request` is a message in bytes, or an iterator of them.

    A response of many messages goes out through `call.send`; then nothing is returned.
    """
    if call.method.answers_many:
        _send_all(call, realm, request)
        return b""
    if call.method.streamed:
        response = _run_on_stream(call, realm, request)
    elif call.method.rule.changes:
        response = retrying(_run, call, realm, request)
    else:
        response = _run(call, realm, request)
    call.note_resources(response)
    return response.SerializeToString()


def _run(call: RpcCall, realm: Realm, data: bytes) -> Message:
    call.require_client()
    request = _decoded(call.method, data)
    call.note_resources(request)
    response = call.method.rule.act(realm, request)
    assert isinstance(response, Message)
    return response


def _send_all(call: RpcCall, realm: Realm, data: bytes) -> None:
    """Send each message as soon as it is made, until the client is gone."""
    call.require_client()
    request = _decoded(call.method, data)
    call.note_resources(request)
    assert call.send is not None
    responses = call.method.rule.act(realm, request)
    assert isinstance(responses, Iterator)
    for response in responses:
        call.require_client()
        call.renew()
        call.send(response.SerializeToString())


def _run_on_stream(call: RpcCall, realm: Realm, messages: Iterator[bytes]) -> Message:
    call.require_client()
    try:
        response = call.method.rule.act(realm, _messages(call, messages))
        assert isinstance(response, Message)
        return response
    except grpc.RpcError:
        call.require_client()
        raise


def _messages(call: RpcCall, messages: Iterator[bytes]) -> Iterator[Message]:
    """The client's messages, each decoded when it is needed."""
    for data in messages:
        message = _decoded(call.method, data)
        if not call.resources:
            call.note_resources(message)
        yield message


def _decoded(method: Method, data: bytes) -> Message:
    try:
        request = method.request.FromString(data)
    except DecodeError:
        name = method.request.DESCRIPTOR.full_name
        raise InvalidArgument(
            f"the request of {method.operation.full_name} is not a {name}: send one, as the .proto files define it",
            key="message.malformed",
            field="request",
            wanted=name,
        ) from None
    if not method.streamed:
        check_lists(request)
    check_times(request)
    return request


# -- resources for the audit trail ------------------------------------------------------------------------------------


def ids_in(message: Message) -> dict[str, str]:
    """The ids in the message, by the kind of resource. Lists are left out: they name many resources, or none."""
    found: dict[str, str] = {}
    for path in _paths(message.DESCRIPTOR):
        part: Message | None = message
        for name in path:
            part = getattr(part, name) if part is not None and part.HasField(name) else None
        if isinstance(part, v1.ResourceId) and part.id:
            found.setdefault(_noun(path[-1], part.kind), part.id[:LONGEST_ID])
    return found


def _noun(field: str, kind: int) -> str:
    """The kind of resource: from the name of the field, because callers may leave `kind` out, or else from `kind`."""
    return kind_name(kind) if field == "resource_id" else field.removesuffix("_id")


@cache
def _paths(descriptor: Descriptor) -> tuple[tuple[str, ...], ...]:
    return tuple(_walk(descriptor, DEPTH))


def _walk(descriptor: Descriptor, depth: int) -> Iterator[tuple[str, ...]]:
    for field in descriptor.fields:
        if field.message_type is None or field.is_repeated:
            continue
        if field.message_type.full_name == v1.ResourceId.DESCRIPTOR.full_name:
            yield (field.name,)
        elif depth > 1:
            yield from ((field.name, *rest) for rest in _walk(field.message_type, depth - 1))

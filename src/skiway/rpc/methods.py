"""Methods as they are served: their descriptors from `proto/skiway/v1`, a rule for each, and what they do with a request.

Once its caller is admitted, a method decodes and checks the request, calls one function of the metastore, and encodes the
result. The checks limit the number of items in lists, and reject times and durations that are impossible, which protobuf
decodes.

A call whose client is gone starts nothing. A method that changes something is retried when it lost a race. Streams are
not retried: the requests of one that the client streams are consumed (its function retries step by step), and of one
that the server streams the client already has a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from tenacity import Retrying

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, TimedOut
from skiway.foundation.resources import Resource
from skiway.foundation.threads import WatchedCall, deadline_passed
from skiway.metastore import Realm
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.realm import kind_name
from skiway.model import v1
from skiway.request_path import Call, Operation

Act = Callable[[Realm, Any], Message | Iterator[Message]]
"""A function of the metastore. It takes a message, or an iterator of messages where the client streams, and returns the
same where the server does."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The function behind a method, the permissions of which a caller needs one, and whether it changes anything.

    If `by_object`, the function checks each object that it returns, of whatever kind. `branch` opens the realm of a branch of the lake
    for the method; without it, the method works on main only.
    """

    act: Act
    permissions: tuple[str, ...]
    changes: bool
    by_object: bool = False
    branch: Callable[[Realm, str], Realm] | None = None


def reads(act: Act, *any_of: str, by_object: bool = False) -> Rule:
    """A rule for a method that changes nothing."""
    return Rule(act, any_of, changes=False, by_object=by_object)


def changes(act: Act, *any_of: str) -> Rule:
    """A rule for a method that may change something, and is retried when it lost a race."""
    return Rule(act, any_of, changes=True)


@dataclass(frozen=True, slots=True)
class Method:
    """One method as it is served."""

    name: str
    service: Service
    rule: Rule
    operation: Operation
    request: type[Message]
    streamed: bool
    """Whether the client sends many messages."""
    answers_many: bool = False
    """Whether the server sends many messages."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service. Its calls are audited as `category`. Only where `for_platform` is set may a caller be without account."""

    descriptor: ServiceDescriptor
    category: str
    rules: Mapping[str, Rule]
    for_platform: bool = False

    @property
    def name(self) -> str:
        """Such as `TableService`."""
        return self.descriptor.name

    @property
    def full_name(self) -> str:
        """As in the path of a call, such as `skiway.v1.TableService`."""
        return self.descriptor.full_name

    def methods(self) -> Iterator[Method]:
        """Its methods, in the order of `rules`."""
        for name, rule in self.rules.items():
            described: MethodDescriptor = self.descriptor.methods_by_name[name]
            request = GetMessageClass(described.input_type)
            operation = Operation(
                self.name,
                name,
                self.category,
                rule.permissions,
                needs_account=not self.for_platform,
                counts_as="queries" if self.category == "query" else "calls",
                by_object=rule.by_object,
            )
            yield Method(
                name,
                self,
                rule,
                operation,
                request,
                streamed=described.client_streaming,
                answers_many=described.server_streaming,
            )


def by_object(rule: Rule) -> Rule:
    """The same rule for a method whose function checks each object that it reads or changes."""
    return replace(rule, by_object=True)


def on_branches(of: Service, branch: Callable[[Realm, str], Realm]) -> Service:
    """The same service, whose methods that change nothing also work on a branch of the lake, which `branch` opens by its name."""
    rules = {name: rule if rule.changes else replace(rule, branch=branch) for name, rule in of.rules.items()}
    return replace(of, rules=rules)


def service(name: str, category: str, **rules: Rule) -> Service:
    """The service of `proto/skiway/v1` with this name."""
    return Service(v1.Table.DESCRIPTOR.file.pool.FindServiceByName(f"skiway.v1.{name}"), category, rules)


def service_of(
    functions: Any, resource: Resource, *, category: str = "", for_platform: bool = False, **more: Rule
) -> Service:
    """The service for a kind of resource: the methods that kinds have, and those that this kind has in addition or instead.

    `functions` is the module or the object with the functions behind the usual methods.
    """
    noun, permission = resource.title, resource.permission
    read = resource.read_permission or permission
    rules = {
        f"List{resource.plural.title()}": reads(functions.list_, read),
        f"Get{noun}": reads(functions.get, read),
        f"Create{noun}": changes(functions.create, permission),
        f"Update{noun}": changes(functions.update, permission),
        f"Delete{noun}": changes(functions.delete, permission),
    }
    return Service(resource.service, category or resource.name, {**rules, **more}, for_platform)


MAX_ITEMS: Final = 20_000
"""How many items all lists and maps of a request may have together. Clients stream more."""

_TIMES = (Timestamp.DESCRIPTOR.full_name, Duration.DESCRIPTOR.full_name)


def check_lists(message: Message) -> None:
    """Raise `LimitExceeded` if the lists and maps of a request, at any depth, have too many items."""
    items = 0
    for path, field, values in _set_fields(message):
        items += len(values) if field.is_repeated else 0
        if items > MAX_ITEMS:
            raise failure(LimitExceeded, "request.too_many", field=path.rpartition(".")[2], limit=str(MAX_ITEMS))


def check_times(message: Message) -> None:
    """Raise `InvalidArgument` if a time or a duration, at any depth, is not a valid one."""
    for path, field, values in _set_fields(message):
        if field.message_type is None or field.message_type.full_name not in _TIMES:
            continue
        for value in values:
            try:
                value.ToNanoseconds()  # checks the range of both members, and that their signs match
                value.ToJsonString()
            except ValueError as error:
                wanted = "use a time of the years 1 to 9999, or a duration below 10,000 years"
                raise invalid_field(path, "invalid", wanted) from error


def _set_fields(message: Message, above: str = "") -> Iterator[tuple[str, FieldDescriptor, Sequence[Any]]]:
    """The fields that are set, at any depth, each before those in it: with their paths and values."""
    for field, value in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        values = list(value.values()) if is_map else value if field.is_repeated else [value]
        yield f"{above}{field.name}", field, values
        for each in values if field.message_type else ():
            if isinstance(each, Message):
                yield from _set_fields(each, f"{above}{field.name}.")


DEPTH: Final = 2
"""How deep `ids_in` looks: enough for `spec.table_id` of a request and `table.resource_id` of a response."""

LONGEST_ID: Final = 100
"""Our ids are shorter; longer text from a caller is cut in the audit trail."""


@dataclass(slots=True, kw_only=True)
class RpcCall(Call):
    """A call of a gRPC method. `send` takes the messages of a streamed response; it blocks until the client has room.

    `renew` raises if the caller may not get them any more.
    """

    method: Method
    client: grpc.ServicerContext
    send: Callable[[bytes], None] | None = None
    renew: Callable[[], None] = lambda: None

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

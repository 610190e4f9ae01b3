"""RPCs of the metastore: headers, deadline, retries, uploads, and errors as `skiway.errors`; and the names of resources in them.

A name is dotted text, a sequence of segments, or an id. Names are resolved to ids by RPCs.

"lake.sales.people"              catalog, namespaces, table
'lake."eu.west".people'          a segment in double quotes may contain dots; "" in it is one quote
("lake", "eu.west", "people")    segments, taken literally
Id("7f3c…")                      an id, which stays the same when the resource is renamed
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from skiway.airport.wire.duckdb_sql import split_name
from skiway.client.connection import Channel, Outbox, Token, current_token, parse_message
from skiway.client.errors import metastore_error
from skiway.errors import Contention, InvalidArgument, Unavailable
from skiway.model import v1
from skiway.model.v1 import connector_pb2
from skiway.telemetry.context import CallContext, current_call

T = TypeVar("T")
R = TypeVar("R", bound=Message)

CORRELATION_ID: Final = "x-correlation-id"
QUERY_ID: Final = "x-query-id"
ENGINE_KIND: Final = "x-engine-kind"
ENGINE_VERSION: Final = "x-engine-version"
AUTHORIZATION: Final = "authorization"
ACCOUNT: Final = "x-skiway-account"
BRANCH: Final = "x-skiway-branch"

_HEADER_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_READS: Final = ("Get", "List", "Lookup", "Resolve", "Search")
_ENDS: Final = ("CommitTransaction", "AbortTransaction")
_MAX_PENDING: Final = 2  # messages of an upload, of about half a megabyte each


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to retry a failed call at most, and how long to pause before each retry: twice as long each time.

    `jitter` is the share by which a pause is shortened at random, so that many clients do not retry at the same moment.
    """

    limit: int = 5
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    jitter: float = 0.5
    random: Callable[[], float] = random.random

    def pauses(self) -> Iterator[float]:
        """Yield the pause before each retry, in seconds."""
        for number in range(self.limit):
            pause = min(self.longest_pause_s, self.first_pause_s * 2**number)
            yield pause * (1 - self.jitter * self.random())


def retry(attempt: Callable[[float | None], T], *, retries: Retries, timeout_s: float | None, repeatable: bool) -> T:
    """Return the result of `attempt`, which receives the number of seconds left for it.

    `Contention` means that nothing was changed, so every call is retried. After `Unavailable` the server may have applied
    the change, so only a `repeatable` call is retried: one that changes nothing, or one with an idempotency key.

    This loop is hand-written because the plain install consists of grpcio, msgspec, protobuf and pyarrow: the clients may
    not depend on tenacity, which the metastore itself uses.
    """
    ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pauses = retries.pauses()
    while True:
        left = ends_at - time.monotonic()
        try:
            return attempt(None if timeout_s is None else max(left, 0.0))
        except (Contention, Unavailable) as error:
            pause = next(pauses, math.inf)
            too_late = time.monotonic() + pause >= ends_at  # also true when there are no retries left
            if too_late or (isinstance(error, Unavailable) and not repeatable):
                raise
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Caller:
    """The headers of a client. Those in `extra`, with lower-case names, take precedence. Credentials are not in the repr."""

    token: Token = field(default=None, repr=False)
    account: str | None = None
    query_id: str = ""
    engine_kind: str = ""
    engine_version: str = ""
    branch: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if bool(self.engine_kind) != bool(self.engine_version):
            raise InvalidArgument("an engine is identified by its kind and its version: give both or none")
        given = replace(self, token=None) if callable(self.token) else self  # functions are called when a call begins
        for name, value in given.headers(lambda: "").items():
            _check_header(name, value)

    def headers(self, ids: Callable[[], str]) -> dict[str, str]:
        """Return the headers of a new call. A call made while another is served continues that call's context."""
        served = current_call() or CallContext("")
        found = {
            CORRELATION_ID: served.correlation_id or ids(),
            QUERY_ID: self.query_id or served.query_id,
            **self._engine(served),
            ACCOUNT: self.account or "",
            BRANCH: quote(self.branch),
            **self._credentials(served),
        }
        return {name: value for name, value in found.items() if value} | dict(self.extra)

    def _engine(self, served: CallContext) -> dict[str, str]:
        for source in (self, served):
            if source.engine_kind and source.engine_version:  # one is meaningless without the other
                return {ENGINE_KIND: source.engine_kind, ENGINE_VERSION: source.engine_version}
        return {}

    def _credentials(self, served: CallContext) -> Mapping[str, str]:
        """The client's own credentials, or those of the call being served; the two are never mixed."""
        if token := current_token(self.token):
            value = f"Bearer {token}"
            _check_header(AUTHORIZATION, value)
            return {AUTHORIZATION: value}
        has_own = any(name == AUTHORIZATION or name in served.authorization for name in self.extra)
        return {} if has_own else served.authorization


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name) or name.startswith("grpc-") or name.endswith("-bin"):
        raise InvalidArgument(
            f"{name!r} is not a valid header name: use letters, digits, '-', '_' and '.', "
            "without the prefix grpc- and the suffix -bin",
            key="field",
            field="headers",
        )
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        # The message leaves out the value, which may be a credential.
        raise InvalidArgument(f"the value of header {name} must be printable ASCII", key="field", field=name)


@dataclass(frozen=True, slots=True)
class Calls:
    """The RPCs of one client: its channel, headers, deadline and retries."""

    channel: Channel
    caller: Caller
    timeout_s: float | None
    retries: Retries
    ids: Callable[[], str]

    def key(self, given: str | None) -> v1.IdempotencyKey:
        """Return the caller's idempotency key, or a new one."""
        return v1.IdempotencyKey(key=self.ids() if given is None else given)

    def rpc(self, method: str, **fields: Any) -> Any:
        """Call a unary method by its name, such as `GetTable`, which takes a `GetTableRequest` with these fields."""
        return self.call(getattr(v1, f"{method}Request")(**fields), getattr(v1, f"{method}Response"))

    def call(self, request: Message, response: type[R]) -> R:
        """Call the unary method that takes `request`; `response` is the type of its response."""
        path = _path(request.DESCRIPTOR)
        data = request.SerializeToString()

        def send(headers: Mapping[str, str], timeout_s: float | None) -> Any:
            invoke: Any = self.channel.open().unary_unary(path)
            return invoke(data, timeout=timeout_s, metadata=tuple(headers.items()))

        return self._with_retries(send, response, timeout_s=self.timeout_s, repeatable=_is_repeatable(path, request))

    def stream(self, request: Message, response: type[R]) -> Iterator[R]:
        """Call the streaming method that takes `request`; yield its responses. A broken stream is not retried."""
        path, headers = _path(request.DESCRIPTOR), self.caller.headers(self.ids)
        target = self.channel.location.text
        invoke: Any = self.channel.open().unary_stream(path)
        call = invoke(request.SerializeToString(), timeout=self.timeout_s, metadata=tuple(headers.items()))
        try:
            for data in call:
                yield parse_message(response, data, target)
        except grpc.RpcError as error:
            raise metastore_error(error, target, headers[CORRELATION_ID]) from error
        finally:
            call.cancel()  # in case the caller stops early

    def upload(
        self,
        requests: Callable[[], Iterable[Message]],
        response: type[R],
        *,
        kind: type[Message],
        timeout_s: float | None,
        repeatable: bool,
    ) -> R:
        """Send a stream of requests of one `kind`; return the response. A retry calls `requests` again.

        The requests are created in the caller's thread, which blocks while the server is slow.
        """
        path = _path(kind.DESCRIPTOR)

        def send(headers: Mapping[str, str], timeout_s: float | None) -> Any:
            outbox = Outbox(_MAX_PENDING)
            invoke: Any = self.channel.open().stream_unary(path)
            call = invoke.future(outbox, timeout=timeout_s, metadata=tuple(headers.items()))
            call.add_done_callback(lambda _: outbox.close())
            try:
                for request in requests():
                    if not outbox.put(request.SerializeToString()):
                        break  # the server has responded, or failed, before the last request
                outbox.close()
                return call.result()
            except BaseException:
                call.cancel()  # the server must not take an incomplete upload for a complete one
                raise

        return self._with_retries(send, response, timeout_s=timeout_s, repeatable=repeatable, enabled=repeatable)

    def _with_retries(
        self,
        send: Callable[[Mapping[str, str], float | None], Any],
        response: type[R],
        *,
        timeout_s: float | None,
        repeatable: bool,
        enabled: bool = True,
    ) -> R:
        headers = self.caller.headers(self.ids)
        target = self.channel.location.text

        def attempt(left_s: float | None) -> R:
            try:
                data = send(headers, left_s)
            except grpc.RpcError as error:
                raise metastore_error(error, target, headers[CORRELATION_ID]) from error
            return parse_message(response, data, target)

        retries = self.retries if enabled else Retries(limit=0)
        return retry(attempt, retries=retries, timeout_s=timeout_s, repeatable=repeatable)


@cache
def _path(request: Descriptor) -> str:
    """Return the path of the method that takes this request; each method has a request type of its own."""
    files = (request.file, connector_pb2.DESCRIPTOR)  # the requests about jobs are in a file without a service
    for service in (service for file in files for service in file.services_by_name.values()):
        for method in service.methods:
            if method.input_type is request:
                return f"/{service.full_name}/{method.name}"
    raise AssertionError(f"no service of {request.file.name} takes a {request.name}")


def _is_repeatable(path: str, request: Any) -> bool:
    """Whether a repeated call has no further effect: it changes nothing, has an idempotency key, or ends a transaction."""
    method = path.rpartition("/")[2]
    has_key = "idempotency" in request.DESCRIPTOR.fields_by_name and request.idempotency.key.strip()
    return method.startswith(_READS) or method in _ENDS or bool(has_key)


Name = str | Sequence[str]

_PLAIN: Final = re.compile(r'[^\s."]+(?: [^\s."]+)*')
_SHAPES: Final = {
    "catalog": (1, 1, "catalog, such as lake"),
    "namespace": (2, None, "catalog.namespace, such as lake.sales"),
    "table": (3, None, "catalog.namespace.table, such as lake.sales.people"),
    "view": (3, None, "catalog.namespace.view, such as lake.sales.totals"),
}
"""The least and the largest number of segments of a name, and an example."""


class Id(str):
    """The id of a resource. It is accepted wherever a name is, and never mistaken for one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Id({super().__repr__()})"


@runtime_checkable
class HasMessage(Protocol):
    """A resource of the client: a typed view of a message."""

    @property
    def message(self) -> Any:
        """The message that the server sent."""


Ref = Name | v1.ResourceId | HasMessage | Message
"""A reference to a resource: its name, its `Id`, or the resource itself."""


# -- text --------------------------------------------------------------------------------------------------------------


def segments(name: Name, *, resource: str) -> tuple[str, ...]:
    r"""Split a name into its segments, none of them blank; `resource` is the kind of resource it names.

    >>> segments('lake."eu.west".people', resource="table")
    ('lake', 'eu.west', 'people')
    """
    parts = _split(name, resource) if isinstance(name, str) else _check_segments(name, resource)
    if not parts or not all(part.strip() for part in parts):
        raise InvalidArgument(
            f"{name!r} is not a valid name of a {resource}: it has a blank segment",
            key="path.segment.blank",
            field="name",
        )
    return parts


def dotted(path: Sequence[str]) -> str:
    """Join segments into text that `segments` can read, with quotes where they are needed.

    >>> dotted(("lake", "eu.west", "people"))
    'lake."eu.west".people'
    """
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in path)


def _split(text: str, resource: str) -> tuple[str, ...]:
    parts = split_name(text)
    if parts is None:
        raise InvalidArgument(
            f"{text!r} is not a valid name of a {resource}: put a segment that contains dots or quotes "
            'in double quotes, and write "" for a quote inside it',
            key="name.malformed",
            field="name",
        )
    return tuple(parts)


def _check_segments(parts: Sequence[str], resource: str) -> tuple[str, ...]:
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InvalidArgument(
            f"{parts!r} does not name a {resource}: give dotted text, a sequence of strings, an Id, or the {resource} itself",
            key="field",
            field="name",
        )
    return tuple(parts)


def name_ref(name: object, *, resource: str) -> v1.NameRef:
    """Return a name as a message; raise `InvalidArgument` if it has too few or too many segments."""
    parts = segments(name, resource=resource)  # type: ignore[arg-type]  # which rejects anything but names
    least, most, shape = _SHAPES[resource]
    if len(parts) < least or (most is not None and len(parts) > most):
        raise InvalidArgument(
            f"{name!r} does not name a {resource}: write {shape}; write an id as Id(...)",
            key=f"{resource}.name.missing",
            resource=resource,
            field="name",
        )
    if resource == "catalog":
        return v1.NameRef(catalog=parts[0])
    return v1.NameRef(catalog=parts[0], path=parts[1:-1], name=parts[-1])


# -- ids ---------------------------------------------------------------------------------------------------------------


def account_id(ref: Ref) -> v1.ResourceId:
    """Return the id of an account. Accounts have no names in references: a string is an id."""
    known = _known_id(ref, v1.RK_ACCOUNT)
    if known is None and isinstance(ref, str):
        known = v1.ResourceId(id=ref, kind=v1.RK_ACCOUNT)
    if known is None:
        raise InvalidArgument(
            f"{ref!r} is not an account: give its id, or the account itself", key="field", field="account_id"
        )
    return known


def resource_id(resource: str, calls: Calls, ref: Ref) -> v1.ResourceId:
    """Return the id of a catalog, namespace, table or view."""
    known = _known_id(ref, v1.ResourceKind.Value(f"RK_{resource.upper()}"))
    if known is not None:
        return known
    found: v1.ResourceId = calls.rpc(f"Resolve{resource.title()}", ref=name_ref(ref, resource=resource)).resource_id
    return found


catalog_id = partial(resource_id, "catalog")
namespace_id = partial(resource_id, "namespace")
table_id = partial(resource_id, "table")


def namespace_of(calls: Calls, ref: Ref) -> v1.Namespace:
    """Return a namespace, which has the id of its catalog."""
    message = ref.message if isinstance(ref, HasMessage) else ref
    if isinstance(message, v1.Namespace):
        return message
    found: v1.Namespace = calls.rpc("GetNamespace", namespace_id=namespace_id(calls, ref)).namespace
    return found


def _known_id(ref: object, kind: v1.ResourceKind.ValueType) -> v1.ResourceId | None:
    """The id that `ref` is or has; None for a name."""
    if isinstance(ref, Id):
        return v1.ResourceId(id=ref, kind=kind)
    if isinstance(ref, v1.ResourceId):
        return ref
    message = ref.message if isinstance(ref, HasMessage) else ref
    if isinstance(message, Message) and "resource_id" in message.DESCRIPTOR.fields_by_name:
        found: v1.ResourceId = message.resource_id  # type: ignore[attr-defined]
        return found
    return None

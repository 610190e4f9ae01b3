"""Collections of resources: `lake.tables` and its like, implemented once for all kinds.

A collection declares its kind, its spec and how to resolve a reference. `Operations` implements list, get, create, update
and delete once, on top of the naming scheme of the metastore's RPCs: `GetTable` takes a `GetTableRequest` with a
`table_id`, and its response has a `table` and a `meta`. `NamedCollection` is for the resources that an account has by
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import Calls, Id, Ref
from skiway.client.metastore.resources import Meta, Parents, time_of
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.foundation.resources import Resource
from skiway.model import v1

M = TypeVar("M", bound=Message)
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T", covariant=True)

Json = str | Mapping[str, Any] | Sequence[Any]
"""JSON text, or values that can be converted to JSON."""

FetchPage = Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]]
"""Fetches one page of a listing."""


class Keep(Enum):
    """The default of what an update may change: the value stays as it is. None clears it."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP


# -- listings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A lazy listing. Iterating over it fetches one page at a time; each iteration starts again.

    Items that are created or deleted meanwhile may be missing or included; every other item is included exactly once.
    """

    _start: Callable[[], FetchPage[T]]
    page_size: int | None = None

    def __post_init__(self) -> None:
        if self.page_size is not None and self.page_size < 1:
            raise InvalidArgument(
                f"page_size is {self.page_size}: it must be at least 1, or None for the server's default",
                key="field.invalid",
                field="page_size",
            )

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[Sequence[T]]:
        """Yield the items in pages, none of them empty."""
        fetch, token = self._start(), ""
        while True:
            items, page = fetch(v1.PageRequest(page_size=self.page_size or 0, page_token=token))
            if items:
                yield items
            if not page.next_page_token:
                return
            if page.next_page_token == token:
                raise Internal("the server returned a page whose next page is itself", key="answer.malformed")
            token = page.next_page_token

    @property
    def total(self) -> int:
        """The current number of items on all pages; takes one call."""
        _, page = self._start()(v1.PageRequest(page_size=1))
        return page.total_size

    def __repr__(self) -> str:
        return f"Listing(page_size={self.page_size}): iterate over it"


def listing_of(
    calls: Calls,
    method: str,
    items: str,
    start: Callable[[], tuple[Mapping[str, Any], Callable[[Any], I]]],
    page_size: int | None,
) -> Listing[I]:
    """Return the listing of a method such as `ListTables`, whose response has a field `items`.

    Each iteration calls `start`, which resolves references and returns the fields of the request and a function that
    converts a message of the response.
    """

    def start_iteration() -> FetchPage[I]:
        fields, convert = start()

        def fetch(page: v1.PageRequest) -> tuple[Sequence[I], v1.PageResponse]:
            response = calls.rpc(method, page=page, **fields)
            return [convert(message) for message in getattr(response, items)], response.page

        return fetch

    return Listing(start_iteration, page_size)


# -- collections -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Area:
    """A part of the client's API: `lake.tables`, `lake.directory`."""

    _calls: Calls

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._calls.channel.location.text}"


class Operations(Area, Generic[R]):
    """List, get, create, update and delete resources of one kind.

    A `key` consists of the request fields that identify a resource, such as `table_id`.
    """

    __slots__ = ()

    _kind: ClassVar[str]
    """The kind as in the names of RPCs and fields: `table` for `GetTable` and `table_id`."""
    _spec: ClassVar[type[Message]]
    """The message with the fields that can be created and updated."""

    def _wrap(self, message: Any, meta: v1.MutationMeta | None, parents: Parents) -> R:
        """Return the resource that a message describes."""
        raise NotImplementedError

    def _list(self, fields: Callable[[], Mapping[str, Any]], page_size: int | None) -> Listing[R]:
        def start() -> tuple[Mapping[str, Any], Callable[[Any], R]]:
            parents = Parents(self._calls)
            return fields(), lambda message: self._wrap(message, None, parents)

        return listing_of(self._calls, f"List{self._kind.title()}s", f"{self._kind}s", start, page_size)

    def _get(self, key: Mapping[str, Any]) -> R:
        return self._from_response(self._calls.rpc(f"Get{self._kind.title()}", **key))

    def _create(self, spec: Mapping[str, Any], idempotency_key: str | None, **fields: Any) -> R:
        message = build(self._spec, **spec)
        key = self._calls.key(idempotency_key)
        return self._from_response(
            self._calls.rpc(f"Create{self._kind.title()}", spec=message, idempotency=key, **fields)
        )

    def _update(
        self,
        changes: Mapping[str, Any],
        if_version: int | None,
        if_etag: str | None,
        *,
        key: Callable[[], Mapping[str, Any]] = dict,
        spec_key: Callable[[], Mapping[str, Any]] = dict,
        parts: Mapping[str, Sequence[str]] = {},
    ) -> R:
        """Change the fields of the spec that are not `KEEP`; of a field in `parts`, only these parts.

        The fields of `key` identify the resource in the request, those of `spec_key` in the spec. They are functions, so
        that an update without changes is rejected before a reference is resolved.
        """
        given = {name: value for name, value in changes.items() if value is not KEEP}
        if not given:
            raise InvalidArgument(
                "the update changes nothing: give at least one new value, or None to clear one",
                key="update.mask.required",
                field="update_mask",
            )
        spec = build(self._spec, **given, **spec_key())
        paths = [path for name in given for path in parts.get(name, (name,))]
        response = self._calls.rpc(
            f"Update{self._kind.title()}",
            **key(),
            spec=spec,
            update_mask=FieldMask(paths=sorted(paths)),
            precondition=precondition(if_version, if_etag),
        )
        return self._from_response(response)

    def _delete(self, key: Mapping[str, Any], if_version: int | None, if_etag: str | None) -> Meta:
        condition = precondition(if_version, if_etag)
        return Meta.of(self._calls.rpc(f"Delete{self._kind.title()}", **key, precondition=condition).meta)

    def _from_response(self, response: Any) -> R:
        return self._wrap(getattr(response, self._kind), response.meta, Parents(self._calls))


class Collection(Operations[R]):
    """Resources of one kind that a single reference identifies. Subclasses add `create` and `update` with their fields."""

    __slots__ = ()

    def _id(self, ref: Ref) -> v1.ResourceId:
        """Return the id of the resource that `ref` names."""
        raise NotImplementedError

    def _key(self, ref: Ref) -> Mapping[str, Any]:
        return {f"{self._kind}_id": self._id(ref)}

    def _change(
        self,
        ref: Ref,
        changes: Mapping[str, Any],
        if_version: int | None,
        if_etag: str | None,
        *,
        parts: Mapping[str, Sequence[str]] = {},
    ) -> R:
        return self._update(changes, if_version, if_etag, key=lambda: self._key(ref), parts=parts)

    def get(self, ref: Ref) -> R:
        """Return the resource; raise `NotFound` if there is none."""
        return self._get(self._key(ref))

    def find(self, ref: Ref) -> R | None:
        """Return the resource, or None if there is none."""
        try:
            return self.get(ref)
        except NotFound:
            return None

    def delete(self, ref: Ref, *, if_version: int | None = None, if_etag: str | None = None) -> Meta:
        """Delete the resource; return its last stored version."""
        return self._delete(self._key(ref), if_version, if_etag)


# -- values to messages ------------------------------------------------------------------------------------------------


def build(message_type: type[M], /, **fields: Any) -> M:
    """Return a message with these fields; fields that are None stay unset."""
    try:
        return message_type(**{name: value for name, value in fields.items() if value is not None})
    except (TypeError, ValueError) as error:
        given = ", ".join(name for name, value in fields.items() if value is not None)
        raise InvalidArgument(
            f"cannot create a {message_type.__name__} from the given {given}: {error}", key="field.invalid", field=given
        ) from error


def precondition(if_version: int | None, if_etag: str | None = None) -> v1.Precondition | None:
    """Return the condition of a change; None if there is none."""
    if if_version is None and if_etag is None:
        return None
    return build(v1.Precondition, expected_version=if_version, expected_etag=if_etag)


def schema_text(schema: Json | Keep | None) -> Any:
    """Return a schema as JSON text; None and `KEEP` are returned as they are."""
    if schema is None or isinstance(schema, Keep | str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the schema cannot be converted to JSON ({error}): give JSON text, or dicts and lists",
            key="field.invalid",
            field="schema",
        ) from error


def timestamp(moment: datetime | Keep | None) -> Any:
    """Return a time as a message; None and `KEEP` are returned as they are."""
    if moment is None or isinstance(moment, Keep):
        return moment
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{moment.isoformat()} has no time zone: give one, such as tzinfo=UTC", key="field.invalid", field="time"
        )
    made = Timestamp()
    made.FromDatetime(moment)
    return made


N = TypeVar("N", bound="NamedRecord")


class FromMessages:
    """A dataclass whose fields are those of one or more messages, by their names."""

    @classmethod
    def of(cls, *messages: Message | None, **converted: Any) -> Self:
        """Convert messages; None is one that the server did not send. Fields that none of them has keep their defaults.

        `converted` are values of fields that differ from those of the messages.
        """
        wanted = {field.name for field in fields(cls)} - converted.keys()  # type: ignore[arg-type]
        values: dict[str, Any] = converted
        for message in messages:
            for field in message.DESCRIPTOR.fields if message is not None else ():
                name = NAMES.get(field.name, field.name)
                if name in wanted:
                    values[name] = _value(message, field)
        return cls(**values)


NAMES: Mapping[str, str] = {"resource_id": "id", "display_name": "name", "pointer_version": "version"}
"""The names of fields of messages that have other names in records."""


def _value(message: Any, field: Any) -> Any:
    """The value of a field as a value of Python: None if it has presence and is not set, and "" for a choice that is not made."""
    value = getattr(message, field.name)
    if field.is_repeated:
        return dict(value) if isinstance(value, Mapping) else tuple(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name.partition("_")[2].lower().removesuffix("unspecified")
    match value:
        case Timestamp():
            return time_of(value)
        case v1.ResourceId():
            return Id(value.id)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRecord(FromMessages):
    """What all resources with a name have."""

    name: str
    id: Id
    version: int | None = None
    """The stored version, which `if_version` can name; None in listings."""
    created_at: datetime | None = None
    damage: str = ""
    """In listings, what is wrong if the record is lost or corrupt; then only id and name are known."""


class NamedCollection(Area, Generic[N]):
    """Resources of one kind, by name. Subclasses add `create` and `update` with the types of their fields."""

    __slots__ = ()

    _resource: ClassVar[Resource]
    _record: ClassVar[Callable[..., Any]]
    """Converts messages into a record."""

    def __call__(self, *, page_size: int | None = None) -> Listing[N]:
        """List all by name."""
        plural = self._resource.plural
        return listing_of(self._calls, f"List{plural.title()}", plural, lambda: ({}, self._record), page_size)

    def get(self, name: str) -> N:
        """Return the resource with a name or an `Id`, and its state; raise `NotFound` if there is none."""
        key: Mapping[str, Any] = self._key(name) if isinstance(name, Id) else {"display_name": name}
        return self._from(self._calls.rpc(f"Get{self._resource.title}", **key))

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete the resource and what belongs to it; return its last stored version."""
        method = f"Delete{self._resource.title}"
        return Meta.of(self._calls.rpc(method, **self._key(name), precondition=precondition(if_version)).meta)

    def _create(self, name: str | None, given: Mapping[str, Any], idempotency_key: str | None) -> N:
        spec = build(self._resource.spec, display_name=name, **self._spec(given))
        key = self._calls.key(idempotency_key)
        return self._from(self._calls.rpc(f"Create{self._resource.title}", spec=spec, idempotency=key))

    def _update(self, name: str, new_name: str | None, given: Mapping[str, Any], if_version: int | None) -> N:
        changes = dict(self._spec(given))
        if new_name is not None:
            changes["display_name"] = new_name
        if not changes:
            message = "the update changes nothing: give at least one new value, or None to clear one"
            raise InvalidArgument(message, key="update.mask.required", field="update_mask")
        request = {
            **self._key(name),
            "spec": build(self._resource.spec, **changes),
            "update_mask": FieldMask(paths=sorted(map(self._resource.path, changes))),
            "precondition": precondition(if_version),
        }
        return self._from(self._calls.rpc(f"Update{self._resource.title}", **request))

    def _spec(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of the spec for the values that people give."""
        return given

    def _from(self, response: Any) -> N:
        """The record in a response, of all messages in it."""
        parts = [getattr(response, field.name) for field, _ in response.ListFields()]
        record: N = self._record(*parts)
        return record

    def _key(self, name: str) -> dict[str, v1.ResourceId]:
        """The field of a request that names a resource."""
        own_id = name if isinstance(name, Id) else self.get(name).id
        return {f"{self._resource.name}_id": v1.ResourceId(id=own_id, kind=self._resource.number)}


class PlainCollection(NamedCollection[Any]):
    """Resources of a kind without code of its own. Their fields are those of the message."""

    __slots__ = ()

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Any) -> Any:
        """Create a resource with the given fields."""
        return self._create(name, fields, idempotency_key)

    def update(self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Any) -> Any:
        """Change the given fields; None clears one."""
        return self._update(name, new_name, fields, if_version)


@cache
def plain_collection(resource: Resource) -> type[PlainCollection]:
    """The collection of a kind without code of its own, with records that are made from its message."""
    names = [field.name for field in resource.spec.DESCRIPTOR.fields if field.name != "display_name"]
    defaults = [(name, Any, None) for name in names]
    record: Any = make_dataclass(resource.title, defaults, bases=(NamedRecord,), frozen=True, slots=True, kw_only=True)
    made = {"__slots__": (), "_resource": resource, "_record": record.of, "__doc__": resource.about}
    return type(resource.plural.title(), (PlainCollection,), made)

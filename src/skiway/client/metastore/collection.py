"""Collections of resources: `lake.tables` and its like, implemented once for all kinds.

A collection declares its kind, its records and how to resolve a reference. `Collection` implements list, get, create, update
and delete once, on top of the naming scheme of the metastore's RPCs: `GetTable` takes a `GetTableRequest` with a
`table_id`, and its response has a `table` and a `meta`. `NamedCollection` is for the resources that an account has by
name. Subclasses add `create` and `update` with the types of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import Calls, Id, Ref, resource_id
from skiway.client.metastore.resources import Meta, NamedRecord, Parents
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.foundation.resources import Resource
from skiway.model import v1

M = TypeVar("M", bound=Message)
R = TypeVar("R")
N = TypeVar("N", bound=NamedRecord)
I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T", covariant=True)

Json = str | Mapping[str, Any] | Sequence[Any]
"""JSON text, or values that can be converted to JSON."""

FetchPage = Callable[[v1.PageRequest], tuple[Sequence[T], v1.PageResponse]]
"""Fetches one page of a listing."""


# -- listings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A lazy listing. Iterating over it fetches one page at a time; each iteration starts again.

    Items that are created or deleted during an iteration may be missing or included; every other item is included exactly once.
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

    def part(self, token: str = "") -> tuple[Sequence[T], str]:
        """One page, and the token of the next one, which is empty after the last. A token can be kept between calls."""
        items, page = self._start()(v1.PageRequest(page_size=self.page_size or 0, page_token=token))
        return items, page.next_page_token

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
    convert: Callable[[Any], I],
    page_size: int | None,
    fields: Callable[[], Mapping[str, Any]] = dict,
) -> Listing[I]:
    """Return the listing of a method such as `ListTables`, whose response has a field `items`.

    Each iteration calls `fields`, which resolves references and returns the fields of the request.
    """
    return Listing(lambda: pages_of(calls, method, items, convert, fields()), page_size)


def pages_of(
    calls: Calls, method: str, items: str, convert: Callable[[Any], I], fields: Mapping[str, Any]
) -> FetchPage[I]:
    """Return what fetches the pages of one iteration."""

    def fetch(page: v1.PageRequest) -> tuple[Sequence[I], v1.PageResponse]:
        response = calls.rpc(method, page=page, **fields)
        return [convert(message) for message in getattr(response, items)], response.page

    return fetch


# -- collections -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Area:
    """A part of the client's API: `lake.tables`, `lake.directory`."""

    _calls: Calls

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self._calls.channel.location.text}"


class Operations(Area, Generic[R]):
    """List, get, create, update and delete resources of one kind. A `key` has the request fields that identify a resource."""

    __slots__ = ()

    _kind: ClassVar[Resource]
    _record: ClassVar[Callable[..., Any]]
    """Makes a record from a message, the client's calls, the stored version if it is known, and a cache of parents."""

    def _spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of the spec for the values that people give."""
        return {"display_name" if name == "name" else name: value for name, value in given.items()}

    def _reader(self) -> Callable[..., R]:
        """Return what makes a record from the messages of a response. The records of one reader share lookups of parents."""
        parents = Parents(self._calls)
        return lambda message, meta=None: self._record(message, self._calls, meta, parents)

    def _list(self, page_size: int | None, fields: Callable[[], Mapping[str, Any]] = dict) -> Listing[R]:
        plural = self._kind.plural
        method = f"List{plural.title()}"
        return Listing(lambda: pages_of(self._calls, method, plural, self._reader(), fields()), page_size)

    def _get(self, key: Mapping[str, Any]) -> R:
        return self._answer("Get", **key)

    def _create(self, given: Mapping[str, Any], idempotency_key: str | None, **fields: Any) -> R:
        spec = build(self._kind.spec, **self._spec(given))
        return self._answer("Create", spec=spec, idempotency=self._calls.key(idempotency_key), **fields)

    def _update(
        self,
        given: Mapping[str, Any],
        if_version: int | None,
        if_etag: str | None = None,
        *,
        key: Callable[[], Mapping[str, Any]] = dict,
        spec_key: Callable[[], Mapping[str, Any]] = dict,
        parts: Mapping[str, Sequence[str]] = {},
    ) -> R:
        """Change the given fields; of a field in `parts`, only these parts.

        The fields of `key` identify the resource in the request, those of `spec_key` in the spec. They are functions, so
        that an update without changes is rejected before a reference is resolved.
        """
        changes = self._spec(given)
        if not changes:
            raise InvalidArgument(
                "the update changes nothing: give at least one new value, or None to clear one",
                key="update.mask.required",
                field="update_mask",
            )
        spec = build(self._kind.spec, **changes, **spec_key())
        paths = [path for name in changes for path in parts.get(name, (self._kind.path(name),))]
        return self._answer(
            "Update",
            **key(),
            spec=spec,
            update_mask=FieldMask(paths=sorted(paths)),
            precondition=precondition(if_version, if_etag),
        )

    def _delete(self, key: Mapping[str, Any], if_version: int | None, if_etag: str | None) -> Meta:
        condition = precondition(if_version, if_etag)
        return Meta.of(self._calls.rpc(f"Delete{self._kind.title}", **key, precondition=condition).meta)

    def _answer(self, verb: str, **fields: Any) -> R:
        """Make a call, and return the record in its response, of all messages in it."""
        response = self._calls.rpc(f"{verb}{self._kind.title}", **fields)
        return self._reader()(*(getattr(response, field.name) for field, _ in response.ListFields()))


class Collection(Operations[R]):
    """Resources of one kind, each identified by one reference: its name, its id, or the resource itself."""

    __slots__ = ()

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
        """Delete the resource and what belongs to it; return its last stored version."""
        return self._delete(self._key(ref), if_version, if_etag)

    def _key(self, ref: Ref) -> dict[str, Any]:
        return {f"{self._kind.name}_id": resource_id(self._kind.name, self._calls, ref)}

    def _change(
        self,
        ref: Ref,
        given: Mapping[str, Any],
        if_version: int | None,
        if_etag: str | None,
        *,
        parts: Mapping[str, Sequence[str]] = {},
    ) -> R:
        return self._update(given, if_version, if_etag, key=lambda: self._key(ref), parts=parts)


class NamedCollection(Collection[N]):
    """Resources of one kind that an account has by name. Their records have the values of messages."""

    __slots__ = ()

    def __call__(self, *, page_size: int | None = None) -> Listing[N]:
        """List all by name."""
        return self._list(page_size)

    def get(self, ref: Ref) -> N:
        """Return the resource with a name or an `Id`, and its state; raise `NotFound` if there is none."""
        return self._get(self._key(ref) if isinstance(ref, Id) else {"display_name": ref})

    def _key(self, ref: Ref) -> dict[str, Any]:
        own_id = ref if isinstance(ref, Id) else self.get(ref).id
        return {f"{self._kind.name}_id": v1.ResourceId(id=own_id, kind=self._kind.number)}

    def _reader(self) -> Callable[..., N]:
        return self._record

    def _rename(self, name: str, new_name: str | None, given: Mapping[str, Any], if_version: int | None) -> N:
        """Change the given fields, and the name if there is a new one."""
        return self._change(name, given if new_name is None else {**given, "name": new_name}, if_version, None)


class PlainCollection(NamedCollection[Any]):
    """Resources of a kind without code of its own. Their fields are those of the message."""

    __slots__ = ()

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Any) -> Any:
        """Create a resource with the given fields."""
        return self._create({"name": name, **fields}, idempotency_key)

    def update(self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Any) -> Any:
        """Change the given fields; None clears one."""
        return self._rename(name, new_name, fields, if_version)


@cache
def plain_collection(resource: Resource) -> type[PlainCollection]:
    """The collection of a kind without code of its own, with records that are made from its message."""
    names = [field.name for field in resource.spec.DESCRIPTOR.fields if field.name != "display_name"]
    defaults = [(name, Any, None) for name in names]
    record: Any = make_dataclass(resource.title, defaults, bases=(NamedRecord,), frozen=True, slots=True, kw_only=True)
    made = {"__slots__": (), "_kind": resource, "_record": record.of, "__doc__": resource.about}
    return type(resource.plural.title(), (PlainCollection,), made)


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


def schema_text(schema: Json | None) -> str | None:
    """Return a schema as JSON text; None is returned as it is."""
    if schema is None or isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the schema cannot be converted to JSON ({error}): give JSON text, or dicts and lists",
            key="field.invalid",
            field="schema",
        ) from error


def timestamp(moment: datetime | None) -> Timestamp | None:
    """Return a time as a message; None is returned as it is."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{moment.isoformat()} has no time zone: give one, such as tzinfo=UTC", key="field.invalid", field="time"
        )
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp

"""Resources that an account has by name: their records and collections, the same for all kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, ClassVar, Generic, Self, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.collection import Area, Listing, build, listing_of, precondition
from skiway.client.metastore.names import Id
from skiway.client.metastore.resources import Meta, time_of
from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.resources import Resource

__all__ = ["FromMessages", "NamedCollection", "NamedRecord"]

R = TypeVar("R", bound="NamedRecord")


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


class NamedCollection(Area, Generic[R]):
    """Resources of one kind, by name. Subclasses add `create` and `update` with the types of their fields."""

    __slots__ = ()

    _resource: ClassVar[Resource]
    _record: ClassVar[Callable[..., Any]]
    """Converts messages into a record."""

    def __call__(self, *, page_size: int | None = None) -> Listing[R]:
        """List all by name."""
        plural = self._resource.plural
        return listing_of(self._calls, f"List{plural.title()}", plural, lambda: ({}, self._record), page_size)

    def get(self, name: str) -> R:
        """Return the resource with a name or an `Id`, and its state; raise `NotFound` if there is none."""
        key: Mapping[str, Any] = self._key(name) if isinstance(name, Id) else {"display_name": name}
        return self._from(self._calls.rpc(f"Get{self._resource.title}", **key))

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete the resource and what belongs to it; return its last stored version."""
        method = f"Delete{self._resource.title}"
        return Meta.of(self._calls.rpc(method, **self._key(name), precondition=precondition(if_version)).meta)

    def _create(self, name: str | None, given: Mapping[str, Any], idempotency_key: str | None) -> R:
        spec = build(self._resource.spec, display_name=name, **self._spec(given))
        key = self._calls.key(idempotency_key)
        return self._from(self._calls.rpc(f"Create{self._resource.title}", spec=spec, idempotency=key))

    def _update(self, name: str, new_name: str | None, given: Mapping[str, Any], if_version: int | None) -> R:
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

    def _from(self, response: Any) -> R:
        """The record in a response, of all messages in it."""
        parts = [getattr(response, field.name) for field, _ in response.ListFields()]
        record: R = self._record(*parts)
        return record

    def _key(self, name: str) -> dict[str, v1.ResourceId]:
        """The field of a request that names a resource."""
        own_id = name if isinstance(name, Id) else self.get(name).id
        return {f"{self._resource.name}_id": v1.ResourceId(id=own_id, kind=self._resource.number)}

"""Checks that hold for all requests: the number of items in lists, and times and durations, of which protobuf decodes
impossible ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.errors import InvalidArgument, LimitExceeded
from skiway.metastore.records.errors import failure

__all__ = ["MAX_ITEMS", "check_lists", "check_times"]

MAX_ITEMS: Final = 20_000
"""How many items all lists and maps of a request may have together. Clients stream more."""

_TIMES = (Timestamp.DESCRIPTOR.full_name, Duration.DESCRIPTOR.full_name)


def check_lists(message: Message) -> None:
    """Raise `LimitExceeded` if the lists and maps of a request, at any depth, have too many items."""
    items, pending = 0, [message]
    while pending:
        for field, value in pending.pop().ListFields():
            if not field.is_repeated:
                pending += [value] if field.message_type else []
                continue
            items += len(value)
            if items > MAX_ITEMS:
                raise failure(LimitExceeded, "request.too_many", field=field.name, limit=str(MAX_ITEMS))
            if field.message_type:
                values = value.values() if field.message_type.GetOptions().map_entry else value
                pending += [each for each in values if isinstance(each, Message)]


def check_times(message: Message) -> None:
    """Raise `InvalidArgument` if a time or a duration, at any depth, is not a valid one."""
    for path, value in _times(message, ""):
        try:
            value.ToNanoseconds()  # checks the range of both members, and that their signs match
            value.ToJsonString()
        except ValueError as error:
            wanted = "use a time of the years 1 to 9999, or a duration below 10,000 years"
            raise failure(InvalidArgument, "field.invalid", field=path, found="invalid", wanted=wanted) from error


def _times(message: Message, path: str) -> Iterator[tuple[str, Any]]:
    """The times and durations that are set, with their paths."""
    for field in _fields_with_times(message.DESCRIPTOR):
        assert field.message_type is not None
        if field.is_repeated:
            held = getattr(message, field.name)
            values = held.values() if field.message_type.GetOptions().map_entry else held
        else:
            values = [getattr(message, field.name)] if message.HasField(field.name) else []
        for value in values:
            if not isinstance(value, Message):
                continue  # of a map
            if value.DESCRIPTOR.full_name in _TIMES:
                yield f"{path}{field.name}", value
            else:
                yield from _times(value, f"{path}{field.name}.")


@cache
def _fields_with_times(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """The fields of a message that are times, or that contain some."""
    return tuple(field for field in kind.fields if field.message_type and _has_times(field.message_type, frozenset()))


def _has_times(kind: Descriptor, outer: frozenset[str]) -> bool:
    if kind.full_name in _TIMES:
        return True
    if kind.full_name in outer:
        return False
    inside = outer | {kind.full_name}
    return any(_has_times(field.message_type, inside) for field in kind.fields if field.message_type)

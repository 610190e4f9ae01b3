"""Which resources a message speaks of, for the audit trail."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from skiway.metastore.records.realm import kind_name
from skiway.model import v1

__all__ = ["ids_in"]

DEPTH: Final = 2
"""Deep enough for `spec.table_id` of a request and `table.resource_id` of an answer."""

LONGEST: Final = 100
"""Ours are shorter; what callers send instead is cut."""


def ids_in(message: Message) -> dict[str, str]:
    """The ids that the message holds, by what they are ids of. Lists are left out: they tell of many or of none."""
    found: dict[str, str] = {}
    for path in _paths(message.DESCRIPTOR):
        part: Message | None = message
        for name in path:
            part = getattr(part, name) if part is not None and part.HasField(name) else None
        if isinstance(part, v1.ResourceId) and part.id:
            found.setdefault(_noun(path[-1], part.kind), part.id[:LONGEST])
    return found


def _noun(field: str, kind: int) -> str:
    """What the field is called after, as callers may leave the kind out; or the kind where the name says nothing."""
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

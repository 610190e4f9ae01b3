"""Names of resources: dotted text, a sequence of segments, or an id; and their resolution to ids.

"lake.sales.people"              catalog, namespaces, table
'lake."eu.west".people'          a segment in double quotes may contain dots; "" in it is one quote
("lake", "eu.west", "people")    segments, taken literally
Id("7f3c…")                      an id, which stays the same when the resource is renamed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from google.protobuf.message import Message

from skiway.client.metastore.calls import Calls
from skiway.client.names import split_name
from skiway.errors import InvalidArgument
from skiway.model import v1

__all__ = [
    "HasMessage",
    "Id",
    "Name",
    "Ref",
    "account_id",
    "catalog_id",
    "dotted",
    "name_ref",
    "namespace_id",
    "namespace_of",
    "segments",
    "table_id",
    "view_id",
]

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


def catalog_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """Return the id of a catalog."""
    return _resolve(calls, ref, "catalog", v1.RK_CATALOG)


def namespace_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """Return the id of a namespace."""
    return _resolve(calls, ref, "namespace", v1.RK_NAMESPACE)


def table_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """Return the id of a table."""
    return _resolve(calls, ref, "table", v1.RK_TABLE)


def view_id(calls: Calls, ref: Ref) -> v1.ResourceId:
    """Return the id of a view."""
    return _resolve(calls, ref, "view", v1.RK_VIEW)


def namespace_of(calls: Calls, ref: Ref) -> v1.Namespace:
    """Return a namespace, which has the id of its catalog."""
    message = ref.message if isinstance(ref, HasMessage) else ref
    if isinstance(message, v1.Namespace):
        return message
    found: v1.Namespace = calls.rpc("GetNamespace", namespace_id=namespace_id(calls, ref)).namespace
    return found


def _resolve(calls: Calls, ref: Ref, resource: str, kind: v1.ResourceKind.ValueType) -> v1.ResourceId:
    known = _known_id(ref, kind)
    if known is not None:
        return known
    found: v1.ResourceId = calls.rpc(f"Resolve{resource.title()}", ref=name_ref(ref, resource=resource)).resource_id
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

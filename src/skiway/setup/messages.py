"""Declarations to messages of the metastore and back: fields with the same name, or those in `NAMES`, mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, get_args

import msgspec
import yaml
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.client.metastore.calls import dotted, segments
from skiway.client.metastore.resources import value_of
from skiway.config.fields import DURATION, as_text
from skiway.model import v1
from skiway.setup.declarations import Declaration, Destination, Schedule, TableDestination, View, ViewColumn

D = TypeVar("D", bound=Declaration)
M = TypeVar("M", bound=Message)

NAMES: Final[Mapping[type[Declaration], Mapping[str, str]]] = {
    Destination: {"catalog": "catalog_display_name", "table": "table_display_name"},
    Schedule: {"every": "interval", "snapshots": "scope", "latest": "latest_n"},
    TableDestination: {"name": "table_display_name"},
    View: {"columns": "output_columns", "search_path": "creation_search_path"},
    ViewColumn: {"type": "logical_type"},
}
"""The fields of messages that have other names than the keys of a declaration."""
CHOICES: Final = {"latest_n": "latest"}
"""The names of choices in messages that have other names in declarations."""


AS_YAML: Final = ("expect",)
"""The keys whose values are texts of YAML in messages."""


def message_of(item: Declaration, kind: type[M]) -> M:
    """Return a declaration as a message. Keys without a value stay unset."""
    message, names = kind(), NAMES.get(type(item), {})
    for key in item.__struct_fields__:
        if value := getattr(item, key):
            _set(message, names.get(key, key), value)
    return message


def _set(message: Any, name: str, value: Any) -> None:
    field, target = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.partition("_")[0]
        choice = next((choice for choice, word in CHOICES.items() if word == value), value)
        setattr(message, name, field.enum_type.values_by_name[f"{prefix}_{choice.upper()}"].number)
    elif name in AS_YAML:
        setattr(message, name, yaml.safe_dump(list(value), sort_keys=False, allow_unicode=True))
    elif isinstance(value, dict):
        for key, own in value.items():
            if isinstance(own, Declaration):
                target[key].CopyFrom(message_of(own, type(target[key])))
            else:
                target[key] = own
    elif isinstance(value, tuple):
        for each in value:
            if isinstance(each, Declaration):
                added = target.add()
                added.CopyFrom(message_of(each, type(added)))
            else:
                target.append(each)
    elif isinstance(value, Declaration):
        target.CopyFrom(message_of(value, type(target)))
    elif isinstance(target, v1.NamespacePath):
        target.segments.extend(segments(value, resource="namespace"))
    elif isinstance(target, Duration):
        target.FromTimedelta(DURATION.read(value))
    elif isinstance(target, Timestamp):
        target.FromDatetime(datetime.fromisoformat(value))
    else:
        setattr(message, name, value)


def declaration_of(kind: type[D], message: Message, **given: Any) -> D:
    """Return what a message says as a declaration. `given` are the values of keys that differ from those of the message."""
    values, names = dict(given), NAMES.get(kind, {})
    for field in msgspec.structs.fields(kind):
        name = names.get(field.name, field.name)
        if field.name not in values and name in message.DESCRIPTOR.fields_by_name:
            value = _value(message, name, _declaration_in(field.type))
            if value not in (None, "", (), {}):
                values[field.name] = value
    return kind(**values)


def _value(message: Any, name: str, kind: type[Declaration] | None) -> Any:
    """A field as the value of a key, which contains declarations of a kind; None if it is not set."""
    value = value_of(message, name)
    if name in AS_YAML:
        return tuple(yaml.safe_load(value) or ())
    if message.DESCRIPTOR.fields_by_name[name].enum_type is not None:
        return CHOICES.get(value, value)
    match value:
        case dict() if kind:
            return {key: declaration_of(kind, own) for key, own in value.items()}
        case tuple() if kind:
            return tuple(declaration_of(kind, each) for each in value)
        case v1.NamespacePath():
            return dotted(value.segments)
        case Duration():
            return as_text(value.ToTimedelta()) if value.ToTimedelta() else None
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Message():
            return declaration_of(kind, value) if kind else None
    return value


def _declaration_in(hint: Any) -> type[Declaration] | None:
    """The class of declarations that a type contains, if there is one."""
    if isinstance(hint, type) and issubclass(hint, Declaration):
        return hint
    return next((found for each in get_args(hint) if (found := _declaration_in(each))), None)

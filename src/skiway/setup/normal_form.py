"""The normal form of a setup: sorted, and with values as the server stores them. Equal setups have equal normal forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from skiway.client.metastore.names import dotted, segments
from skiway.setup.declarations import (
    SECTIONS,
    Column,
    Connector,
    Declaration,
    Grant,
    ListType,
    MapType,
    Namespace,
    Object,
    Pipeline,
    Policy,
    Rule,
    Setup,
    StructType,
    Table,
    Tags,
    View,
)
from skiway.setup.named import described, with_sorted_sets

__all__ = ["KINDS", "full_name", "normal", "normal_item", "object_kind", "object_name", "title"]

KINDS: Final = ("catalog", "namespace", "table", "view")
"""The kinds of objects that grants and policies refer to."""


def normal(setup: Setup) -> Setup:
    """Return the setup in normal form."""
    changed: dict[str, Any] = {}
    for section in SECTIONS:
        items = getattr(setup, section)
        if items is not None:
            changed[section] = tuple(sorted(map(normal_item, items), key=title))
    return replace(setup, **changed)


def normal_item(item: Declaration) -> Declaration:
    """Return a declaration in normal form."""
    change = _NORMAL.get(type(item))
    resource = described(item)
    found = with_sorted_sets(resource, item) if resource else item if change is None else change(item)
    sorted_fields = {
        name: dict(sorted(value.items()))
        for name in found.__struct_fields__
        if isinstance(value := getattr(found, name), dict)
    }
    return replace(found, **sorted_fields)


def title(item: Any) -> str:
    """What identifies a declaration within its section, also for people."""
    match item:
        case Grant():
            return f"{item.to} on {object_kind(item.on)} {object_name(item.on)}"
        case Tags():
            return item.table
        case _:
            return str(item.name)


def object_kind(reference: Object) -> str:
    """The kind of the object that a reference names."""
    return next((kind for kind in KINDS if getattr(reference, kind)), "")


def object_name(reference: Object) -> str:
    """The full name that a reference gives, in normal form. That of a catalog is its name as it is."""
    kind = object_kind(reference)
    return reference.catalog or full_name(getattr(reference, kind), kind)


def full_name(text: str, kind: str) -> str:
    """A full name with quotes only where they are needed."""
    return dotted(segments(text, resource=kind))


def _named(item: Any) -> Any:
    return replace(item, name=full_name(item.name, "object"))


def _table(item: Table) -> Table:
    return replace(item, name=full_name(item.name, "table"), columns=tuple(map(_column, item.columns)))


def _column(item: Column) -> Column:
    return replace(item, type=_type(item.type))


def _type(declared: Any) -> Any:
    match declared:
        case StructType():
            return replace(declared, fields=tuple(map(_column, declared.fields)))
        case ListType():
            return replace(declared, element=_type(declared.element))
        case MapType():
            return replace(declared, key=_type(declared.key), value=_type(declared.value))
        case _:
            return re.sub(r"\s*,\s*", ", ", declared.strip())  # as in decimal(10, 2)


def _view(item: View) -> View:
    sql = {dialect.strip().lower(): text for dialect, text in item.sql.items()}
    reads = None if item.reads is None else tuple(full_name(each, "table") for each in item.reads)
    return replace(item, name=full_name(item.name, "view"), sql=dict(sorted(sql.items())), reads=reads or None)


def _tags(item: Tags) -> Tags:
    columns = {column: _tag_names(tags) for column, tags in item.columns.items()}
    return replace(item, table=full_name(item.table, "table"), columns={c: tags for c, tags in columns.items() if tags})


def _tag_names(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({each.strip().lower() for each in tags}))


def _policy(item: Policy) -> Policy:
    objects = {(object_kind(each), object_name(each)) for each in item.on}
    return replace(
        item,
        to=_callers(item.to),
        exceptions=_callers(item.exceptions),
        on=tuple(Object(**{kind: name}) for kind, name in sorted(objects)),
        tags=_tag_names(item.tags),
    )


def _rule(item: Rule) -> Rule:
    schema = item.schema
    if schema is not None:
        schema = replace(schema, columns=dict(sorted(schema.columns.items())))
    return replace(item, table=full_name(item.table, "table"), schema=schema)


def _pipeline(item: Pipeline) -> Pipeline:
    return replace(item, files=dict(sorted(item.files.items())))


def _callers(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({each.lower() if each.startswith("role:") else each for each in given}))


def _grant(item: Grant) -> Grant:
    to = item.to.lower() if item.to.startswith("role:") else item.to
    return replace(item, to=to, on=Object(**{object_kind(item.on): object_name(item.on)}))


def _connector(item: Connector) -> Connector:
    auth = replace(
        item.auth,
        properties=dict(sorted(item.auth.properties.items())),
        header_hints=dict(sorted(item.auth.header_hints.items())),
    )
    source = replace(item.source, namespace=_path(item.source.namespace))
    tables = tuple(replace(each, namespace=_path(each.namespace)) for each in item.destination.tables)
    destination = replace(item.destination, namespace=_path(item.destination.namespace), tables=tables)
    return replace(item, uri=item.uri.strip(), auth=auth, source=source, destination=destination)


def _path(text: str) -> str:
    return full_name(text, "namespace") if text else ""


_NORMAL: Final[dict[type, Callable[[Any], Any]]] = {
    Namespace: _named,
    Table: _table,
    View: _view,
    Tags: _tags,
    Policy: _policy,
    Rule: _rule,
    Pipeline: _pipeline,
    Grant: _grant,
    Connector: _connector,
}

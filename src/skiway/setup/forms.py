"""The forms of a setup: its normal form, YAML and JSON schema, and what the server stores.

Equal setups have equal normal forms: sorted, and with values as the server stores them. All forms are deterministic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec
import yaml
from msgspec.structs import replace

from skiway.client.metastore.calls import dotted, segments
from skiway.foundation.resources import Resource
from skiway.setup.declarations import (
    DESCRIBED,
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


def described(item: object) -> Resource | None:
    """The kind of a declaration, if its class is made from a description."""
    return next((resource for resource, kind in DESCRIBED.values() if type(item) is kind), None)


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
    change, resource = _NORMAL.get(type(item)), described(item)
    sets = [field.name for field in resource.fields if field.is_set] if resource else []
    found = replace(item if change is None else change(item), **{key: _sorted_set(getattr(item, key)) for key in sets})
    sorted_fields = {
        name: dict(sorted(value.items()))
        for name in found.__struct_fields__
        if isinstance(value := getattr(found, name), dict)
    }
    return replace(found, **sorted_fields)


def _sorted_set(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(items)))


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
    return _sorted_set(tag.strip().lower() for tag in tags)


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
    return _sorted_set(name.lower() if name.startswith("role:") else name for name in given)


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


def columns_of(schema: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns of a schema in Iceberg's JSON form."""
    return tuple(
        Column(
            name=each["name"],
            type=_declared(each["type"]),
            required=bool(each.get("required")),
            doc=each.get("doc") or "",
        )
        for each in schema.get("fields", ())
    )


def schema_of(columns: Sequence[Column]) -> dict[str, Any]:
    """A schema in Iceberg's JSON form, with new ids: those of columns first, as Iceberg assigns them."""
    return {"type": "struct", "schema-id": 0, "fields": _fields(columns, count(1))}


def _declared(found: Any) -> Any:
    if isinstance(found, str):
        return found
    match found["type"]:
        case "struct":
            return StructType(fields=columns_of(found))
        case "list":
            return ListType(element=_declared(found["element"]), element_required=bool(found.get("element-required")))
        case _:
            return MapType(
                key=_declared(found["key"]),
                value=_declared(found["value"]),
                value_required=bool(found.get("value-required")),
            )


def _fields(columns: Sequence[Column], ids: Iterator[int]) -> list[dict[str, Any]]:
    numbers = [next(ids) for _ in columns]
    return [
        {
            "id": number,
            "name": each.name,
            "required": each.required,
            "type": _typed(each.type, ids),
            **({"doc": each.doc} if each.doc else {}),
        }
        for number, each in zip(numbers, columns, strict=True)
    ]


def _typed(declared: Any, ids: Iterator[int]) -> Any:
    match declared:
        case StructType(fields=fields):
            return {"type": "struct", "fields": _fields(fields, ids)}
        case ListType():
            return {
                "type": "list",
                "element-id": next(ids),
                "element-required": declared.element_required,
                "element": _typed(declared.element, ids),
            }
        case MapType():
            return {
                "type": "map",
                "key-id": next(ids),
                "value-id": next(ids),
                "value-required": declared.value_required,
                "key": _typed(declared.key, ids),
                "value": _typed(declared.value, ids),
            }
        case _:
            return declared


SCHEMA_URL: Final = "https://json-schema.org/draft/2020-12/schema"
WIDTH: Final = 1_000_000
"""Long texts stay on one line, so that a change of a word is a change of one line."""


def write(setup: Setup) -> str:
    """Return the text of a file. `read` returns an equal setup."""
    text: str = yaml.dump(plain(setup), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


def plain(value: Any) -> Any:
    """A declaration as dicts, lists and scalars, without the keys that have their defaults."""
    # `msgspec.to_builtins` leaves out only defaults that are the same object, which equal texts need not be.
    if isinstance(value, Declaration):
        config = value.__struct_config__
        found = {} if config.tag is None else {config.tag_field: config.tag}
        for each in msgspec.structs.fields(value):
            given = getattr(value, each.name)
            if each.required or given != _default(each):
                found[each.name] = plain(given)
        return found
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def schema_text() -> str:
    """Return the JSON schema of setup files, for editors."""
    (reference,), components = msgspec.json.schema_components([Setup], ref_template="#/$defs/{name}")
    components = {name: _without_null(each) for name, each in components.items()}
    document = {"$schema": SCHEMA_URL, "title": "Skiway setup", **reference, "$defs": components}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _without_null(schema: Any) -> Any:
    """A schema in which optional keys can be left out, but have a value: the reader rejects keys without one."""
    if isinstance(schema, list):
        return [_without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without_null(each) for key, each in schema.items() if not (key == "default" and each is None)}
    if "enum" in found:
        found["enum"] = [each for each in found["enum"] if each is not None]
    options = [each for each in found.get("anyOf", ()) if each != {"type": "null"}]
    if "anyOf" in found and len(options) == 1:
        del found["anyOf"]
        return {**options[0], **found}
    return {**found, "anyOf": options} if options else found


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes lists indented, and text with several lines as a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent the items of a list below its key."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write equal values in full."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML folds these line breaks in all styles but double quotes, which escape them.
    style = '"' if any(each in text for each in "\x85\u2028\u2029") else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)

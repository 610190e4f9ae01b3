"""Arrow schemas with field ids.

Every field of a table's schema, and of the schemas of its files, has an id in the metadata key that Arrow uses for
Parquet's field ids. Fields with the same id are the same column, whatever their names. In formats without field ids, a
field is identified by name; its id is then a digest of the path of names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import pyarrow as pa

from skiway.airport.conversion import is_list
from skiway.errors import Unsupported
from skiway.formats.extension_types import EXTENSION, coordinate_system, geometry_type_name

Path: TypeAlias = tuple[str, ...]

_LIST_ITEM: Final = re.compile(r'(?:"(?:[^"]|"")*"|\([^()]*\)|\[[^\]]*\]|[^,])+')
_ID: Final = b"PARQUET:field_id"
_DOC: Final = b"doc"
_PRESERVED: Final = (_DOC, *EXTENSION)
_MAX_ID: Final[int] = 2**31 - 1  # field ids are positive int32 numbers in all formats


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of a table: its id within the table, as Arrow with field ids, and as Iceberg-style JSON."""

    id: int
    arrow: pa.Schema
    json: str

    @classmethod
    def of(cls, arrow: pa.Schema) -> TableSchema:
        """The schema of a table whose format has no schema ids: the id is a digest of the schema."""
        body = schema_json(arrow)
        number = _digest(body)
        return cls(number, arrow, json.dumps({**json.loads(body), "schema-id": number}, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a primitive type, possibly nested. `index` counts all leaves, like Parquet's columns."""

    id: int
    path: Path
    type: pa.DataType
    index: int


def field_id(field: pa.Field) -> int | None:
    """The id of a field; None if it has none."""
    found = (field.metadata or {}).get(_ID)
    return None if found is None else int(found)


def with_id(field: pa.Field, number: int | None) -> pa.Field:
    """`field` with the id `number`, or without an id."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key in _PRESERVED}
    return field.with_metadata(metadata if number is None else {**metadata, _ID: str(number).encode()})


def path_id(path: Path) -> int:
    """The id of the field at `path` in formats that identify fields by name."""
    return _digest("\0".join(path))


def _digest(text: str) -> int:
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    return number % _MAX_ID + 1


def with_ids(schema: pa.Schema, id_of: Callable[[Path], int | None] = path_id) -> pa.Schema:
    """Replace the ids of all fields of `schema` with those that `id_of` returns for their paths."""
    return pa.schema([_identified(field, (field.name,), id_of) for field in schema])


def _identified(field: pa.Field, path: Path, id_of: Callable[[Path], int | None]) -> pa.Field:
    def part(child: pa.Field, name: str) -> pa.Field:
        return _identified(child, (*path, name), id_of)

    return with_id(field.with_type(rebuilt(field.type, part)), id_of(path))


def rebuilt(of: pa.DataType, part: Callable[[pa.Field, str], pa.Field]) -> pa.DataType:
    """Replace the fields of a nested type. The field of a list is always named `element`."""
    if pa.types.is_struct(of):
        return pa.struct([part(child, child.name) for child in of])
    if pa.types.is_map(of):
        return pa.map_(part(of.key_field, "key"), part(of.item_field, "value"))
    if is_list(of):
        return _with_elements(of, part(of.value_field, "element"))
    return of


def _with_elements(of: pa.DataType, element: pa.Field) -> pa.DataType:
    """A list type of the same layout: the schema of a file says how its columns are read."""
    if pa.types.is_fixed_size_list(of):
        return pa.list_(element, of.list_size)
    make = {
        pa.LargeListType: pa.large_list,
        pa.ListViewType: pa.list_view,
        pa.LargeListViewType: pa.large_list_view,
    }.get(type(of), pa.list_)
    return make(element)


def leaves(schema: pa.Schema) -> list[Leaf]:
    """The columns of primitive types that have ids, including those in structs, but not in lists and maps."""
    return [leaf for leaf, repeated in _identified_leaves(schema) if not repeated]


def element_leaves(schema: pa.Schema) -> list[Leaf]:
    """The values of primitive types in lists and maps that have ids. Their paths contain `element`, `key` or `value`."""
    return [leaf for leaf, repeated in _identified_leaves(schema) if repeated]


def _identified_leaves(schema: pa.Schema) -> Iterator[tuple[Leaf, bool]]:
    for index, (path, field, repeated) in enumerate(_all_leaves(list(schema), (), repeated=False)):
        number = field_id(field)
        if number is not None:
            yield Leaf(number, path, field.type, index), repeated


def _all_leaves(fields: Iterable[pa.Field], above: Path, *, repeated: bool) -> Iterator[tuple[Path, pa.Field, bool]]:
    """All leaves with their paths, and whether they are inside of lists or maps."""
    for field in fields:
        path, of = (*above, field.name), field.type
        if pa.types.is_map(of):
            parts = [of.key_field.with_name("key"), of.item_field.with_name("value")]
            yield from _all_leaves(parts, path, repeated=True)
        elif is_list(of):
            yield from _all_leaves([of.value_field.with_name("element")], path, repeated=True)
        elif of.num_fields:
            inside = repeated or not pa.types.is_struct(of)
            yield from _all_leaves((of.field(place) for place in range(of.num_fields)), path, repeated=inside)
        else:
            yield path, field, repeated


def schema_json(schema: pa.Schema) -> str:
    """The schema in Iceberg's JSON form, with the narrowest Iceberg type that represents all values of a column."""
    return json.dumps({"type": "struct", "fields": [_field_json(field) for field in schema]}, sort_keys=True)


def _field_json(field: pa.Field) -> dict[str, Any]:
    doc = (field.metadata or {}).get(_DOC)
    crs = coordinate_system(field)
    return {
        "id": field_id(field),
        "name": field.name,
        "required": not field.nullable,
        "type": _type_json(field.type, field.name) if crs is None else geometry_type_name(crs),
        **({"doc": doc.decode()} if doc else {}),
    }


def _type_json(of: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(of):
        return {"type": "struct", "fields": [_field_json(child) for child in of]}
    if pa.types.is_map(of):
        key, value = of.key_field, of.item_field
        return {
            "type": "map",
            "key-id": field_id(key),
            "key": _type_json(key.type, name),
            "value-id": field_id(value),
            "value": _type_json(value.type, name),
            "value-required": not value.nullable,
        }
    if is_list(of):
        element = of.value_field
        return {
            "type": "list",
            "element-id": field_id(element),
            "element": _type_json(element.type, name),
            "element-required": not element.nullable,
        }
    return type_name(of, name)


def type_name(of: pa.DataType, column: str) -> str:
    """Iceberg's name of a primitive type; raises Unsupported if it has none."""
    if pa.types.is_dictionary(of):
        of = of.value_type
    if pa.types.is_decimal(of) and of.precision <= 38 and of.scale >= 0:
        return f"decimal({of.precision}, {of.scale})"
    if pa.types.is_fixed_size_binary(of):
        return f"fixed[{of.byte_width}]"
    if pa.types.is_timestamp(of):
        return f"timestamp{'tz' if of.tz else ''}{'_ns' if of.unit == 'ns' else ''}"
    if of not in _NAMES:
        raise Unsupported(
            f"column {column!r} has type {of}, which is not supported; leave the column out, or store it as another type",
            key="column.type",
            column=column,
        )
    return _NAMES[of]


_NAMES: Final[dict[pa.DataType, str]] = {
    pa.null(): "unknown",
    pa.bool_(): "boolean",
    **dict.fromkeys([pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()], "int"),
    **dict.fromkeys([pa.int64(), pa.uint32()], "long"),
    pa.uint64(): "decimal(20, 0)",
    **dict.fromkeys([pa.float16(), pa.float32()], "float"),
    pa.float64(): "double",
    **dict.fromkeys([pa.string(), pa.large_string(), pa.string_view()], "string"),
    **dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary_view()], "binary"),
    **dict.fromkeys([pa.date32(), pa.date64()], "date"),
    **dict.fromkeys([pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], "time"),
    pa.uuid(): "uuid",
}


def list_items(text: str) -> list[str]:
    """The items of a list with commas, which names in quotes and parentheses may contain."""
    return [item.strip() for item in _LIST_ITEM.findall(text) if item.strip()]

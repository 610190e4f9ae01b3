# mypy: disable-error-code=no-any-return
# PyIceberg is partly untyped.
"""Schemas of exported tables, and the name mapping by which clients find columns in files without field ids.

All columns are optional, because clients differ in what they do if a file contradicts NOT NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.airport.layouts import is_list
from skiway.errors import Unsupported
from skiway.formats.geometry import coordinate_system
from skiway.formats.schemas import field_id, schema_json

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["NAME_MAPPING", "check_types", "iceberg_schema", "name_mapping", "refused"]

NAME_MAPPING: Final = "schema.name-mapping.default"
_FIRST_RESERVED_ID: Final = 2**31 - 1 - 200
_TYPES: Final = frozenset(
    {
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.date32(), pa.time64("us")),
        *(pa.timestamp("us"), pa.timestamp("us", tz="UTC")),  # Spark reads milliseconds as microseconds
    }
)


def refused(reason: str, **params: str) -> Unsupported:
    """The error for a table that Iceberg clients would not read correctly."""
    return Unsupported(reason, key="table.not_exportable", **params)


def check_types(fields: Iterable[pa.Field], *, inside: str = "") -> None:
    """Raise unless all clients read columns of these types with the same values as we do."""
    for field in fields:
        name = f"{inside}{field.name}"
        of = field.type
        if coordinate_system(field) is not None:
            raise _type_refused(name, "GEOMETRY")
        if pa.types.is_struct(of) and of.num_fields:
            check_types(of, inside=f"{name}.")
        elif pa.types.is_map(of):
            check_types([of.key_field, of.item_field], inside=f"{name}.")
        elif is_list(of):
            check_types([of.value_field], inside=f"{name}.")
        elif not _is_readable(of):
            raise _type_refused(name, str(of))


def _is_readable(of: pa.DataType) -> bool:
    if pa.types.is_dictionary(of):
        of = of.value_type
    if pa.types.is_decimal(of):
        return bool(of.precision <= 38 and 0 <= of.scale <= of.precision)
    return of in _TYPES


def _type_refused(column: str, of: str) -> Unsupported:
    return refused(f"column {column!r} has type {of}, which not all Iceberg clients read alike", column=column)


def iceberg_schema(arrow: pa.Schema) -> Schema:
    """The schema in which clients read the table, with the field ids of `arrow`."""
    from pyiceberg.schema import Schema

    check_types(arrow)
    optional = pa.schema([_optional(field) for field in arrow])
    try:
        made = Schema.model_validate_json(schema_json(optional))
        ids = list(made.field_ids)  # raises if names are ambiguous
    except ValueError as error:
        raise refused(f"its column names are ambiguous for Iceberg clients: {error}") from error
    if len(set(ids)) < _count(optional) or max(ids, default=0) >= _FIRST_RESERVED_ID:
        raise refused("two of its columns have the same field id, or a reserved one; rename a column")
    return made


def _optional(field: pa.Field) -> pa.Field:
    of = field.type
    if pa.types.is_struct(of):
        of = pa.struct([_optional(child) for child in of])
    elif pa.types.is_map(of):
        of = pa.map_(_optional(of.key_field).with_nullable(False), _optional(of.item_field))
    elif is_list(of):
        of = pa.list_(_optional(of.value_field))
    return field.with_type(of).with_nullable(True)


def _count(fields: Iterable[pa.Field]) -> int:
    return sum(1 + _count(_children(field.type)) for field in fields)


def _children(of: pa.DataType) -> Sequence[pa.Field]:
    if pa.types.is_map(of):
        return [of.key_field.with_name("key"), of.item_field.with_name("value")]
    if is_list(of):
        return [of.value_field.with_name("element")]
    return list(of) if pa.types.is_struct(of) else []


def name_mapping(schemas: Iterable[pa.Schema]) -> str:
    """The name mapping of all columns that any of the schemas has."""
    fields = [field for schema in schemas for field in schema]
    return json.dumps(_mapped(fields), ensure_ascii=False, sort_keys=True)


def _mapped(fields: Sequence[pa.Field]) -> list[dict[str, Any]]:
    alike: dict[str, list[pa.Field]] = {}
    for field in fields:
        alike.setdefault(field.name, []).append(field)
    found = []
    for name, same in sorted(alike.items()):
        nested = _mapped([child for field in same for child in _children(field.type)])
        found.append({"field-id": field_id(same[0]), "names": [name], **({"fields": nested} if nested else {})})
    return found

"""The columns of views: as an Iceberg schema for Iceberg clients, and with DuckDB's types in the record of the view."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.metastore.resources.view_dialects import DUCKDB
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


_PRIMITIVES: Final = {
    exp.DataType.Type.BOOLEAN: "boolean",
    exp.DataType.Type.TINYINT: "int",
    exp.DataType.Type.UTINYINT: "int",
    exp.DataType.Type.SMALLINT: "int",
    exp.DataType.Type.USMALLINT: "int",
    exp.DataType.Type.INT: "int",
    exp.DataType.Type.UINT: "long",
    exp.DataType.Type.BIGINT: "long",
    exp.DataType.Type.UBIGINT: "decimal(20, 0)",
    exp.DataType.Type.INT128: "decimal(38, 0)",
    exp.DataType.Type.UINT128: "decimal(38, 0)",
    exp.DataType.Type.FLOAT: "float",
    exp.DataType.Type.DOUBLE: "double",
    exp.DataType.Type.DATE: "date",
    exp.DataType.Type.TIME: "time",
    exp.DataType.Type.TIMESTAMP: "timestamp",
    exp.DataType.Type.TIMESTAMPNTZ: "timestamp",
    exp.DataType.Type.TIMESTAMP_S: "timestamp",
    exp.DataType.Type.TIMESTAMP_MS: "timestamp",
    exp.DataType.Type.TIMESTAMP_NS: "timestamp",
    exp.DataType.Type.TIMESTAMPTZ: "timestamptz",
    exp.DataType.Type.UUID: "uuid",
    exp.DataType.Type.VARBINARY: "binary",
    exp.DataType.Type.BLOB: "binary",
}


def iceberg_columns(columns: Sequence[v1.SchemaColumn]) -> Schema:
    """The columns of a view, which have DuckDB's types, as an Iceberg schema. Types that Iceberg lacks become strings."""
    from pyiceberg.schema import Schema

    numbers = count(1)
    fields = [_field(next(numbers), column.name, _parsed_type(column.logical_type), numbers) for column in columns]
    return Schema.model_validate({"type": "struct", "schema-id": 0, "fields": fields})


def _parsed_type(text: str) -> exp.DataType | None:
    try:
        return exp.DataType.build(text, dialect=DUCKDB)
    except (SqlglotError, ValueError):
        return None


def _field(number: int, name: str, of: exp.DataType | None, numbers: count[int]) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": _type(of, numbers)}


def _type(of: exp.DataType | None, numbers: count[int]) -> Any:
    kinds, kind = exp.DataType.Type, None if of is None else of.this
    inner = [] if of is None else list(of.expressions)
    if kind in (kinds.LIST, kinds.ARRAY) and inner:
        return {
            "type": "list",
            "element-id": next(numbers),
            "element-required": False,
            "element": _type(inner[0], numbers),
        }
    if kind == kinds.MAP and len(inner) == 2:
        key, value = next(numbers), next(numbers)
        return {
            "type": "map",
            "key-id": key,
            "key": _type(inner[0], numbers),
            "value-id": value,
            "value-required": False,
            "value": _type(inner[1], numbers),
        }
    if kind == kinds.STRUCT and inner and all(isinstance(each, exp.ColumnDef) for each in inner):
        own = [next(numbers) for _ in inner]
        fields = [_field(number, each.name, each.kind, numbers) for number, each in zip(own, inner, strict=True)]
        return {"type": "struct", "fields": fields}
    if kind == kinds.DECIMAL:
        precision, scale = (
            [*(int(each.name) for each in inner), 18, 3][:2] if len(inner) != 1 else (int(inner[0].name), 0)
        )
        return f"decimal({precision}, {scale})"
    return "string" if kind is None else _PRIMITIVES.get(kind, "string")


# --- DuckDB's types ---------------------------------------------------------------------------------------------------

_DUCKDB: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz_ns": "TIMESTAMP WITH TIME ZONE",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


def duckdb_columns(schema: Schema) -> list[v1.SchemaColumn]:
    """The columns of an Iceberg schema with DuckDB's types; none if DuckDB lacks one of the types."""
    types = [_duckdb_type(field.field_type) for field in schema.fields]
    return [
        v1.SchemaColumn(name=field.name, logical_type=kind)
        for field, kind in zip(schema.fields, types, strict=True)
        if kind is not None and None not in types
    ]


def _duckdb_type(of: Any) -> str | None:
    from pyiceberg.types import DecimalType, FixedType, ListType, MapType, StructType

    match of:
        case ListType():
            element = _duckdb_type(of.element_type)
            return None if element is None else f"{element}[]"
        case MapType():
            key, value = _duckdb_type(of.key_type), _duckdb_type(of.value_type)
            return None if key is None or value is None else f"MAP({key}, {value})"
        case StructType():
            kinds = [_duckdb_type(field.field_type) for field in of.fields]
            names = ['"' + field.name.replace('"', '""') + '"' for field in of.fields]
            members = [f"{name} {kind}" for name, kind in zip(names, kinds, strict=True)]
            return None if not members or None in kinds else f"STRUCT({', '.join(members)})"
        case DecimalType():
            return f"DECIMAL({of.precision},{of.scale})"
        case FixedType():
            return "BLOB"
    return _DUCKDB.get(str(of))

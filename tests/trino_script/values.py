"""The values of Trino's protocol, which are JSON, as Arrow has them."""

from __future__ import annotations

import base64
import re
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from trino_script.trino_server import Result

__all__ = ["arrow_table", "python_rows"]

_TYPES: Final = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "varbinary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    "uuid": pa.uuid(),
}


def arrow_table(result: Result) -> pa.Table:
    """The rows of a statement."""
    columns = zip(*python_rows(result), strict=True) if result.rows else ([] for _ in result.names)
    fields = [pa.field(name, _arrow_type(of)) for name, of in zip(result.names, result.types, strict=True)]
    arrays = [_array(list(values), field.type) for values, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def python_rows(result: Result) -> list[tuple[Any, ...]]:
    """The rows of a statement with values of Python."""
    return [tuple(_value(each, of) for each, of in zip(row, result.types, strict=True)) for row in result.rows]


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if isinstance(of, pa.UuidType):
        stored = pa.array([None if each is None else each.bytes for each in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(of, stored)
    return pa.array(values, of)


def _arguments(of: dict[str, Any]) -> list[Any]:
    return [each["value"] for each in of["arguments"]]


def _arrow_type(of: dict[str, Any]) -> pa.DataType:
    match of["rawType"], _arguments(of):
        case "decimal", [precision, scale]:
            return pa.decimal128(precision, scale)
        case "array", [item]:
            return pa.list_(_arrow_type(item))
        case "map", [key, value]:
            return pa.map_(_arrow_type(key), _arrow_type(value))
        case "row", fields:
            return pa.struct([(each["fieldName"]["name"], _arrow_type(each["typeSignature"])) for each in fields])
        case name, _:
            return _TYPES[name]


def _value(value: Any, of: dict[str, Any]) -> Any:
    if value is None:
        return None
    match of["rawType"], _arguments(of):
        case "array", [item]:
            return [_value(each, item) for each in value]
        case "map", [key, item]:
            return [(_value(_key(each, key), key), _value(found, item)) for each, found in value.items()]
        case "row", fields:
            names = [each["fieldName"]["name"] for each in fields]
            return {
                name: _value(each, field["typeSignature"])
                for name, each, field in zip(names, value, fields, strict=True)
            }
        case name, _:
            return _plain_value(value, name)


def _key(text: str, of: dict[str, Any]) -> Any:
    """A key of a map, which is text in JSON."""
    return int(text) if of["rawType"] in ("integer", "bigint") else text


def _plain_value(value: Any, name: str) -> Any:
    match name:
        case "decimal":
            return Decimal(value)
        case "real" | "double":
            return float(value)  # also from texts such as NaN
        case "varbinary":
            return base64.b64decode(value)
        case "date":
            return date.fromisoformat(value)
        case "time":
            return time.fromisoformat(_micros(value))
        case "timestamp":
            return datetime.fromisoformat(_micros(value))
        case "timestamp with time zone":
            text, zone = value.rsplit(" ", 1)
            assert zone == "UTC", value
            return datetime.fromisoformat(_micros(text)).replace(tzinfo=UTC)
        case "uuid":
            return uuid.UUID(value)
    return value


def _micros(text: str) -> str:
    """A time with at most six digits after the point, as Python has them."""
    return re.sub(r"(\.\d{6})\d+$", r"\1", text)

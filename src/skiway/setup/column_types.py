"""Columns of managed tables: declarations to Iceberg's JSON form, and back. Ids are left out of declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from skiway.setup.declarations import Column, ListType, MapType, StructType

__all__ = ["columns_of", "schema_of"]


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

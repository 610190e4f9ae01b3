"""Filter JSON built by hand, for filters that no recorded client sends."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def kind(type_id: str, **info: Any) -> Json:
    return {"id": type_id, "type_info": {"alias": "", "extension_info": None, **info} if info else None}


def column(index: int, of: str | Json = "INTEGER", **members: Any) -> Json:
    return {
        "expression_class": "BOUND_COLUMN_REF",
        "type": "BOUND_COLUMN_REF",
        "return_type": kind(of) if isinstance(of, str) else of,
        "binding": {"table_index": 0, "column_index": index},
        "depth": 0,
        **members,
    }


def value(of: str | Json, raw: Any) -> Json:
    return {"type": kind(of) if isinstance(of, str) else of, "is_null": raw is None, "value": raw}


def constant(of: str | Json, raw: Any) -> Json:
    return {"expression_class": "BOUND_CONSTANT", "type": "VALUE_CONSTANT", "value": value(of, raw)}


def compare(left: Json, op: str, right: Json) -> Json:
    return {"expression_class": "BOUND_COMPARISON", "type": f"COMPARE_{op}", "left": left, "right": right}


def both(*children: Json) -> Json:
    return {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_AND", "children": list(children)}


def either(*children: Json) -> Json:
    return {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_OR", "children": list(children)}


def operator(name: str, *children: Json) -> Json:
    return {
        "expression_class": "BOUND_OPERATOR",
        "type": name,
        "return_type": kind("BOOLEAN"),
        "children": list(children),
    }


def negate(child: Json) -> Json:
    return operator("OPERATOR_NOT", child)


def call(name: str, *children: Json, of: str = "BOOLEAN", catalog: str = "system", schema: str = "main") -> Json:
    return {
        "expression_class": "BOUND_FUNCTION",
        "type": "BOUND_FUNCTION",
        "return_type": kind(of),
        "children": list(children),
        "name": name,
        "catalog_name": catalog,
        "schema_name": schema,
    }


def cast(child: Json, of: str | Json, try_cast: bool = False) -> Json:
    target = kind(of) if isinstance(of, str) else of
    return {
        "expression_class": "BOUND_CAST",
        "type": "OPERATOR_CAST",
        "child": child,
        "return_type": target,
        "try_cast": try_cast,
    }


def text(*predicates: Json, names: tuple[str, ...] = ("i", "s", "d")) -> str:
    return json.dumps({"filters": list(predicates), "column_binding_names_by_index": list(names)})


FIVE = compare(column(0), "EQUAL", constant("INTEGER", 5))
UNKNOWN = {"expression_class": "BOUND_LAMBDA", "type": "LAMBDA"}

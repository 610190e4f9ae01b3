"""Parameters of queries: the types that DuckDB expects of them, and constants instead of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from skiway.sandbox.syntax import (
    Refused,
    expression_text,
    expression_tree,
    literal,
    nodes,
    query_tree,
    quoted,
    single_value,
    text_of,
)

_MAX_PARAMETERS: Final = 1000
_MAX_ALONE: Final = 20
"""How many parameters are looked at one by one, if DuckDB cannot tell the types of all."""

_TRIED: Final = ("VARCHAR", "BIGINT", "INTEGER", "DOUBLE", "TIMESTAMP", "DATE", "INTERVAL", "BOOLEAN")


def with_values(
    database: duckdb.DuckDBPyConnection, sql: str, row: pa.Table | None, types: Sequence[str] = ()
) -> dict[str, Any]:
    """The query with constants instead of its parameters, and their names. Without a row, all values are NULL.

    The columns of the row are matched by name if they have the names of the parameters, else by position. A value is cast to
    the type in `types`, in the order of the names, if there is one and the value is the same in it, or is a text.
    """
    tree = query_tree(database, sql)
    names = _names(tree)
    if len(names) > _MAX_PARAMETERS:
        raise Refused(
            f"the query has {len(names)} parameters, the maximum is {_MAX_PARAMETERS}: put the values into a table, and join it"
        )
    if not names and row is None:
        return {"sql": sql, "parameters": []}
    columns: Sequence[str] = names if row is None else row.column_names
    if len(columns) != len(names):
        raise Refused(f"the query has {len(names)} parameters, but {len(columns)} values were bound: bind one for each")
    if row is not None and row.num_rows != 1:
        raise Refused(f"{row.num_rows} rows of parameters were bound: a query takes exactly one")
    by_name = len(set(columns)) == len(names) and set(columns) == set(names)
    wanted = types if len(types) == len(names) else [""] * len(names)
    values = {}
    for number, name in enumerate(names):
        if row is None:
            constant = f"CAST(NULL AS {wanted[number]})" if wanted[number] else "NULL"
        else:
            constant = _constant_sql(database, row.column(name if by_name else number), wanted[number])
        values[name] = expression_tree(database, constant)
    return {"sql": _replaced(database, tree, values.get), "parameters": names}


def parameter_types(database: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The types that DuckDB expects of the parameters of a query, in the order of their names; empty where it cannot tell.

    A cast of a parameter tells its type, as in CAST(? AS DATE). The relations of the query are those of the database. DuckDB tells
    the types only if it knows all, so otherwise each is looked at while the other parameters are NULL.
    """
    tree = query_tree(database, sql)
    names = _names(tree)
    found = _types_of_all(database, sql)
    if found is None:
        found = {name: _type_alone(database, sql, name, names) for name in names[:_MAX_ALONE]}
    found |= _written_types(database, tree)
    return [found.get(name, "") for name in names]


def _type_alone(database: duckdb.DuckDBPyConnection, sql: str, name: str, names: Sequence[str]) -> str:
    """The type of one parameter: that which DuckDB tells, or else the first of some that it accepts, as of x in `x + 1`."""
    null = expression_tree(database, "NULL")
    others = {other: null for other in names if other != name}
    with contextlib.suppress(Refused):  # where NULL is not valid
        found = _types_of_all(database, _replaced(database, query_tree(database, sql), others.get)) if others else None
        if found is not None:
            return found.get(name, "")
    for kind in _TRIED:
        typed = {**others, name: expression_tree(database, f"CAST(NULL AS {kind})")}
        with contextlib.suppress(Refused):
            if _types_of_all(database, _replaced(database, query_tree(database, sql), typed.get)) is not None:
                return kind
    return ""


def _written_types(database: duckdb.DuckDBPyConnection, tree: Any) -> dict[str, str]:
    """The types of parameters that are cast. DuckDB itself would tell that of the outer cast, if there are two."""
    casts = [node for node in nodes(tree) if node.get("class") == "CAST" and node["child"].get("class") == "PARAMETER"]
    written = {str(node["child"]["identifier"]): _written_type(database, node) for node in casts}
    return {name: kind for name, kind in written.items() if kind}


def _written_type(database: duckdb.DuckDBPyConnection, cast: Mapping[str, Any]) -> str:
    """The type of a cast; empty if it is a name that is looked up later."""
    if "cast_type" in cast:
        return "" if cast["cast_type"]["id"] in ("UNBOUND", "USER") else _type_name(cast["cast_type"])
    null = {**cast, "child": expression_tree(database, "NULL"), "alias": ""}  # DuckDB 2.0 has the type as an expression
    with contextlib.suppress(duckdb.CatalogException, duckdb.BinderException):
        kind = single_value(database, f"SELECT typeof({expression_text(database, null)})")
        return "VARCHAR" if kind.startswith("ENUM(") else kind
    return ""


def _types_of_all(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, str] | None:
    """The types of all parameters; None if DuckDB cannot tell that of one. The plan is made, but not executed."""
    plan = json.loads(single_value(database, "SELECT json_serialize_plan(?)", sql))
    if plan.get("error"):
        if plan.get("error_type") != "internal":  # which a parameter without a type is
            raise Refused(str(plan.get("error_message", "this is not a query")))
        return None
    bound = [node for node in nodes(plan) if node.get("type") == "VALUE_PARAMETER"]
    return {str(node["identifier"]): _type_name(node["return_type"]) for node in bound}


def _type_name(kind: Mapping[str, Any]) -> str:
    """The name of a type in a serialized plan. An ENUM is text here: DuckDB cannot serialize a cast to it in a nested type."""
    name, facts = str(kind["id"]), kind.get("type_info") or {}
    if facts.get("alias"):
        return str(facts["alias"])
    match name:
        case "ENUM":
            return "VARCHAR"
        case "DECIMAL":
            return f"DECIMAL({facts['width']},{facts['scale']})"
        case "LIST":
            return f"{_type_name(facts['child_type'])}[]"
        case "ARRAY":
            return f"{_type_name(facts['child_type'])}[{facts['size']}]"
        case "MAP":
            key, value = (_type_name(each["second"]) for each in facts["child_type"]["type_info"]["child_types"])
            return f"MAP({key}, {value})"
        case "STRUCT" | "UNION":
            fields = [(str(each["first"]), _type_name(each["second"])) for each in facts["child_types"]]
            named = [(field, kind) for field, kind in fields if field]  # the first one of a union is its tag
            return f"{name}({', '.join(f'{quoted(field)} {kind}' for field, kind in named)})"
    return name


def _names(tree: Any) -> list[str]:
    """The names of the parameters: numbers first."""
    return sorted({str(node["identifier"]) for node in _parameters(tree)}, key=_position)


def _parameters(tree: Any) -> list[dict[str, Any]]:
    return [node for node in nodes(tree) if node.get("class") == "PARAMETER"]


def _position(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _replaced(database: duckdb.DuckDBPyConnection, tree: Any, value: Callable[[str], Any]) -> str:
    """The query with the values of parameters instead of those that have one."""
    columns_of_queries = {id(each) for node in nodes(tree) for each in node.get("select_list") or ()}
    for node in _parameters(tree):
        name = str(node["identifier"])
        if (found := value(name)) is None:
            continue
        shown = node["alias"] or (f"${name}" if id(node) in columns_of_queries else "")  # DuckDB's own name
        node.clear()
        node.update(found, alias=shown)
    return text_of(database, tree)


def _constant_sql(database: duckdb.DuckDBPyConnection, column: pa.ChunkedArray, wanted: str) -> str:
    """The value in a column of one row, as an expression: in the type that is wanted, if it is the same there."""
    values = database.from_arrow(pa.table({"value": column}))
    [(text, kind)] = values.project("CAST(value AS VARCHAR), typeof(value)").fetchall()
    if text is None:
        return f"CAST(NULL AS {wanted or kind})" if wanted or kind != '"NULL"' else "NULL"
    if "\0" in text:
        raise Refused("a parameter has the character NUL, which no query can contain: encode it, or bind a BLOB")
    if wanted and kind == "VARCHAR":
        kind = wanted
    elif wanted and wanted != kind:
        cast = f"TRY_CAST(CAST(value AS VARCHAR) AS {wanted})"  # DuckDB casts a TIME to TIME_NS only as text
        same = f"CAST({cast} AS VARCHAR), TRY_CAST({cast} AS {kind}) IS NOT DISTINCT FROM value"
        [(converted, is_same)] = values.project(same).fetchall()
        if is_same:
            text, kind = converted, wanted
    return f"CAST({literal(text)} AS {kind})"

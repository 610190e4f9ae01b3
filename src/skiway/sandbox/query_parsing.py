"""Parses queries: which tables they name, and their text with values instead of parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from skiway.sandbox.syntax import literal, nodes, single_value

__all__ = ["RefusedQuery", "parsed", "with_values"]

_TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "regexp_split_to_table"}
)
"""The table functions that a query may call: they read nothing but their arguments."""


_MAX_PARAMETERS: Final = 1000


class RefusedQuery(Exception):
    """The query is not one that may run here."""


def parsed(database: duckdb.DuckDBPyConnection, sql: str, prefix: str) -> dict[str, Any]:
    """The tables that a query names, with the points in time that it reads, and the query with a name for each of these.

    These names begin with `prefix`.
    """
    tree = _tree(database, sql)
    for node in nodes(tree):
        if node.get("type") == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise RefusedQuery(f"table function {name} cannot be used here: queries read tables of the lake")
    tables: list[dict[str, Any]] = []
    defined = {str(each["key"]).lower() for node in nodes(tree) for each in (node.get("cte_map") or {}).get("map", ())}
    for node in nodes(tree):
        if node.get("type") == "BASE_TABLE":
            is_defined = not node.get("schema_name") and node["table_name"].lower() in defined
            found: dict[str, Any] = {
                "name": [node.get("catalog_name") or "", node.get("schema_name") or "", node["table_name"]],
                "is_defined": is_defined,
            }
            if node.get("at_clause"):
                found |= {"unit": node["at_clause"]["unit"], "value": _value(database, node["at_clause"]["expr"])}
                node["alias"] = node.get("alias") or node["table_name"]
                node["at_clause"] = None
                found["as"] = node["table_name"] = f"{prefix} {len(tables)}"
                node["catalog_name"], node["schema_name"] = "memory", "main"
            tables.append(found)
    rewritten = any("as" in each for each in tables)
    text = single_value(database, "SELECT json_deserialize_sql(?)", json.dumps(tree)) if rewritten else sql
    return {"tables": tables, "sql": text}


def _tree(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """The syntax tree of a text that is exactly one query."""
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise RefusedQuery(f"expected one query, found {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = str(statements[0].type).rpartition(".")[2].partition(":")[0]
        raise RefusedQuery(f"{kind} is not a query: only SELECT can run here")
    tree: dict[str, Any] = json.loads(single_value(database, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error"):
        if "type parameter" in str(tree.get("error_message")):  # of a parsed type that DuckDB 1.5 cannot serialize
            raise RefusedQuery("a cast to a nested ENUM cannot be used here: cast to lists or structs of VARCHAR")
        raise RefusedQuery(str(tree.get("error_message", "this is not a query")))
    return tree


def with_values(database: duckdb.DuckDBPyConnection, sql: str, row: pa.Table | None) -> dict[str, Any]:
    """The query with constants instead of its parameters, and their names. Without a row, all values are NULL.

    The columns of the row are matched by name if they have the names of the parameters, else by position.
    """
    tree = _tree(database, sql)
    found = [(str(node["identifier"]), node) for node in nodes(tree) if node.get("class") == "PARAMETER"]
    names = sorted({name for name, _ in found}, key=_position)
    if len(names) > _MAX_PARAMETERS:
        raise RefusedQuery(
            f"the query has {len(names)} parameters, the maximum is {_MAX_PARAMETERS}: put the values into a table, and join it"
        )
    if not names and row is None:
        return {"sql": sql, "parameters": []}
    columns: Sequence[str] = names if row is None else row.column_names
    if len(columns) != len(names):
        raise RefusedQuery(
            f"the query has {len(names)} parameters, but {len(columns)} values were bound: bind one for each"
        )
    if row is not None and row.num_rows != 1:
        raise RefusedQuery(f"{row.num_rows} rows of parameters were bound: a query takes exactly one")
    by_name = len(set(columns)) == len(names) and set(columns) == set(names)
    values = {
        name: _expression(
            database, "NULL" if row is None else _constant(database, row.column(name if by_name else number))
        )
        for number, name in enumerate(names)
    }
    columns_of_queries = {id(each) for node in nodes(tree) for each in node.get("select_list") or ()}
    for name, node in found:
        shown = node["alias"] or (f"${name}" if id(node) in columns_of_queries else "")  # DuckDB's own name
        node.clear()
        node.update(values[name], alias=shown)
    return {"sql": single_value(database, "SELECT json_deserialize_sql(?)", json.dumps(tree)), "parameters": names}


def _position(name: str) -> tuple[int, int, str]:
    """The order of parameters: numbers first."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _constant(database: duckdb.DuckDBPyConnection, column: pa.ChunkedArray) -> str:
    """The value in a column of one row, as an expression."""
    shown = database.from_arrow(pa.table({"value": column})).project("CAST(value AS VARCHAR), typeof(value)").fetchone()
    assert shown is not None
    text, kind = shown
    if text is None:
        return "NULL" if kind == '"NULL"' else f"CAST(NULL AS {kind})"
    if "\0" in text:
        raise RefusedQuery("a parameter has the character NUL, which no query can contain: encode it, or bind a BLOB")
    return f"CAST({literal(text)} AS {kind})"


def _expression(database: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    """The syntax tree of an expression."""
    tree = json.loads(single_value(database, "SELECT json_serialize_sql(?)", f"SELECT {text}"))
    found: dict[str, Any] = tree["statements"][0]["node"]["select_list"][0]
    return found


def _value(database: duckdb.DuckDBPyConnection, expression: Any) -> str:
    """The value of a constant expression, as text."""
    if any(node.get("class") == "SUBQUERY" for node in nodes(expression)):
        raise RefusedQuery("AT needs a constant, such as VERSION => 5: it cannot contain a query")
    template = json.loads(single_value(database, "SELECT json_serialize_sql('SELECT 1')"))
    template["statements"][0]["node"]["select_list"] = [expression]
    return single_value(
        database,
        f"SELECT CAST(({single_value(database, 'SELECT json_deserialize_sql(?)', json.dumps(template))}) AS VARCHAR)",
    )

"""Expressions over the columns of one row, such as the conditions and masks of policies.

DuckDB parses the text, and DuckDB writes the checked tree as SQL again, so no part of the original text reaches a query. The
tree may read columns and constants, and call scalar functions. `caller('name')` is replaced in the tree by a constant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import duckdb

from skiway.sandbox.syntax import nodes, single_value

__all__ = ["RefusedExpression", "compiled"]

_CALLER: Final = "caller"
_FORBIDDEN: Final = {
    "SUBQUERY": "a query",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "DEFAULT": "DEFAULT",
}
"""Kinds of expressions that read more than the columns of one row."""

_NOT_ALLOWED: Final = frozenset(
    {
        *("current_setting", "getenv", "getvariable", "nextval", "currval"),
        *("query", "query_table", "unnest", "unlist", "generate_subscripts", "regexp_split_to_table"),
        *("current_query", "txid_current", "current_schemas", "write_log", "json_execute_serialized_sql"),
        *("format_type", "get_block_size", "geomean", "geometric_mean", "wavg", "weighted_avg"),
        *("json_group_array", "json_group_object", "json_group_structure"),
    }
)
"""Functions that read settings, sequences or several rows, run SQL, or return several rows."""


class RefusedExpression(Exception):
    """The text is not an expression that may be used."""


def compiled(
    database: duckdb.DuckDBPyConnection, texts: Sequence[str], claims: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The expressions as SQL, with the values of claims, and the columns that they read."""
    return [_compiled(database, text, claims) for text in texts]


def _compiled(database: duckdb.DuckDBPyConnection, text: str, claims: Mapping[str, Any]) -> dict[str, Any]:
    tree = _parsed(database, f"SELECT {text}")
    statements = tree.get("statements", [])
    if len(statements) != 1:
        raise RefusedExpression(f"expected one expression, found {len(statements)} statements")
    node = statements[0]["node"]
    parts = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
    is_alone = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    if not is_alone or len(node["select_list"]) != 1 or any(node.get(part) for part in parts):
        raise RefusedExpression("expected one expression, such as region = 'EU', found more than that")
    expression = node["select_list"][0]
    if expression["alias"]:
        raise RefusedExpression(f"an expression has no name: remove AS {expression['alias']}")
    _check(database, expression)
    columns = sorted(_columns(expression) - _parameters(expression))
    node["select_list"] = [_with_claims(database, expression, claims)]
    written = single_value(database, "SELECT json_deserialize_sql(?)", json.dumps(tree))
    return {"sql": written.removeprefix("SELECT "), "columns": columns}


def _check(database: duckdb.DuckDBPyConnection, expression: Any) -> None:
    for node in nodes(expression):
        kind = node.get("class")
        if kind in _FORBIDDEN:
            raise RefusedExpression(
                f"{_FORBIDDEN[kind]} cannot be used here: an expression reads the columns of one row"
            )
        if kind != "FUNCTION":
            continue
        name = str(node["function_name"]).lower()
        if node.get("catalog") or node.get("schema") not in ("", "main", None):
            raise RefusedExpression(f"function {name} cannot have a schema")
        if name in _NOT_ALLOWED or name in _aggregates(database):
            raise RefusedExpression(f"function {name} cannot be used here: an expression reads the columns of one row")
        if name == _CALLER:
            _claim_name(node)


def _claim_name(node: Mapping[str, Any]) -> str:
    arguments = node["children"]
    if len(arguments) == 1 and arguments[0].get("class") == "CONSTANT":
        value = arguments[0]["value"].get("value")
        if isinstance(value, str):
            return value
    raise RefusedExpression("caller needs the name of a claim as text: write caller('subject')")


def _columns(expression: Any) -> set[str]:
    return {str(node["column_names"][0]) for node in nodes(expression) if node.get("class") == "COLUMN_REF"}


def _parameters(expression: Any) -> set[str]:
    """The parameters of lambda functions, which look like columns."""
    return {name for node in nodes(expression) if node.get("class") == "LAMBDA" for name in _columns(node["lhs"])}


def _with_claims(database: duckdb.DuckDBPyConnection, node: Any, claims: Mapping[str, Any]) -> Any:
    """The tree with constants in place of the calls of `caller`."""
    if isinstance(node, list):
        return [_with_claims(database, each, claims) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("class") == "FUNCTION" and str(node["function_name"]).lower() == _CALLER:
        return _constant(database, claims.get(_claim_name(node)))
    return {key: _with_claims(database, value, claims) for key, value in node.items()}


def _constant(database: duckdb.DuckDBPyConnection, value: Any) -> Any:
    """The tree of a constant: a text, a number, a truth value, a list of texts, or NULL."""
    match value:
        case None:
            return _tree(database, "NULL")
        case bool():
            return _tree(database, "TRUE" if value else "FALSE")
        case list():
            made = _tree(database, "CAST(list_value('') AS VARCHAR[])")
            made["child"]["children"] = [_constant(database, str(each)) for each in value]
            return made
        case int() | float():
            made = _tree(database, "CAST('' AS BIGINT)" if isinstance(value, int) else "CAST('' AS DOUBLE)")
            made["child"]["value"]["value"] = str(value)
            return made
    made = _tree(database, "''")
    made["value"]["value"] = str(value)
    return made


def _tree(database: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return _parsed(database, f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]


def _parsed(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(single_value(database, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error"):
        raise RefusedExpression(str(tree.get("error_message", "this is not an expression")))
    return tree


@cache
def _aggregates(database: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The names of the functions that read several rows."""
    found = database.execute("SELECT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'")
    return frozenset(str(name).lower() for (name,) in found.fetchall())

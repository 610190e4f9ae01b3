"""SQL as syntax trees, which DuckDB itself makes and turns into text again: queries, and expressions over the columns of one row.

Of a query, the tree shows which tables it names. An expression, such as the condition or the mask of a
policy, may read columns and constants, and call scalar functions. DuckDB parses the text, and DuckDB writes the checked tree as
SQL again, so no part of the original text reaches a query. `caller('name')` is replaced in the tree by a constant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import duckdb

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType  # which DuckDB 1.4.0 lacks

_NESTED: Final = ("array", "list", "map", "struct", "union")


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree, each before those below it."""
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending += reversed(each.values())
        elif isinstance(each, list):
            pending += reversed(each)


def single_value(database: duckdb.DuckDBPyConnection, sql: str, *parameters: str) -> str:
    """The value in the first column of the first row, as text."""
    [(value, *_)] = database.execute(sql, parameters).fetchall()
    return str(value)


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | Sequence[str]) -> str:
    """A text, or a list of texts, as a constant."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"[{', '.join(map(literal, value))}]"


def type_ids(kind: DuckDBPyType) -> set[str]:
    """The ids of a type and of the types nested in it, such as `list` and `integer`."""
    return {kind.id}.union(*(type_ids(part) for _, part in _parts(kind)))


def type_with(kind: DuckDBPyType, names: Mapping[str, str]) -> str:
    """The name of a type in which the types with these ids are replaced, at any depth; its own name if it has none of them.

    `ValueError` if it has fields without names, as those of `row(1, 2)`, which SQL cannot name.
    """
    if kind.id in names:
        return names[kind.id]
    if type_ids(kind).isdisjoint(names):
        return str(kind)
    parts = [(name, type_with(part, names)) for name, part in _parts(kind)]
    match kind.id:
        case "list":
            return f"{parts[0][1]}[]"
        case "array":
            return f"{parts[0][1]}[{kind.children[1][1]}]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
    if not all(name for name, _ in parts):
        raise ValueError(f"{kind} has fields without names: name them, as in {{'a': 1}}")
    return f"{kind.id}({', '.join(f'{quoted(name)} {part}' for name, part in parts)})"


def _parts(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if kind.id not in _NESTED:
        return []
    children = kind.children[1:] if kind.id == "union" else kind.children  # the first child of a union is its tag
    return [(name, part) for name, part in children if isinstance(part, type(kind))]


def cast_columns(relation: duckdb.DuckDBPyRelation, types: Sequence[str]) -> duckdb.DuckDBPyRelation:
    """The relation with its columns cast to these types; the relation itself if it has them."""
    if types == list(map(str, relation.types)):
        return relation
    columns = zip(relation.columns, relation.types, types, strict=True)
    return relation.project(
        ", ".join(
            f"#{number}" if wanted == str(kind) else f"CAST(#{number} AS {wanted}) AS {quoted(name)}"
            for number, (name, kind, wanted) in enumerate(columns, 1)
        )
    )


_TABLE_FUNCTIONS: Final = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "regexp_split_to_table"}
)
"""The table functions that a query may call: they read nothing but their arguments."""


class Refused(Exception):
    """The text is not a query that may run here, or not an expression that may be used."""


def _place(sql: str, position: object) -> str:
    """Where DuckDB's parser stopped: it counts the bytes before."""
    if not str(position).isdecimal():
        return ""
    before = sql.encode()[: int(str(position))].decode("utf-8", "ignore")
    return f" (line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))})"


def _tree(
    database: duckdb.DuckDBPyConnection, sql: str, otherwise: str = "this is not an expression"
) -> dict[str, Any]:
    """The syntax tree of a text."""
    tree: dict[str, Any] = json.loads(single_value(database, "SELECT json_serialize_sql(?)", sql))
    if tree.get("error"):
        raise Refused(f"{tree.get('error_message', otherwise)}{_place(sql, tree.get('position'))}")
    return tree


def expression_tree(database: duckdb.DuckDBPyConnection, text: str) -> Any:
    """The syntax tree of an expression."""
    return _tree(database, f"SELECT {text}")["statements"][0]["node"]["select_list"][0]


def text_of(database: duckdb.DuckDBPyConnection, tree: Mapping[str, Any]) -> str:
    """A syntax tree as SQL."""
    return single_value(database, "SELECT json_deserialize_sql(?)", json.dumps(tree))


def expression_text(database: duckdb.DuckDBPyConnection, expression: Any) -> str:
    """The syntax tree of an expression as SQL: a query in parentheses."""
    template = _tree(database, "SELECT 1")
    template["statements"][0]["node"]["select_list"] = [expression]
    return f"({text_of(database, template)})"


def parsed_query(database: duckdb.DuckDBPyConnection, sql: str, prefix: str) -> dict[str, Any]:
    """The tables that a query names, with the points in time that it reads, and the query with a name for each of these.

    These names begin with `prefix`. Tables of the information schema get such names, too. SHOW TABLES and the like become queries.
    """
    tree = query_tree(database, sql)
    shows = _list_tables(database, tree)
    for node in nodes(tree):
        if node.get("type") == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise Refused(f"table function {name} cannot be used here: queries read tables of the lake")
    tables: list[dict[str, Any]] = []
    defined = {str(each["key"]).lower() for node in nodes(tree) for each in (node.get("cte_map") or {}).get("map", ())}
    for node in nodes(tree):
        if node.get("type") == "BASE_TABLE":
            is_defined = not node.get("schema_name") and node["table_name"].lower() in defined
            found: dict[str, Any] = {
                "name": [node.get("catalog_name") or "", node.get("schema_name") or "", node["table_name"]],
                "is_defined": is_defined,
            }
            is_standard = str(node.get("schema_name")).lower() == INFORMATION_SCHEMA  # where DuckDB creates no views
            if node.get("at_clause"):
                found |= {"unit": node["at_clause"]["unit"], "value": _value(database, node["at_clause"]["expr"])}
            if node.get("at_clause") or is_standard:
                node["alias"] = node.get("alias") or node["table_name"]
                node["at_clause"] = None
                found["as"] = f"{prefix} {len(tables)}"
                _rename(node, "memory", "main", found["as"])
            tables.append(found)
    rewritten = shows or any("as" in each for each in tables)
    text = text_of(database, tree) if rewritten else sql
    return {"tables": tables, "sql": text}


def _rename(table: dict[str, Any], catalog: str, schema: str, name: str) -> None:
    table["catalog_name"], table["schema_name"], table["table_name"] = catalog, schema, name
    if "qualified_name" in table:  # from DuckDB 2.0 on, which ignores the others then
        table["qualified_name"] = {"path": [catalog, schema, name]}


INFORMATION_SCHEMA: Final = "information_schema"

_LISTED: Final = {
    "databases": "SELECT DISTINCT catalog_name AS database_name FROM information_schema.schemata ORDER BY ALL",
    "schemas": """SELECT catalog_name AS database_name, schema_name,
        catalog_name = current_database() AND schema_name = current_schema() AS current
        FROM information_schema.schemata ORDER BY ALL""",
    "tables": """SELECT concat_ws('.', CASE current_database() WHEN 'memory' THEN table_catalog END,
        CASE current_schema() WHEN 'main' THEN table_schema END, table_name) AS name FROM information_schema.tables
        WHERE current_database() IN ('memory', table_catalog)
        AND CASE current_schema() WHEN 'main' THEN table_type <> 'SYSTEM TABLE' ELSE lower(table_schema) = lower(current_schema()) END
        ORDER BY ALL""",
    "__show_tables_expanded": """SELECT table_catalog AS database, table_schema AS schema, table_name AS name,
        list(column_name ORDER BY ordinal_position) AS column_names,
        list(data_type ORDER BY ordinal_position) AS column_types, false AS temporary
        FROM information_schema.columns WHERE table_schema <> 'skiway' GROUP BY ALL ORDER BY ALL""",
}
"""What SHOW lists. Without a schema, as at the beginning of a session, `current_schema()` is `main`."""


def _list_tables(database: duckdb.DuckDBPyConnection, tree: Any) -> bool:
    """Replace SHOW TABLES and the like in a tree by queries of the information schema; whether there were any."""
    shown = [node for node in nodes(tree) if node.get("type") == "SHOW_REF" and not node.get("query")]
    for node in shown:
        listed = _LISTED.get(str(node["table_name"]).strip('"'))
        if node["show_type"] == "SHOW_FROM":
            catalog, schema = literal(node["catalog_name"]), literal(node["schema_name"])
            listed = f"""SELECT table_name AS name FROM information_schema.tables
                WHERE lower(table_schema) = lower({schema})
                AND lower(table_catalog) = lower(coalesce(nullif({catalog}, ''), current_database())) ORDER BY ALL"""  # noqa: S608
        if listed is None:
            raise Refused(
                f"SHOW {node['table_name']} cannot be used here: settings of the server are in skiway.settings"
            )
        query = _tree(database, f"SELECT * FROM ({listed})")  # noqa: S608 - quoted
        node.clear()
        node.update(query["statements"][0]["node"]["from_table"])
    return bool(shown)


def query_tree(database: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """The syntax tree of a text that is exactly one query."""
    statements = database.extract_statements(sql)
    if len(statements) != 1:
        raise Refused(f"expected one query, found {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = str(statements[0].type).rpartition(".")[2].partition(":")[0]
        raise Refused(f"{kind} is not a query: only SELECT can run here")
    try:
        return _tree(database, sql, "this is not a query")
    except Refused as error:
        if "type parameter" in str(error):  # of a parsed type that DuckDB 1.5 cannot serialize
            raise Refused("a cast to a nested ENUM cannot be used here: cast to lists or structs of VARCHAR") from None
        raise


def _value(database: duckdb.DuckDBPyConnection, expression: Any) -> str:
    """The value of a constant expression, as text."""
    if any(node.get("class") == "SUBQUERY" for node in nodes(expression)):
        raise Refused("AT needs a constant, such as VERSION => 5: it cannot contain a query")
    return single_value(database, f"SELECT CAST({expression_text(database, expression)} AS VARCHAR)")


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


def compiled_expressions(
    database: duckdb.DuckDBPyConnection, texts: Sequence[str], claims: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The expressions as SQL, with the values of claims, and the columns that they read."""
    return [_compiled_expression(database, text, claims) for text in texts]


def _compiled_expression(database: duckdb.DuckDBPyConnection, text: str, claims: Mapping[str, Any]) -> dict[str, Any]:
    tree = _tree(database, f"SELECT {text}")
    statements = tree.get("statements", [])
    if len(statements) != 1:
        raise Refused(f"expected one expression, found {len(statements)} statements")
    node = statements[0]["node"]
    parts = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
    is_alone = node.get("type") == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    if not is_alone or len(node["select_list"]) != 1 or any(node.get(part) for part in parts):
        raise Refused("expected one expression, such as region = 'EU', found more than that")
    expression = node["select_list"][0]
    if expression["alias"]:
        raise Refused(f"an expression has no name: remove AS {expression['alias']}")
    _check_expression(database, expression)
    columns = sorted(_columns(expression) - _parameters(expression))
    node["select_list"] = [_with_claims(database, expression, claims)]
    written = text_of(database, tree)
    return {"sql": written.removeprefix("SELECT "), "columns": columns}


def _check_expression(database: duckdb.DuckDBPyConnection, expression: Any) -> None:
    for node in nodes(expression):
        kind = node.get("class")
        if kind in _FORBIDDEN:
            raise Refused(f"{_FORBIDDEN[kind]} cannot be used here: an expression reads the columns of one row")
        if kind != "FUNCTION":
            continue
        name = str(node["function_name"]).lower()
        if node.get("catalog") or node.get("schema") not in ("", "main", None):
            raise Refused(f"function {name} cannot have a schema")
        if name in _NOT_ALLOWED or name in _aggregates(database):
            raise Refused(f"function {name} cannot be used here: an expression reads the columns of one row")
        if name == _CALLER:
            _claim_name(node)


def _claim_name(node: Mapping[str, Any]) -> str:
    arguments = node["children"] if "children" in node else [each["expression"] for each in node["arguments"]]
    if len(arguments) == 1 and arguments[0].get("class") == "CONSTANT":
        name = _text(arguments[0])
        if name is not None:
            return name
    raise Refused("caller needs the name of a claim as text: write caller('subject')")


def _text(constant: Mapping[str, Any]) -> str | None:
    """The value of a constant that is a text. DuckDB 2.0 describes constants in another way."""
    if "literal" in constant:
        return str(constant["literal"]["text"]) if constant["literal"]["kind"] == "STRING" else None
    value = constant["value"].get("value")
    return value if isinstance(value, str) else None


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
        return _constant_tree(database, claims.get(_claim_name(node)))
    return {key: _with_claims(database, value, claims) for key, value in node.items()}


def _constant_tree(database: duckdb.DuckDBPyConnection, value: Any) -> Any:
    """The tree of a constant: a text, a number, a truth value, a list of texts, or NULL."""
    match value:
        case None:
            sql = "NULL"
        case bool():
            sql = str(value)
        case list():
            sql = f"CAST({literal([str(each) for each in value])} AS VARCHAR[])"
        case int() | float():
            sql = f"CAST('{value}' AS {'BIGINT' if isinstance(value, int) else 'DOUBLE'})"
        case _:
            sql = literal(str(value))
    return expression_tree(database, sql)


@cache
def _aggregates(database: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The names of the functions that read several rows."""
    found = database.execute("SELECT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'")
    return frozenset(str(name).lower() for (name,) in found.fetchall())

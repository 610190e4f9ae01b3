"""Random predicates as SQL text, and DuckDB as the client that turns them into filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import duckdb
from hypothesis import strategies as st

from airport.filters.recorded import COLUMNS, special_rows

ROWS = special_rows(47)


# Literals, formatted by hand: this must not depend on the encoder under test.
def spell(value: Any, column: str) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value)
        case float():
            return f"'{value}'::{'FLOAT' if column == 'f' else 'DOUBLE'}"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
        case Decimal():
            return f"{value:f}"
        case int() if column == "dt":
            return f"'{day}'::DATE" if (day := _day(value)) else f"'{'' if value > 0 else '-'}infinity'::DATE"
        case _:
            return str(value)


def _day(days: int) -> date | None:
    return date(1970, 1, 1) + timedelta(days) if abs(days) < 100000 else None


PLAIN = ["i8", "i32", "i64", "u64", "f", "d", "dec9", "b", "s", "bl", "dt"]
COMPARES = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
PATTERNS = ["a%", "%a", "%b%", "a_c%d", "%", "_", "", "a\\%", "A%", "é%", "%\n%"]

WHOLE = [
    "b", "isnan(d)", "isnan(f)", "i32 = i64", "d < f", "f > i32", "i8 < i32", "s = st.y", "st.X = 5", "st.y > 'a'", "st IS NULL",
    "st.x IS NULL", "length(s) > 2", "lower(s) = 'a'", "starts_with(s, 'a')", "contains(s, 'b')", "u64 > 9223372036854775807",
    "list_contains(l, 3)", "len(l) = 2", "greatest(i32, i8) = 5", "i32 & 1 = 1", "CAST(i32 AS VARCHAR) = s",
    # expressions that may fail, and expressions that must not be encoded at all
    "CAST(s AS INTEGER) = 5", "CAST(s AS INTEGER) <> 5", "TRY_CAST(s AS INTEGER) IS NULL", "CAST(d AS INTEGER) = 0", "i32 + 1 > 5",
    "abs(i8) = 5", "CASE WHEN d > 0.5 THEN b ELSE i32 = 5 END", "i32 // i8 = 1", "i32 % 2 = 1", "10 / i32 > 2", "dec9 * 2 > 2.5",
    "dt + 1 > DATE '2024-03-01'", "hash(i32) % 2 = 0",
    # expressions that are wrong without parentheses
    "(i32 = 5) = b", "(i32 = 5 OR b) IS NULL", "CASE WHEN i32 = 5 OR b THEN d > 1 ELSE NOT b END", "(NOT b) = (s = 'a')",
]  # fmt: skip


@st.composite
def leaves(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(PLAIN))
    literal = st.sampled_from([value for value in COLUMNS[column][1] if value != "a\0b" and value != "\0"]).map(
        lambda v: spell(v, column)
    )
    return draw(
        st.one_of(
            st.tuples(st.sampled_from(COMPARES), literal).map(lambda part: f"{column} {part[0]} {part[1]}"),
            st.tuples(st.sampled_from(COMPARES), literal).map(lambda part: f"{part[1]} {part[0]} {column}"),
            st.tuples(st.sampled_from(["IN", "NOT IN"]), st.lists(literal, min_size=1, max_size=3)).map(
                lambda part: f"{column} {part[0]} ({', '.join(part[1])})"
            ),
            st.tuples(literal, literal).map(lambda part: f"{column} BETWEEN {part[0]} AND {part[1]}"),
            st.sampled_from(["IS NULL", "IS NOT NULL"]).map(lambda part: f"{column} {part}"),
            literal.map(lambda part: f"coalesce({column}, {part}) = {part}"),
            st.tuples(st.sampled_from(["LIKE", "NOT LIKE", "ILIKE"]), st.sampled_from(PATTERNS)).map(
                lambda part: f"s {part[0]} {spell(part[1], 's')}"
            ),
            st.sampled_from(WHOLE),
        )
    )


def conditions() -> st.SearchStrategy[str]:
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(
                lambda part: f"({part[0]} {part[1]} {part[2]})"
            ),
            inner.map(lambda part: f"NOT ({part})"),
        ),
        max_leaves=6,
    )


class Client:
    """DuckDB as the sender of filters: binds and optimizes a predicate on `t`, and serializes the result."""

    def __init__(self, create: str = "CREATE TABLE t AS SELECT * FROM rows") -> None:
        self.connection = duckdb.connect()
        self.connection.register("rows", ROWS)
        # Optimizers that look at the data or move the filter are disabled.
        self.connection.execute(
            "SET disabled_optimizers = 'statistics_propagation,late_materialization,limit_pushdown'"
        ).fetchall()  # without which DuckDB 2.0 does not register anything else
        self.connection.execute(create).fetchall()

    def sent(self, predicate: str) -> str | None:
        """The filter's JSON, or None if the optimizer removed the whole predicate."""
        query = f"SELECT * FROM (SELECT * FROM t LIMIT 1000) WHERE {predicate}"
        options = "optimize := true, skip_null := false, skip_empty := false, skip_default := false"
        (plan,) = self.connection.execute(f"SELECT json_serialize_plan(?, {options})", [query]).fetchall()[0]
        filter_nodes = [node["expressions"] for node in walk(json.loads(plan)) if node.get("type") == "LOGICAL_FILTER"]
        return json.dumps(as_scan_filter(filter_nodes[0])) if filter_nodes else None


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from walk(child)


def as_scan_filter(expressions: list[Any]) -> dict[str, Any]:
    """Replace references by position in the plan's row with references by column, as in a scan's filter."""
    names: list[str] = []
    for node in walk(expressions):
        if node.get("expression_class") == "BOUND_REF":
            node |= {
                "expression_class": "BOUND_COLUMN_REF",
                "binding": {"table_index": 0, "column_index": len(names)},
                "depth": 0,
            }
            names.append(node["alias"])
    return {"filters": expressions, "column_binding_names_by_index": names}

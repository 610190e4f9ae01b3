"""A filter as the body of a WHERE clause for DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from skiway.airport.filters.functions import OPERATORS, is_repeatable_cast, is_repeatable_function, may_raise
from skiway.airport.filters.literals import literal
from skiway.airport.filters.logic import Unsaid, encode
from skiway.airport.filters.nodes import (
    Between,
    Case,
    Cast,
    ColumnRef,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    Node,
    Operator,
    Unknown,
)
from skiway.airport.wire.duckdb_sql import identifier

__all__ = ["to_sql"]

# DuckDB's time grows with the square of the number of conditions.
_MOST: Final = 1000

_CALLED: Final = {"COALESCE": "coalesce", "NULLIF": "nullif", "TRY": "TRY"}


def to_sql(
    filter: Filter,  # noqa: A002
    *,
    columns: Mapping[str, str | None] | None = None,
    expressions: Mapping[str, str] | None = None,
) -> str | None:
    """The body of a WHERE clause that keeps at least the rows `filter` keeps; None when nothing can be said.

    `columns` gives columns another name; one mapped to None is never mentioned. `expressions` puts SQL of the caller's
    own, in parentheses, in the place of a column.
    """
    writer = _Writer(columns or {}, expressions or {})
    return encode(filter, writer.condition, every=" AND ".join, some=_some, limit=_MOST)


def _some(said: Sequence[str]) -> str:
    # An AND among them needs no parentheses: it binds tighter.
    return said[0] if len(said) == 1 else f"({' OR '.join(said)})"


def _is_open(node: Node) -> bool:
    """Whether the SQL of `node` would fall apart beside another operator."""
    if isinstance(node, Operator):
        return node.op not in _CALLED
    return isinstance(node, Comparison | Conjunction | Between)


class _Writer:
    """Writes expressions that have, on every row, exactly the value they have at the client."""

    def __init__(self, columns: Mapping[str, str | None], expressions: Mapping[str, str]) -> None:
        self.columns = columns
        self.expressions = expressions

    def condition(self, node: Node) -> str:
        """`node` as a condition that never fails: a row on which it would fail is kept, for the client to fail on."""
        sql = self.expression(node)
        return f"TRY({sql}) IS NOT FALSE" if may_raise(node) else sql

    def expression(self, node: Node) -> str:
        match node:
            case ColumnRef():
                return self.column(node)
            case Constant():
                return literal(node)
            case Comparison(op, left, right):
                return f"{self.operand(left, bare=True)} {op} {self.operand(right, bare=True)}"
            case Conjunction(op, children) if children:
                return f" {op} ".join([self.operand(child) for child in children])
            case Operator(op, children):
                return self.operator(op, children)
            case Function() if is_repeatable_function(node):
                return self.call(node.name, [self.operand(child) for child in node.children])
            case Cast() if is_repeatable_cast(node):
                return self.cast(node)
            case Case():
                return self.case(node)
            case Between():
                return self.between(node)
            case Function() | Cast() | Conjunction() | Unknown():
                raise Unsaid

    def operand(self, node: Node, *, bare: bool = False) -> str:
        """`node` as a part of a larger expression; `bare` where an integer needs no type, as in a comparison."""
        if isinstance(node, Constant):
            return literal(node, bare=bare)
        sql = self.expression(node)
        return f"({sql})" if _is_open(node) else sql

    def column(self, node: ColumnRef, *, any_type: bool = False) -> str:
        if node.type.alias not in ("", "JSON") and not any_type:
            raise Unsaid  # how a named type compares is known to its extension only
        if node.name in self.expressions:
            return f"({self.expressions[node.name]})"
        name = self.columns.get(node.name, node.name)
        if name is None:
            raise Unsaid
        return identifier(name)

    def operator(self, op: str, children: tuple[Node, ...]) -> str:
        first, *others = children
        match op:
            case "NOT":
                return f"NOT {self.operand(first)}"
            case "IS NULL" | "IS NOT NULL":
                value = self.column(first, any_type=True) if isinstance(first, ColumnRef) else self.operand(first)
                return f"{value} {op}"
            case "IN" | "NOT IN":
                return f"{self.operand(first)} {op} ({', '.join([self.operand(one, bare=True) for one in others])})"
            case _:
                return f"{_CALLED[op]}({', '.join([self.operand(child) for child in children])})"

    def call(self, name: str, children: list[str]) -> str:
        if name in OPERATORS:
            return f"({f' {name} '.join(children)})" if len(children) > 1 else f"({name} {children[0]})"
        return f"{name}({', '.join(children)})"

    def cast(self, node: Cast) -> str:
        if node.type.sql is None:
            raise Unsaid
        return f"{'TRY_CAST' if node.try_cast else 'CAST'}({self.operand(node.child)} AS {node.type.sql})"

    def case(self, node: Case) -> str:
        checks = [f"WHEN {self.expression(when)} THEN {self.operand(then)}" for when, then in node.checks]
        return f"CASE {' '.join(checks)} ELSE {self.operand(node.otherwise)} END"

    def between(self, node: Between) -> str:
        value, lower, upper = (
            self.operand(node.input),
            self.operand(node.lower, bare=True),
            self.operand(node.upper, bare=True),
        )
        if node.lower_inclusive and node.upper_inclusive:
            return f"{value} BETWEEN {lower} AND {upper}"
        if not isinstance(node.input, ColumnRef):
            raise Unsaid  # said twice at every level, deep nesting would grow without bound
        low, high = (">=" if node.lower_inclusive else ">"), ("<=" if node.upper_inclusive else "<")
        return f"{value} {low} {lower} AND {value} {high} {upper}"

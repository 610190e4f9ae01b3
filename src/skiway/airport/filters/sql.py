"""Translates filters to the body of a WHERE clause, and constants to SQL literals for DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Literal, get_args
from uuid import UUID

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
    Interval,
    LogicalType,
    Node,
    Operator,
    Unknown,
    Value,
)
from skiway.airport.filters.translation import (
    MICROS_PER_SECOND,
    OPERATORS,
    Inexpressible,
    date_text,
    is_repeatable_cast,
    is_repeatable_function,
    may_raise,
    time_text,
    timestamp_text,
    translate,
)
from skiway.airport.wire.duckdb_sql import blob_literal, identifier, text_literal
from skiway.errors import InvalidArgument
from skiway.foundation.extras import needed

Dialect = Literal["duckdb", "generic", "postgres", "sqlite"]

_MAX_CONDITIONS: Final = 1000  # DuckDB's run time is quadratic in their number
_MAX_DIALECT_CONDITIONS: Final = 200  # SQLite's parser allows 1000 levels, and each condition is at least one
_MAX_DEPTH: Final = 20  # older versions of SQLite allow about 30 nested parentheses

_CALLED: Final = {"COALESCE": "coalesce", "NULLIF": "nullif", "TRY": "TRY"}

# The values of infinity in DATE and in all TIMESTAMP types.
_INFINITE_DATE: Final = (1 << 31) - 1
_INFINITE_TIMESTAMP: Final = (1 << 63) - 1

_PER_SECOND: Final = {"TIMESTAMP_S": 1, "TIMESTAMP_MS": 10**3, "TIMESTAMP_NS": 10**9}


def to_sql(
    filter: Filter,  # noqa: A002
    *,
    dialect: Dialect = "duckdb",
    columns: Mapping[str, str | None] | None = None,
    expressions: Mapping[str, str] | None = None,
) -> str | None:
    """The body of a WHERE clause that keeps at least the rows that `filter` keeps; None if nothing can be expressed.

    `dialect` is the SQL of the database: `duckdb`, `postgres`, `sqlite`, or `generic` for what most databases
    understand. The others than `duckdb` express less and need the extra `sql`.

    `columns` renames columns; a column mapped to None is not used. `expressions` replaces columns by SQL expressions,
    which are put in parentheses.
    """
    if dialect != "duckdb":
        return _to_dialect(filter, dialect, columns or {}, expressions or {})
    writer = _Writer(columns or {}, expressions or {})
    return translate(filter, writer.condition, all_of=" AND ".join, any_of=_any_of, limit=_MAX_CONDITIONS)


def _to_dialect(
    filter: Filter,  # noqa: A002
    dialect: str,
    columns: Mapping[str, str | None],
    expressions: Mapping[str, str],
) -> str | None:
    """The body of a WHERE clause in `dialect` that keeps at least the rows that `filter` keeps."""
    if dialect not in get_args(Dialect):
        raise InvalidArgument(f"unknown SQL dialect {dialect!r}: use {', '.join(map(repr, get_args(Dialect)))}")
    with needed("sql", f"filters in the SQL of {dialect}"):
        from skiway.airport.filters.dialects import GenericWriter, PostgresWriter, SQLiteWriter, Writer
    kinds: dict[str, type[Writer]] = {"generic": GenericWriter, "postgres": PostgresWriter, "sqlite": SQLiteWriter}
    writer = kinds[dialect](columns, expressions)
    shallow = Filter(tuple(_shallow(predicate, _MAX_DEPTH) for predicate in filter.predicates))
    return translate(shallow, writer.sql, all_of=" AND ".join, any_of=_any_of, limit=_MAX_DIALECT_CONDITIONS)


def _shallow(node: Node, depth: int) -> Node:
    """`node` without the parts that are nested deeper than `depth`."""
    match node:
        case Conjunction() | Operator("NOT") if depth == 0:
            return Unknown("nested too deeply")
        case Conjunction(op, children):
            return Conjunction(op, tuple([_shallow(child, depth - 1) for child in children]))
        case Operator("NOT", (child,), of):
            return Operator("NOT", (_shallow(child, depth - 1),), of)
        case _:
            return node


def _any_of(conditions: Sequence[str]) -> str:
    # AND binds tighter than OR and needs no parentheses.
    return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"


def _needs_parentheses(node: Node) -> bool:
    """Whether the SQL of `node` needs parentheses next to another operator."""
    if isinstance(node, Operator):
        return node.op not in _CALLED
    return isinstance(node, Comparison | Conjunction | Between)


class _Writer:
    """Writes SQL expressions that have exactly the same value as on the client for every row."""

    def __init__(self, columns: Mapping[str, str | None], expressions: Mapping[str, str]) -> None:
        self.columns = columns
        self.expressions = expressions

    def condition(self, node: Node) -> str:
        """`node` as a condition that never raises. If it would fail for a row, it keeps the row, and the client raises."""
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
                raise Inexpressible

    def operand(self, node: Node, *, bare: bool = False) -> str:
        """`node` as part of a larger expression. With `bare`, integer literals have no type, as in a comparison."""
        if isinstance(node, Constant):
            return literal(node, bare=bare)
        sql = self.expression(node)
        return f"({sql})" if _needs_parentheses(node) else sql

    def column(self, node: ColumnRef, *, any_type: bool = False) -> str:
        if node.type.alias not in ("", "JSON") and not any_type:
            raise Inexpressible  # only the extension that defines a type knows how it compares
        if node.name in self.expressions:
            return f"({self.expressions[node.name]})"
        name = self.columns.get(node.name, node.name)
        if name is None:
            raise Inexpressible
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
            raise Inexpressible
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
            raise Inexpressible  # the input occurs twice, so deep nesting would grow exponentially
        low, high = (">=" if node.lower_inclusive else ">"), ("<=" if node.upper_inclusive else "<")
        return f"{value} {low} {lower} AND {value} {high} {upper}"


# -- literals ---------------------------------------------------------------------------------------------------------


def literal(constant: Constant, *, bare: bool = False) -> str:
    """`constant` as SQL that DuckDB reads back as the same value and type; `Inexpressible` if that is impossible.

    With `bare`, an integer has no type.
    """
    value, of = constant.value, constant.type
    if of.id == "VARCHAR" and isinstance(value, str):  # also for types based on it, such as JSON
        return text_literal(value)
    if of.sql is None:
        raise Inexpressible
    if value is None:
        return f"CAST(NULL AS {of.sql})"
    if isinstance(value, tuple):
        return f"CAST({_nested(value, of)} AS {of.sql})"
    if bare and of.is_integer:
        return str(value)
    return _scalar(value, of)


def _scalar(value: Value, of: LogicalType) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case bytes():
            return blob_literal(value)
        case int() if of.id == "DATE":
            return _date(value)
        case int() if of.id.startswith("TIMESTAMP"):
            return _timestamp(value, of)
        case int() if of.id == "TIME":
            return f"'{time_text(value)}'::TIME"
        case int() if of.id == "TIME_NS":
            return f"'{time_text(value, 10**9)}'::TIME_NS"
        case int() | float() | UUID() if of.id != "TIME WITH TIME ZONE":
            return f"'{value}'::{of.sql}"
        case Decimal():
            return f"'{value:f}'::{of.sql}"
        case str():
            return f"{text_literal(value)}::{of.sql}"
        case Interval():
            return _interval(value)
        case _:
            raise Inexpressible  # TIME WITH TIME ZONE as text loses the seconds of its offset


def _nested(value: tuple[Value, ...], of: LogicalType) -> str:
    if of.id == "STRUCT":
        named = zip(of.fields, value, strict=True)
        return f"{{{', '.join([f'{text_literal(name)}: {_part(part, kind)}' for (name, kind), part in named])}}}"
    if of.id == "MAP":
        return f"MAP {{{', '.join([_entry(entry, of) for entry in value])}}}"
    return f"[{', '.join([_part(part, of.element) for part in value])}]"


def _entry(entry: Value, of: LogicalType) -> str:
    assert isinstance(entry, tuple)
    (_, keys), (_, values) = of.fields
    return f"{_part(entry[0], keys)}: {_part(entry[1], values)}"


def _part(value: Value, of: LogicalType) -> str:
    return literal(Constant(value, of))


def _date(days: int) -> str:
    if abs(days) == _INFINITE_DATE:
        return f"'{_infinity(days)}'::DATE"
    text = date_text(days)
    return f"('1970-01-01'::DATE + ({days}))" if text is None else f"'{text}'::DATE"


def _timestamp(count: int, of: LogicalType) -> str:
    if abs(count) == _INFINITE_TIMESTAMP:
        return f"'{_infinity(count)}'::{of.sql}"
    if of.id == "TIMESTAMP_NS":
        return f"make_timestamp_ns({count})"
    micros = count * (MICROS_PER_SECOND // _PER_SECOND.get(of.id, MICROS_PER_SECOND))
    if abs(micros) >= _INFINITE_TIMESTAMP:
        raise Inexpressible
    zoned = of.id == "TIMESTAMP WITH TIME ZONE"
    text = timestamp_text(micros)
    if text is not None:
        return f"'{text}{'+00' if zoned else ''}'::{of.sql}"
    return f"CAST(make_timestamp{'tz' if zoned else ''}({micros}) AS {of.sql})"


def _infinity(count: int) -> str:
    return "infinity" if count > 0 else "-infinity"


def _interval(value: Interval) -> str:
    if value.micros == -_INFINITE_TIMESTAMP - 1:
        raise Inexpressible  # DuckDB parses the digits before the sign and overflows
    return f"'{value.months} months {value.days} days {value.micros} microseconds'::INTERVAL"

"""Writes single conditions in the SQL of PostgreSQL, of SQLite, and of what most databases have in common.

The databases differ from DuckDB in how they compare text, read numbers and treat NaN, and some functions of the same name
do something else. So only conditions on a column and constants are translated, and only where the result is true for at
least the same rows; sqlglot writes them. The rules for text:

- PostgreSQL and SQLite compare with the collation of the column. With every collation, `=`
  finds at least the equal strings. Other comparisons name the binary collation, which has DuckDB's order.
- A generic database may ignore case, accents and trailing spaces, so only `=`, IN and LIKE are safe.
- A backslash, in a string literal or a pattern, is an ordinary character or not, depending on the database and its settings.
  Only SQLite gets strings that contain one.

The databases store text in UTF-8. PostgreSQL orders NaN, bytes and UUIDs like DuckDB. SQLite has no types of its own for dates,
decimals and UUIDs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import ClassVar, Final, TypeAlias
from uuid import UUID

from sqlglot import exp

from skiway.airport.filters.nodes import (
    INTEGER_RANGES,
    Cast,
    ColumnRef,
    Compare,
    Comparison,
    Constant,
    Function,
    LogicalType,
    Node,
    Operator,
    Value,
)
from skiway.airport.filters.translation import (
    AnyPart,
    Inexpressible,
    constant_right,
    date_text,
    like_parts,
    like_tokens,
    may_raise,
    time_text,
    timestamp_text,
)

Pattern: TypeAlias = Sequence[str | AnyPart]
"""The characters that a text has, and the parts of which any will do."""

_MAX_MEMBERS: Final = 10_000  # of an IN list

_OPERATIONS: Final[dict[Compare, type[exp.Binary]]] = {
    Compare.EQ: exp.EQ,
    Compare.NE: exp.NEQ,
    Compare.LT: exp.LT,
    Compare.LE: exp.LTE,
    Compare.GT: exp.GT,
    Compare.GE: exp.GTE,
}
_SEARCHES: Final = {  # functions that search a text: what stands before and after it in a pattern
    "prefix": ("", "%"),
    "starts_with": ("", "%"),
    "suffix": ("%", ""),
    "ends_with": ("%", ""),
    "contains": ("%", "%"),
}


class Writer(ABC):
    """Writes conditions in one dialect. `Inexpressible` means that a condition is left out."""

    dialect: ClassVar[str]
    """The name of the dialect in sqlglot."""
    comparable: ClassVar[frozenset[str]]
    """The types of which two columns can be compared; INTEGER stands for all integers."""
    collation: ClassVar[exp.Expr | None] = None
    """The collation in which texts have the order of their code points."""

    has_booleans: ClassVar[bool] = True
    """Whether a column can be a condition."""

    def __init__(self, columns: Mapping[str, str | None], expressions: Mapping[str, str]) -> None:
        self.columns = columns
        self.expressions = expressions

    def sql(self, node: Node) -> str:
        """`node` as a condition that is true for at least the same rows, and never raises."""
        condition = self.condition(node)
        text = condition.sql(dialect=self.dialect)
        return f"({text})" if isinstance(condition, exp.Or) else text

    def condition(self, node: Node) -> exp.Expr:
        """`node` as an expression."""
        match node:
            case Comparison():
                return self.comparison(constant_right(node))
            case Operator("IS NULL" | "IS NOT NULL" as op, (column,)):
                return self.is_null(column, negated=op == "IS NOT NULL")
            case Operator("IN" | "NOT IN" as op, (column, *members)):
                return self.membership(column, members, negated=op == "NOT IN")
            case Operator("NOT", (ColumnRef() as column,)):
                return self.truth(column, negated=True)
            case ColumnRef():
                return self.truth(node, negated=False)
            case Operator("NOT", (Function() as call,)):
                return self.search(call, negated=True)
            case Function():
                return self.search(node, negated=False)
            case _:
                raise Inexpressible

    # -- what the dialects define -------------------------------------------------------------------------------------

    @abstractmethod
    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A value that is compared with a column of type `of`; it is not NULL."""

    @abstractmethod
    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """Whether a text matches a pattern."""

    # -- columns ------------------------------------------------------------------------------------------------------

    def column(self, node: Node, *, any_type: bool = False) -> tuple[exp.Expr, LogicalType]:
        """A column and its type. A cast to a wider integer type changes nothing."""
        match node:
            case Cast(ColumnRef(_, source) as child, target):
                if source.is_integer and target.is_integer and not may_raise(node):
                    return self.column(child)
                raise Inexpressible
            case ColumnRef(name, of) if any_type or not (of.alias or of.collation):
                if name in self.expressions:
                    return exp.var(f"({self.expressions[name]})"), of
                renamed = self.columns.get(name, name)
                if renamed is None:
                    raise Inexpressible
                return exp.column(renamed, quoted=True), of
            case _:
                raise Inexpressible

    def in_order(self, column: exp.Expr, of: LogicalType) -> exp.Expr:
        """The column with the collation that has DuckDB's order, and tells all different texts apart."""
        if self.collation is None or of.id != "VARCHAR":
            return column
        return exp.Collate(this=column, expression=self.collation.copy())

    # -- conditions ---------------------------------------------------------------------------------------------------

    def comparison(self, node: Comparison) -> exp.Expr:
        """A comparison of a column with a constant or another column."""
        column, of = self.column(node.left)
        match node:
            case Comparison(Compare.NOT_DISTINCT | Compare.DISTINCT as op, _, Constant(None)):
                return self.is_null(node.left, negated=op is Compare.DISTINCT)
            case Comparison(_, _, Constant(None)):
                raise Inexpressible
            case Comparison(Compare.NOT_DISTINCT, _, Constant(value)):
                return self.compared(Compare.EQ, column, of, value)
            case Comparison(Compare.DISTINCT, _, Constant(value)):
                differs = self.compared(Compare.NE, column, of, value)
                return exp.Or(this=differs, expression=self.is_null(node.left, negated=False))
            case Comparison(op, _, Constant(value)):
                return self.compared(op, column, of, value)
            case Comparison(op, _, right):
                return self.compared_columns(op, column, of, *self.column(right))

    def compared(self, op: Compare, column: exp.Expr, of: LogicalType, value: Value) -> exp.Expr:
        """A comparison with a constant."""
        return operation(op, column if op is Compare.EQ else self.in_order(column, of), self.literal(value, of))

    def compared_columns(
        self, op: Compare, column: exp.Expr, of: LogicalType, other: exp.Expr, other_of: LogicalType
    ) -> exp.Expr:
        """A comparison with another column."""
        kind, other_kind = ("INTEGER" if kind_of.is_integer else kind_of.id for kind_of in (of, other_of))
        if kind != other_kind or kind not in self.comparable or op not in _OPERATIONS:
            raise Inexpressible
        return operation(op, column if op is Compare.EQ else self.in_order(column, of), other)

    def is_null(self, node: Node, *, negated: bool) -> exp.Expr:
        """Whether a column is NULL."""
        column, of = self.column(node, any_type=True)
        if of.id == "STRUCT":  # elsewhere, a struct of NULLs may be NULL
            raise Inexpressible
        is_null = exp.Is(this=column, expression=exp.null())
        return exp.Not(this=is_null) if negated else is_null

    def membership(self, node: Node, members: Sequence[Node], *, negated: bool) -> exp.Expr:
        """Whether a column is one of several constants."""
        column, of = self.column(node)
        values = [member.value for member in members if isinstance(member, Constant)]
        known = [value for value in values if value is not None]
        if len(values) < len(members) or not 0 < len(known) <= _MAX_MEMBERS or (negated and len(known) < len(members)):
            raise Inexpressible
        literals = [self.literal(value, of) for value in known]
        is_member = exp.In(this=self.in_order(column, of) if negated else column, expressions=literals)
        return exp.Not(this=is_member) if negated else is_member

    def truth(self, node: ColumnRef, *, negated: bool) -> exp.Expr:
        """A column of type BOOLEAN as a condition."""
        column, of = self.column(node)
        if of.id != "BOOLEAN" or not self.has_booleans:
            raise Inexpressible
        return exp.Not(this=column) if negated else column

    def search(self, node: Function, *, negated: bool) -> exp.Expr:
        """LIKE, `starts_with`, `ends_with` or `contains`."""
        match node:
            case Function(name, (text, Constant(str() as part)), _, True) if name in _SEARCHES:
                before, after = _SEARCHES[name]
                pattern: Pattern = [*map(AnyPart, before), *part, *map(AnyPart, after)]
            case _:
                text, like, escape = like_parts(node)
                pattern = list(like_tokens(like, escape))
        column, of = self.column(text)
        if of.id != "VARCHAR":
            raise Inexpressible
        return self.like(column, pattern, negated=negated)


def operation(op: Compare, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """A comparison of two expressions."""
    return _OPERATIONS[op](this=left, expression=right)


def number(value: int | Decimal) -> exp.Expr:
    """A number, written with all its digits."""
    return exp.Literal.number(f"{value:f}" if isinstance(value, Decimal) else str(value))


def string(value: str) -> exp.Expr:
    """A string."""
    return exp.Literal.string(value)


def cast(text: str | None, to: str) -> exp.Expr:
    """A value of another type, written as text; `Inexpressible` for None."""
    if text is None:
        raise Inexpressible
    return exp.cast(string(text), to)


_LARGEST: Final = 10**18  # of an integer
_DIGITS: Final = 15  # of a decimal, so that even a database that reads it as a binary number finds equal ones
_GREGORIAN: Final = "1583"  # the first year with one calendar everywhere


class GenericWriter(Writer):
    """Writes conditions in standard SQL. Boolean and floating-point columns, times and bytes are left out."""

    dialect = ""
    comparable = frozenset({"INTEGER", "DATE"})
    has_booleans = False

    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A literal that most databases read in the same way."""
        match of.id, value:
            case _, int() if of.is_integer and abs(value) < _LARGEST:
                return number(value)
            case "DECIMAL", Decimal() if of.width <= _DIGITS:
                return number(value)
            case "VARCHAR", str():
                return _generic_text(value)
            case "DATE", int():
                text = date_text(value)
                return cast(text if text and text >= _GREGORIAN else None, "date")
            case _:
                raise Inexpressible

    def compared(self, op: Compare, column: exp.Expr, of: LogicalType, value: Value) -> exp.Expr:
        """A comparison with a constant. Texts that a database takes as equal, or orders, may differ in DuckDB."""
        if of.id == "VARCHAR" and op is not Compare.EQ:
            raise Inexpressible
        return super().compared(op, column, of, value)

    def membership(self, node: Node, members: Sequence[Node], *, negated: bool) -> exp.Expr:
        """IN, and NOT IN except for texts."""
        if negated and self.column(node)[1].id == "VARCHAR":
            raise Inexpressible
        return super().membership(node, members, negated=negated)

    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """LIKE without an escape character: `%` and `_` themselves match any character."""
        wide = "".join(part.value if isinstance(part, AnyPart) else "_" if part in "%_" else part for part in pattern)
        if negated or "[" in wide:  # a class of characters in some databases
            raise Inexpressible
        return exp.Like(this=column, expression=_generic_text(wide))


def _generic_text(value: str) -> exp.Expr:
    if not value.isascii() or not value.isprintable() or "\\" in value:
        raise Inexpressible
    return string(value)


_ESCAPE: Final = "!"  # not a backslash, which depends on a setting


class PostgresWriter(Writer):
    """Writes conditions for PostgreSQL."""

    dialect = "postgres"
    comparable = frozenset(
        {"INTEGER", "DECIMAL", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "BOOLEAN", "DATE", "TIME", "TIMESTAMP", "UUID"}
        | {"TIMESTAMP WITH TIME ZONE"}
    )
    collation = exp.to_identifier("C", quoted=True)

    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A literal that PostgreSQL reads with the type of the column."""
        match of.id, value:
            case "BOOLEAN", bool():
                return exp.true() if value else exp.false()
            case _, int() if of.is_integer:
                return number(value)
            case "DECIMAL", Decimal():
                return number(value)
            case "FLOAT" | "DOUBLE", float():
                return cast(_float_text(value), "double")
            case "VARCHAR", str():
                return _postgres_text(value)
            case "BLOB", bytes():
                return exp.Anonymous(this="DECODE", expressions=[string(value.hex()), string("hex")])
            case "DATE", int():
                return cast(date_text(value), "date")
            case "TIME", int():
                return cast(time_text(value), "time")
            case "TIMESTAMP", int():
                return cast(timestamp_text(value), "timestamp")
            case "TIMESTAMP WITH TIME ZONE", int():
                text = timestamp_text(value)
                return cast(text and f"{text}+00", "timestamptz")
            case "UUID", UUID():
                return cast(str(value), "uuid")
            case _:
                raise Inexpressible

    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """LIKE, which is exact with the binary collation."""
        escaped = "".join(
            part.value if isinstance(part, AnyPart) else f"{_ESCAPE}{part}" if part in f"%_{_ESCAPE}" else part
            for part in pattern
        )
        collated = exp.Collate(this=column, expression=self.collation.copy())
        matches = exp.Escape(
            this=exp.Like(this=collated, expression=_postgres_text(escaped)), expression=string(_ESCAPE)
        )
        return exp.Not(this=matches) if negated else matches


def _postgres_text(value: str) -> exp.Expr:
    if "\0" in value or "\\" in value:
        raise Inexpressible
    return string(value)


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN" if math.isnan(value) else repr(value)


_INTEGERS: Final = INTEGER_RANGES.keys() - {"UBIGINT", "HUGEINT", "UHUGEINT"}  # those that fit 64 bits with a sign
_EXACT: Final = 2.0**53  # SQLite reads whole numbers up to here exactly, and others possibly as their neighbors
_STEPS: Final = 4
_LARGEST_SINGLE: Final = 3.4028234663852886e38


class SQLiteWriter(Writer):
    """Writes conditions for SQLite."""

    dialect = "sqlite"
    comparable = frozenset({"INTEGER", "VARCHAR", "BLOB"})
    collation = exp.var("BINARY")

    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A literal of one of SQLite's own types. Only floating-point numbers that are read exactly have one."""
        match of.id, value:
            case _, int() if of.id in _INTEGERS:
                return number(value)
            case "DOUBLE", float() if _is_exact(value):
                return _float(value)
            case "VARCHAR", str():
                return _sqlite_text(value)
            case "BLOB", bytes():
                return exp.HexString(this=value.hex())
            case _:
                raise Inexpressible

    def compared(self, op: Compare, column: exp.Expr, of: LogicalType, value: Value) -> exp.Expr:
        """A comparison with a constant. Booleans are numbers, and every number but 0 is true."""
        match value:
            case bool() if of.id == "BOOLEAN" and op in (Compare.EQ, Compare.NE):
                return column if value is (op is Compare.EQ) else exp.Not(this=column)
            case float() if of.is_float and not (of.id == "DOUBLE" and _is_exact(value)):
                return _near(op, column, *_around(value, single=of.id == "FLOAT"))
            case _:
                return super().compared(op, column, of, value)

    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """The text begins with the first fixed part of the pattern and contains the others.

        SQLite's own LIKE ignores case and ends at a NUL character.
        """
        if negated:
            raise Inexpressible
        prefix, *parts = _fixed_parts(pattern)
        if len(prefix) == len(pattern):
            return operation(Compare.EQ, column, _sqlite_text(prefix))
        collated = exp.Collate(this=column, expression=self.collation.copy())
        conditions = []
        if prefix:
            conditions.append(operation(Compare.GE, collated, _sqlite_text(prefix)))
            if end := _after_all_with(prefix):
                conditions.append(operation(Compare.LT, collated, _sqlite_text(end)))
        for part in filter(None, parts):
            position = exp.Anonymous(this="INSTR", expressions=[column, _sqlite_text(part)])
            conditions.append(operation(Compare.GT, position, number(0)))
        return exp.and_(*conditions) if conditions else exp.Not(this=exp.Is(this=column, expression=exp.null()))


def _sqlite_text(value: str) -> exp.Expr:
    if "\0" in value:
        raise Inexpressible
    return string(value)


# -- floating-point numbers -------------------------------------------------------------------------------------------


def _float(value: float) -> exp.Expr:
    return exp.Literal.number(repr(value))


def _is_exact(value: float) -> bool:
    return abs(value) <= _EXACT and value.is_integer()


def _near(op: Compare, column: exp.Expr, low: float, high: float) -> exp.Expr:
    """A comparison with a number that is somewhere between `low` and `high`."""
    match op:
        case Compare.EQ:
            return exp.Between(this=column, low=_float(low), high=_float(high))
        case Compare.LT | Compare.LE:
            return operation(Compare.LE, column, _float(high))
        case Compare.GT | Compare.GE:
            return operation(Compare.GE, column, _float(low))
        case _:
            raise Inexpressible


def _around(value: float, *, single: bool) -> tuple[float, float]:
    """Numbers a little below and above `value`.

    SQLite may read a number as its neighbor. A FLOAT has single precision for DuckDB, but SQLite stores a number that is
    rounded to it.
    """
    if single:
        if not abs(value) < _LARGEST_SINGLE:
            raise Inexpressible  # infinite or NaN, or it has infinite neighbors
        step = max(abs(value) * 2.0**-22, 2.0**-140)
        return value - step, value + step
    if not 1e-290 < abs(value) < 1e290:
        raise Inexpressible  # infinite or NaN, or its neighbors are far
    low = high = value
    for _ in range(_STEPS):
        low, high = math.nextafter(low, -math.inf), math.nextafter(high, math.inf)
    return low, high


# -- patterns ---------------------------------------------------------------------------------------------------------


def _fixed_parts(pattern: Pattern) -> list[str]:
    """The fixed parts of a pattern; the first is "" if the pattern begins with a variable one."""
    parts = [""]
    for part in pattern:
        if isinstance(part, AnyPart):
            parts.append("")
        else:
            parts[-1] += part
    return parts


def _after_all_with(prefix: str) -> str:
    """The first text, in the order of code points, after all that begin with `prefix`; "" if there is none."""
    for end in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[end]) + 1
        if code <= 0x10FFFF:
            return prefix[:end] + chr(0xE000 if code == 0xD800 else code)  # not a surrogate
    return ""

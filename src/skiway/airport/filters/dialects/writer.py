"""Writes single conditions in SQL: what the dialects have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import ClassVar, Final, TypeAlias

from sqlglot import exp

from skiway.airport.filters.functions import may_raise
from skiway.airport.filters.logic import AnyPart, Inexpressible, constant_right, like_parts, like_tokens
from skiway.airport.filters.nodes import Cast, ColumnRef, Compare, Comparison, Constant, Function, Node, Operator, Value
from skiway.airport.filters.types import LogicalType

__all__ = ["Pattern", "Writer", "cast", "number", "operation", "string"]

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
        kind, other_kind = ("INTEGER" if each.is_integer else each.id for each in (of, other_of))
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
        given = [value for value in values if value is not None]
        if len(values) < len(members) or not 0 < len(given) <= _MAX_MEMBERS or (negated and len(given) < len(members)):
            raise Inexpressible
        literals = [self.literal(value, of) for value in given]
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

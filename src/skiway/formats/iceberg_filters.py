"""A filter as a PyIceberg expression.

As with Arrow (see `skiway.airport.filters.arrow`), what must keep rows with NaN is not said: PyIceberg reads Parquet
through Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from skiway.airport.filters.logic import Unsaid, column_path, encode, sided
from skiway.airport.filters.nodes import (
    ColumnRef,
    Compare,
    Comparison,
    Constant,
    Filter,
    Function,
    Node,
    Operator,
    type_of,
)
from skiway.airport.filters.patterns import literal_prefix, match_parts
from skiway.airport.filters.types import INTEGER_RANGES, LogicalType

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.expressions.literals import Literal
    from pyiceberg.schema import Schema

__all__ = ["to_iceberg"]

_COMPARE: Final = {
    Compare.EQ: "EqualTo",
    Compare.NE: "NotEqualTo",
    Compare.LT: "LessThan",
    Compare.LE: "LessThanOrEqual",
    Compare.GT: "GreaterThan",
    Compare.GE: "GreaterThanOrEqual",
    Compare.NOT_DISTINCT: "EqualTo",
    Compare.DISTINCT: "NotEqualTo",
}
_KEEPS_NAN: Final = {Compare.NE, Compare.GT, Compare.GE, Compare.DISTINCT}

_LONG: Final = INTEGER_RANGES["BIGINT"]

# How a value of a type is wrapped. Timestamps of other units are not Iceberg's, so a column has them by conversion only.
_LITERALS: Final = {
    "BOOLEAN": "BooleanLiteral",
    "FLOAT": "FloatLiteral",
    "DOUBLE": "DoubleLiteral",
    "DECIMAL": "DecimalLiteral",
    "VARCHAR": "StringLiteral",
    "BLOB": "BinaryLiteral",
    "DATE": "DateLiteral",
    "TIME": "TimeLiteral",
    "TIMESTAMP": "TimestampLiteral",
    "TIMESTAMP WITH TIME ZONE": "TimestampLiteral",
} | dict.fromkeys(INTEGER_RANGES, "LongLiteral")


def to_iceberg(filter: Filter, schema: Schema | None = None) -> BooleanExpression:  # noqa: A002
    """An expression that keeps at least the rows `filter` keeps; `AlwaysTrue()` when nothing can be said.

    With the table's `schema`, what it cannot take is left out: a column it does not have, a value its type has not.
    """
    from pyiceberg.expressions import AlwaysTrue

    writer = _Writer(schema)
    return encode(filter, writer.condition, every=writer.every, some=writer.some) or AlwaysTrue()


class _Writer:
    def __init__(self, schema: Schema | None) -> None:
        import pyiceberg.expressions as words
        import pyiceberg.expressions.literals as literals

        self.words = words
        self.literals = literals
        self.schema = schema

    def every(self, said: Sequence[BooleanExpression]) -> BooleanExpression:
        return said[0] if len(said) == 1 else self.words.And(*said)

    def some(self, said: Sequence[BooleanExpression]) -> BooleanExpression:
        return said[0] if len(said) == 1 else self.words.Or(*said)

    def condition(self, node: Node) -> BooleanExpression:
        said = self.say(node)
        if self.schema is not None:
            self.bind(said, self.schema)
        return said

    def bind(self, said: BooleanExpression, schema: Schema) -> None:
        from pyiceberg.expressions.visitors import bind

        try:
            bind(schema, said, case_sensitive=True)
        except (TypeError, ValueError, OverflowError):
            raise Unsaid from None

    def say(self, node: Node) -> BooleanExpression:
        match node:
            case Constant(None | bool() as value, LogicalType("BOOLEAN")):
                return self.words.AlwaysTrue() if value else self.words.AlwaysFalse()
            case Comparison():
                return self.comparison(sided(node))
            case ColumnRef() | Function("struct_extract") if _is_boolean(node):
                return self.words.EqualTo(_term(node), self.literals.BooleanLiteral(True))
            case Operator("NOT", (child,)):
                return self.negation(child)
            case Operator("IS NULL", (child,)):
                return self.words.IsNull(_term(child))
            case Operator("IS NOT NULL", (child,)):
                return self.words.NotNull(_term(child))
            case Operator("IN", (probe, *among)):
                return self.among(probe, among)
            case Operator("NOT IN", (probe, *among)):
                return self.not_among(probe, among)
            case Function():
                return self.match(node)
            case _:
                raise Unsaid

    def negation(self, node: Node) -> BooleanExpression:
        match node:
            case ColumnRef() | Function("struct_extract") if _is_boolean(node):
                return self.words.EqualTo(_term(node), self.literals.BooleanLiteral(False))
            case Function("prefix" | "starts_with", (text, Constant(str() as part)), _, True):
                return self.words.NotStartsWith(_term(text), self.literals.StringLiteral(part))
            case Function("isnan", (value,), _, True):
                return self.words.NotNaN(_term(value))
            case _:
                raise Unsaid

    def comparison(self, node: Comparison) -> BooleanExpression:
        term = _term(node.left)
        match node.op, node.right:
            case Compare.NOT_DISTINCT, Constant(None):
                return self.words.IsNull(term)
            case Compare.DISTINCT, Constant(None):
                return self.words.NotNull(term)
            case _, Constant(None):
                return self.words.AlwaysFalse()  # NULL on every row
            case Compare.LT | Compare.LE, Constant(float() as value) if math.isnan(value):
                return self.words.NotNull(term)
            case op, Constant(_, of) as constant if not (of.is_float and op in _KEEPS_NAN):
                compared = getattr(self.words, _COMPARE[op])(term, self.literal(constant))
                return self.words.Or(compared, self.words.IsNull(term)) if op is Compare.DISTINCT else compared
            case _:
                raise Unsaid

    def among(self, probe: Node, among: Sequence[Node]) -> BooleanExpression:
        present = [one for one in among if not _is_null(one)]  # x IN (…, NULL) is true where x is one of the others
        term, values = _term(probe), [self.literal(one) for one in present]
        if not values:
            return self.words.AlwaysFalse()
        if _is_float(probe):  # Arrow's sets tell 0.0 from -0.0
            return self.some([self.words.EqualTo(term, value) for value in values])
        return self.words.In(term, values)

    def not_among(self, probe: Node, among: Sequence[Node]) -> BooleanExpression:
        if any(_is_null(one) for one in among):
            return self.words.AlwaysFalse()
        if _is_float(probe):
            raise Unsaid
        return self.words.NotIn(_term(probe), [self.literal(one) for one in among])

    def match(self, node: Function) -> BooleanExpression:
        """What the matching texts begin with."""
        match node:
            case Function("prefix" | "starts_with", (text, Constant(str() as prefix)), _, True):
                pass
            case _:
                text, pattern, escape = match_parts(node)
                prefix = literal_prefix(pattern, escape)
        if not prefix:
            return self.words.NotNull(_term(text))
        return self.words.StartsWith(_term(text), self.literals.StringLiteral(prefix))

    def literal(self, node: Node) -> Literal[Any]:
        if not isinstance(node, Constant) or node.value is None or node.type.id not in _LITERALS:
            raise Unsaid
        value = node.value
        if isinstance(value, float) and math.isnan(value):
            raise Unsaid
        if isinstance(value, int) and not _LONG[0] <= value <= _LONG[1]:
            raise Unsaid  # no column of Iceberg holds it
        wrapped: Literal[Any] = getattr(self.literals, _LITERALS[node.type.id])(value)
        return wrapped


def _term(node: Node) -> str:
    """The dotted name of a column or a field in it."""
    path = column_path(node)
    of = type_of(node)
    if of is None or of.alias not in ("", "JSON") or any("." in name for name in path):
        raise Unsaid  # with a dot in a name, the dotted name might mean another column
    return ".".join(path)


def _is_boolean(node: Node) -> bool:
    of = type_of(node)
    return of is not None and of.id == "BOOLEAN"


def _is_float(node: Node) -> bool:
    of = type_of(node)
    return of is not None and of.is_float


def _is_null(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None

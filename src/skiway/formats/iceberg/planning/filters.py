# mypy: disable-error-code="no-any-return"
"""Translate filters to PyIceberg expressions.

As for Arrow (see `skiway.airport.filters.arrow`), comparisons that are true for NaN are left out, because PyIceberg reads
Parquet with Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyiceberg.expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.literals import (
    BinaryLiteral,
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema

from skiway.airport.filters.nodes import (
    INTEGER_RANGES,
    ColumnRef,
    Compare,
    Comparison,
    Constant,
    Filter,
    Function,
    LogicalType,
    Node,
    Operator,
    type_of,
)
from skiway.airport.filters.translation import (
    Inexpressible,
    column_path,
    constant_right,
    like_parts,
    literal_prefix,
    translate,
)

_iceberg: Any = pyiceberg.expressions  # type checkers do not know that its models accept positional arguments

_COMPARE: Final = {
    Compare.EQ: _iceberg.EqualTo,
    Compare.NE: _iceberg.NotEqualTo,
    Compare.LT: _iceberg.LessThan,
    Compare.LE: _iceberg.LessThanOrEqual,
    Compare.GT: _iceberg.GreaterThan,
    Compare.GE: _iceberg.GreaterThanOrEqual,
    Compare.NOT_DISTINCT: _iceberg.EqualTo,
    Compare.DISTINCT: _iceberg.NotEqualTo,
}
_TRUE_FOR_NAN: Final = {Compare.NE, Compare.GT, Compare.GE, Compare.DISTINCT}

# The literal class of each type. Iceberg only has timestamps in microseconds.
_LITERALS: Final[dict[str, Callable[[Any], Literal[Any]]]] = {
    "BOOLEAN": BooleanLiteral,
    "FLOAT": FloatLiteral,
    "DOUBLE": DoubleLiteral,
    "DECIMAL": DecimalLiteral,
    "VARCHAR": StringLiteral,
    "BLOB": BinaryLiteral,
    "DATE": DateLiteral,
    "TIME": TimeLiteral,
    "TIMESTAMP": TimestampLiteral,
    "TIMESTAMP WITH TIME ZONE": TimestampLiteral,
    **dict.fromkeys(INTEGER_RANGES, LongLiteral),
}
_LEAST_LONG, _MOST_LONG = INTEGER_RANGES["BIGINT"]

# Arrow can only evaluate a limited number of the conditions that PyIceberg generates.
_MAX_CONDITIONS: Final = 500
_MAX_EQUALS: Final = 10


def to_iceberg(filter: Filter, schema: Schema | None = None) -> BooleanExpression:  # noqa: A002
    """An expression that is true for at least the rows that match `filter`; `AlwaysTrue()` if nothing can be translated.

    With the `schema` of the table, conditions that do not bind to it are left out: unknown columns, values of other types.
    """

    def condition(node: Node) -> BooleanExpression:
        expression = _condition(node)
        try:
            if schema is not None:
                bind(schema, expression, case_sensitive=True)
        except (TypeError, ValueError, OverflowError):
            raise Inexpressible from None
        return expression

    return translate(filter, condition, all_of=_every, any_of=_some, limit=_MAX_CONDITIONS) or _iceberg.AlwaysTrue()


def _every(conditions: Sequence[BooleanExpression]) -> BooleanExpression:
    return conditions[0] if len(conditions) == 1 else _iceberg.And(*conditions)


def _some(conditions: Sequence[BooleanExpression]) -> BooleanExpression:
    return conditions[0] if len(conditions) == 1 else _iceberg.Or(*conditions)


def _condition(node: Node) -> BooleanExpression:
    match node:
        case Constant(None | bool() as value, LogicalType("BOOLEAN")):
            return _iceberg.AlwaysTrue() if value else _iceberg.AlwaysFalse()
        case Comparison():
            return _comparison(constant_right(node))
        case ColumnRef() | Function("struct_extract") if _is_boolean(node):
            return _iceberg.EqualTo(_term(node), BooleanLiteral(True))
        case Operator("NOT", (child,)):
            return _negation(child)
        case Operator("IS NULL", (child,)):
            return _iceberg.IsNull(_term(child))
        case Operator("IS NOT NULL", (child,)):
            return _iceberg.NotNull(_term(child))
        case Operator("IN", (probe, *among)):
            return _among(probe, among)
        case Operator("NOT IN", (probe, *among)):
            return _not_among(probe, among)
        case Function():
            return _match(node)
        case _:
            raise Inexpressible


def _negation(node: Node) -> BooleanExpression:
    match node:
        case ColumnRef() | Function("struct_extract") if _is_boolean(node):
            return _iceberg.EqualTo(_term(node), BooleanLiteral(False))
        case Function("prefix" | "starts_with", (text, Constant(str() as part)), _, True):
            return _iceberg.NotStartsWith(_term(text), StringLiteral(part))
        case Function("isnan", (value,), _, True):
            return _iceberg.NotNaN(_term(value))
        case _:
            raise Inexpressible


def _comparison(node: Comparison) -> BooleanExpression:
    term = _term(node.left)
    match node.op, node.right:
        case Compare.NOT_DISTINCT, Constant(None):
            return _iceberg.IsNull(term)
        case Compare.DISTINCT, Constant(None):
            return _iceberg.NotNull(term)
        case _, Constant(None):
            return _iceberg.AlwaysFalse()  # NULL on every row
        case Compare.LT | Compare.LE, Constant(float() as value) if math.isnan(value):
            return _iceberg.NotNull(term)
        case op, Constant(_, of) as constant if not (of.is_float and op in _TRUE_FOR_NAN):
            compared = _COMPARE[op](term, _literal(constant))
            return _iceberg.Or(compared, _iceberg.IsNull(term)) if op is Compare.DISTINCT else compared
        case _:
            raise Inexpressible


def _among(probe: Node, among: Sequence[Node]) -> BooleanExpression:
    present = [one for one in among if not _is_null(one)]  # x IN (..., NULL) is true if x is one of the others
    term, values = _term(probe), [_literal(one) for one in present]
    if not values:
        return _iceberg.AlwaysFalse()
    if _is_float(probe):  # Arrow's is_in distinguishes 0.0 from -0.0
        if len(values) > _MAX_EQUALS:
            raise Inexpressible
        return _some([_iceberg.EqualTo(term, value) for value in values])
    return _iceberg.In(term, values)


def _not_among(probe: Node, among: Sequence[Node]) -> BooleanExpression:
    if any(_is_null(one) for one in among):
        return _iceberg.AlwaysFalse()
    if _is_float(probe):
        raise Inexpressible
    return _iceberg.NotIn(_term(probe), [_literal(one) for one in among])


def _match(node: Function) -> BooleanExpression:
    """The condition on the prefix of matching strings."""
    match node:
        case Function("prefix" | "starts_with", (text, Constant(str() as prefix)), _, True):
            pass
        case _:
            text, pattern, escape = like_parts(node)
            prefix = literal_prefix(pattern, escape)
    return _iceberg.StartsWith(_term(text), StringLiteral(prefix)) if prefix else _iceberg.NotNull(_term(text))


def _literal(node: Node) -> Literal[Any]:
    match node:
        case Constant(float() as value) if math.isnan(value):
            raise Inexpressible
        case Constant(int() as value) if not _LEAST_LONG <= value <= _MOST_LONG:
            raise Inexpressible  # too large for any Iceberg type
        case Constant(value, of) if value is not None and of.id in _LITERALS:
            return _LITERALS[of.id](value)
        case _:
            raise Inexpressible


def _term(node: Node) -> str:
    """The dotted name of a column, or of a field in a struct; only primitive types, as PyIceberg cannot read others."""
    path = column_path(node)
    of = type_of(node)
    if of is None or of.fields or of.alias not in ("", "JSON"):
        raise Inexpressible
    if any("." in name for name in path):
        raise Inexpressible  # the dotted name would be ambiguous
    return ".".join(path)


def _is_boolean(node: Node) -> bool:
    of = type_of(node)
    return of is not None and of.id == "BOOLEAN"


def _is_float(node: Node) -> bool:
    of = type_of(node)
    return of is not None and of.is_float


def _is_null(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None

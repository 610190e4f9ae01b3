# mypy: disable-error-code="no-any-return,misc"
"""Filters in the JSON of the Iceberg REST specification, translated to our own for planning.

Both forms of the specification are read: the old one (`term`, `value`) and the new one (`child`, `left`, `right`). Planning may
keep too many files, never too few, so conditions that pruning cannot use become `Unknown`.

In Iceberg, a condition is true or false, never NULL: `not-eq` and `not-in` are true for NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyiceberg.expressions
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind, rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from skiway.airport.filters.nodes import (
    BOOLEAN,
    ColumnRef,
    Compare,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    LogicalType,
    Node,
    Operator,
    Unknown,
    plain,
)
from skiway.errors import InvalidArgument, LimitExceeded
from skiway.formats.iceberg.planning.scan_tasks import METADATA_COLUMNS
from skiway.telemetry.context import require_active

_iceberg: Any = pyiceberg.expressions  # type checkers do not know that its models accept positional arguments

MAX_DEPTH: Final = 100
MAX_CONDITIONS: Final = 1000
MAX_VALUES: Final = 50
"""How many values of an IN are planned one by one. Of more, planning uses the range only; PyIceberg takes long for each."""

_COMPARISONS: Final = {
    "lt": _iceberg.LessThan,
    "lt-eq": _iceberg.LessThanOrEqual,
    "gt": _iceberg.GreaterThan,
    "gt-eq": _iceberg.GreaterThanOrEqual,
    "eq": _iceberg.EqualTo,
    "not-eq": _iceberg.NotEqualTo,
    "starts-with": _iceberg.StartsWith,
    "not-starts-with": _iceberg.NotStartsWith,
}
_TESTS: Final = {
    "is-null": _iceberg.IsNull,
    "not-null": _iceberg.NotNull,
    "is-nan": _iceberg.IsNaN,
    "not-nan": _iceberg.NotNaN,
}
_SETS: Final = {"in": _iceberg.In, "not-in": _iceberg.NotIn}
_RANGES: Final[Mapping[type[IcebergType], type]] = {IntegerType: int, LongType: int, StringType: str}
"""Types that sort the same in Python, as parsed from JSON, and in Iceberg."""
_FLIPPED: Final = {"lt": "gt", "lt-eq": "gt-eq", "gt": "lt", "gt-eq": "lt-eq", "eq": "eq", "not-eq": "not-eq"}


def filter_in(expression: Any, schema: Schema, *, case_sensitive: bool = True) -> Filter:
    """The filter that is true for at least the rows for which the expression, decoded from JSON, is true.

    Raises `InvalidArgument` if it is not an expression, or does not fit the columns of `schema`.
    """
    parser = _Parser(schema, case_sensitive=case_sensitive)
    parsed = parser.parsed(expression, MAX_DEPTH)
    try:
        bound = bind(schema, rewrite_not(parsed), case_sensitive=case_sensitive)
    except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
        raise _invalid(str(error)[:200]) from error
    if parser.is_partial:
        return Filter()
    top = {field.field_id for field in schema.fields}
    return Filter((_node(bound, top),))


class _Parser:
    """Parses one expression, and counts its conditions.

    Nothing is known about functions, metadata columns and comparisons of two columns. With one of them, the expression
    `is_partial`: it may be negated, so the other conditions cannot be used either.
    """

    def __init__(self, schema: Schema, *, case_sensitive: bool) -> None:
        self._schema, self._left, self._case_sensitive = schema, MAX_CONDITIONS, case_sensitive
        self._negations = 0
        self.is_partial = False

    def parsed(self, given: Any, depth: int) -> BooleanExpression:
        require_active()
        self._left -= 1
        if depth <= 0 or self._left < 0:
            raise LimitExceeded(
                f"the filter is nested deeper than {MAX_DEPTH} levels, or has more than {MAX_CONDITIONS} conditions",
                key="filter.too_large",
            )
        if isinstance(given, bool):
            return _iceberg.AlwaysTrue() if given else _iceberg.AlwaysFalse()
        if not isinstance(given, Mapping) or not isinstance(given.get("type"), str | bool):
            raise _invalid("an expression is true, false, or an object with a type")
        kind = given["type"] if isinstance(given["type"], str) else str(given["type"]).lower()
        match kind:
            case "true" | "false":
                return _iceberg.AlwaysTrue() if kind == "true" else _iceberg.AlwaysFalse()
            case "and" | "or":
                sides = [self.parsed(_part(given, name), depth - 1) for name in ("left", "right")]
                return (_iceberg.And if kind == "and" else _iceberg.Or)(*sides)
            case "not":
                self._negations += 1
                child = self.parsed(_part(given, "child"), depth - 1)
                self._negations -= 1
                return _iceberg.Not(child)
        return self._predicate(kind, given)

    def _predicate(self, kind: str, given: Mapping[str, Any]) -> BooleanExpression:
        make: Callable[..., BooleanExpression]
        if kind in _TESTS:
            name = self._name(given.get("child", given.get("term")))
            return self._unknown() if name is None else _TESTS[kind](name)
        if kind in _SETS:
            name, values = self._name(given.get("child", given.get("term"))), _part(given, "values")
            listed = values.get("values") if isinstance(values, Mapping) else values
            if not isinstance(listed, list):
                raise _invalid("values must be a list")
            if name is None:
                return self._unknown()
            given_values = [_value(value) for value in listed]
            if len(given_values) > MAX_VALUES:
                return self._range(kind, name, given_values)
            return _SETS[kind](name, given_values)
        if kind not in _COMPARISONS:
            raise _invalid(f"type {kind[:40]!r} is unknown")
        left, right = given.get("left", given.get("term")), given.get("right", given.get("value"))
        if _is_literal(left) and not _is_literal(right) and "left" in given and kind in _FLIPPED:
            kind, left, right = _FLIPPED[kind], right, left
        make = _COMPARISONS[kind]
        name = self._name(left)
        if name is None or not _is_literal(right):
            return self._unknown()
        return make(name, _value(right))

    def _range(self, kind: str, name: str, values: list[Any]) -> BooleanExpression:
        """The range of the values of an IN, if it can be computed and may be used instead of the values."""
        try:
            of = self._schema.find_type(name, case_sensitive=self._case_sensitive)
        except ValueError as error:
            raise _invalid(str(error)[:200]) from None
        if kind != "in" or self._negations or {type(value) for value in values} != {_RANGES.get(type(of))}:
            return self._unknown()
        return _iceberg.And(_iceberg.GreaterThanOrEqual(name, min(values)), _iceberg.LessThanOrEqual(name, max(values)))

    def _unknown(self) -> BooleanExpression:
        self.is_partial = True
        return _iceberg.AlwaysTrue()

    def _name(self, term: Any) -> str | None:
        """The name of a column; None for functions, transforms and metadata columns."""
        match term:
            case (str() as name) | {"type": "reference", "name": str() as name}:
                return None if name.lower() in METADATA_COLUMNS else name
            case {"type": "reference", "id": int() as number}:
                found = self._schema.find_column_name(number)
                if found is None:
                    raise _invalid(f"the table has no column with id {number}")
                return found
            case {"type": "apply" | "transform"}:
                return None
        raise _invalid("a condition must name a column")


def _part(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise _invalid(f"{name} is missing")
    return given[name]


def _is_literal(given: Any) -> bool:
    is_column = isinstance(given, Mapping) and given.get("type") in ("reference", "apply", "transform")
    return given is not None and not is_column


def _value(given: Any) -> Any:
    value = given.get("value") if isinstance(given, Mapping) and given.get("type") == "literal" else given
    if not isinstance(value, bool | int | float | str):
        raise _invalid("a value must be a string, a number, true or false")
    return value


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the filter is not valid: {reason}; compare it with the expressions of the Iceberg REST specification and the "
        "columns of the table",
        key="filter.invalid",
        field="filter",
    )


# -- bound expressions ------------------------------------------------------------------------------------------------

_OPERATORS: Final = {
    "BoundLessThan": Compare.LT,
    "BoundLessThanOrEqual": Compare.LE,
    "BoundGreaterThan": Compare.GT,
    "BoundGreaterThanOrEqual": Compare.GE,
    "BoundEqualTo": Compare.EQ,
    "BoundNotEqualTo": Compare.DISTINCT,
}
_TYPES: Final[Mapping[type[IcebergType], str]] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    StringType: "VARCHAR",
    BinaryType: "BLOB",
}


def _node(bound: Any, top: set[int]) -> Node:
    kind = type(bound).__name__
    match kind:
        case "AlwaysTrue" | "AlwaysFalse":
            return Constant(kind == "AlwaysTrue", BOOLEAN)
        case "And" | "Or":
            children = (_node(bound.left, top), _node(bound.right, top))
            return Conjunction("AND" if kind == "And" else "OR", children)
    field = bound.term.ref().field
    of = _type(field.field_type)
    if of is None or field.field_id not in top:
        return Unknown(kind)
    column = ColumnRef(field.name, of)
    match kind:
        case "BoundIsNull":
            return Operator("IS NULL", (column,), BOOLEAN)
        case "BoundNotNull":
            return Operator("IS NOT NULL", (column,), BOOLEAN)
        case "BoundStartsWith":
            return Function("starts_with", (column, Constant(bound.literal.value, of)), BOOLEAN)
        case "BoundIn":
            return Operator("IN", (column, *(Constant(each.value, of) for each in bound.literals)), BOOLEAN)
    if kind in _OPERATORS:
        return Comparison(_OPERATORS[kind], column, Constant(bound.literal.value, of))
    return Unknown(kind)


def _type(of: IcebergType) -> LogicalType | None:
    if isinstance(of, DecimalType):
        return LogicalType("DECIMAL", width=of.precision, scale=of.scale)
    name = _TYPES.get(type(of))
    return None if name is None else plain(name)

"""Filter pushdown: the conditions of WHERE that the server can apply, comparisons of a column with constants joined by AND.

DuckDB applies WHERE again, so leaving out a condition is always correct; including one must never lose a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from skiway.client.airport.predicates import Between, Column, Comparison, In, IsNull, Op, Predicate, literal
from skiway.errors import SkiwayError

OPERATORS: Final[Mapping[type[exp.Expr], Op]] = {
    exp.EQ: Op.EQUAL,
    exp.NEQ: Op.NOT_EQUAL,
    exp.LT: Op.LESS,
    exp.LTE: Op.LESS_OR_EQUAL,
    exp.GT: Op.GREATER,
    exp.GTE: Op.GREATER_OR_EQUAL,
}
MIRRORED: Final = {
    Op.LESS: Op.GREATER,
    Op.LESS_OR_EQUAL: Op.GREATER_OR_EQUAL,
    Op.GREATER: Op.LESS,
    Op.GREATER_OR_EQUAL: Op.LESS_OR_EQUAL,
}


class _NotPushed(Exception):
    """The condition cannot be pushed down; DuckDB applies it."""


def pushdown_filter(statement: exp.Expr, node: exp.Table, columns: pa.Schema) -> Predicate | None:
    """Return a predicate that all rows must match which the statement reads at `node`; None if there is none.

    `columns` are those of the table.
    """
    try:
        scopes = [
            scope for scope in traverse_scope(statement) if any(source is node for source in scope.sources.values())
        ]
    except SqlglotError:
        return None
    if len(scopes) != 1 or not _can_filter_early(scopes[0], node):
        return None
    found = None
    for condition in _conditions(scopes[0]):
        try:
            part = _predicate(condition, scopes[0], node, columns)
        except _NotPushed:
            continue
        found = part if found is None else found & part
    return found


def _can_filter_early(scope: Scope, node: exp.Table) -> bool:
    """Whether removing a row early does not change the result: there is no outer join, sample or pivot."""
    joins = scope.expression.args.get("joins") or []
    plain = all(not join.side and join.kind in ("", "INNER", "CROSS") and not join.method for join in joins)
    return plain and not node.args.get("sample") and not node.args.get("pivots") and not node.args.get("joins")


def _conditions(scope: Scope) -> Iterator[exp.Expr]:
    where = scope.expression.args.get("where")
    if where is None:
        return
    whole = where.this.unnest()
    yield from whole.flatten() if isinstance(whole, exp.And) else [whole]


def _predicate(condition: exp.Expr, scope: Scope, node: exp.Table, columns: pa.Schema) -> Predicate:
    def column(of: exp.Expr) -> pa.Field:
        return _field(of, scope, node, columns)

    match condition.unnest():
        case exp.Is() as test if isinstance(test.expression, exp.Null):
            return IsNull(column(test.this).name)
        case exp.Not() as test if isinstance(test.this, exp.Is) and isinstance(test.this.expression, exp.Null):
            return IsNull(column(test.this.this).name, negated=True)
        case exp.Between() as test if not test.args.get("symmetric"):
            field = column(test.this)
            return Between(field.name, _value(test.args["low"], field), _value(test.args["high"], field))
        case exp.In() as test if test.expressions and not (test.args.get("query") or test.args.get("unnest")):
            field = column(test.this)
            return In(field.name, tuple(_value(expression, field) for expression in test.expressions))
        case exp.Column() as alone if pa.types.is_boolean(column(alone).type):
            return Column(column(alone).name)
        case exp.Binary() as test if type(test) in OPERATORS:
            return _comparison(test, column)
    raise _NotPushed


def _comparison(test: exp.Binary, column: Any) -> Predicate:
    op = OPERATORS[type(test)]
    if isinstance(test.this, exp.Column):
        field = column(test.this)
        return Comparison(op, field.name, _value(test.expression, field))
    field = column(test.expression)
    return Comparison(MIRRORED.get(op, op), field.name, _value(test.this, field))


def _field(of: exp.Expr, scope: Scope, node: exp.Table, columns: pa.Schema) -> pa.Field:
    """Return the column of the table; an unqualified name is accepted only if there is no other table."""
    if not isinstance(of, exp.Column) or of.find(exp.Dot):
        raise _NotPushed
    if of.table and of.table.lower() != node.alias_or_name.lower():
        raise _NotPushed
    if not of.table and len(scope.sources) != 1:
        raise _NotPushed
    named = [field for field in columns if field.name.lower() == of.name.lower()]
    if len(named) != 1:
        raise _NotPushed
    return named[0]


def _value(of: exp.Expr, field: pa.Field) -> Any:
    """Return a constant as a value of the column's type, if DuckDB compares it as that type."""
    value = _constant(of, field.type)
    try:
        literal(field, value)
    except SkiwayError:
        raise _NotPushed from None
    return value


def _constant(of: exp.Expr, kind: pa.DataType) -> Any:
    text = _text(of)
    if isinstance(of, exp.Boolean) and pa.types.is_boolean(kind):
        return bool(of.this)
    if text is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and _is_string(of):
        return text
    if text is not None and (pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)):
        return _moment(text, kind)
    if _is_number(of) and (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_float64(kind)):
        return _number(of, kind)
    raise _NotPushed


def _text(of: exp.Expr) -> str | None:
    """The text of a string, or of DATE '…' or TIMESTAMP '…'."""
    if isinstance(of, exp.Cast) and of.to.is_type("date", "timestamp", "timestampntz"):
        of = of.this
    return str(of.this) if _is_string(of) else None


def _is_string(of: exp.Expr) -> bool:
    return isinstance(of, exp.Literal) and bool(of.is_string)


def _is_number(of: exp.Expr) -> bool:
    inner = of.this if isinstance(of, exp.Neg) else of
    return isinstance(inner, exp.Literal) and not inner.is_string


def _number(of: exp.Expr, kind: pa.DataType) -> Any:
    number = Decimal(of.sql("duckdb", comments=False).replace(" ", ""))
    if pa.types.is_float64(kind):
        return float(number)
    if pa.types.is_decimal(kind):
        return number
    if number != int(number):
        raise _NotPushed
    return int(number)


def _moment(text: str, kind: pa.DataType) -> Any:
    try:
        return pa.scalar(text).cast(kind).as_py()
    except pa.ArrowException:
        raise _NotPushed from None

"""Arrow's types and values for those of DuckDB."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters.logic import Unsaid, column_path, encode, match_parts, regex, sided
from skiway.airport.filters.nodes import (
    Cast,
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
from skiway.airport.filters.types import INTEGER_RANGES, LogicalType, plain

__all__ = ["TYPES", "joined", "literal_type", "scalar", "to_arrow", "value_set"]

TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}


def scalar(node: Node, of: pa.DataType) -> pa.Scalar:
    """The constant `node`, not NULL, as a value of type `of`."""
    if not isinstance(node, Constant) or node.value is None:
        raise Unsaid
    try:
        return pa.scalar(node.value, of)
    except (pa.ArrowException, OverflowError, TypeError):
        raise Unsaid from None  # the column's type does not hold this value


def value_set(nodes: Sequence[Node], of: pa.DataType) -> pa.Array:
    """The constants `nodes` as a set to look for; NaN is not among the values that Arrow finds as DuckDB does."""
    values = [scalar(node, of) for node in nodes]
    if not pa.types.is_floating(of):
        return pa.array(values, of)
    numbers = [value.as_py() for value in values]
    if any(math.isnan(number) for number in numbers):
        raise Unsaid
    return pa.array([*numbers, 0.0, -0.0] if 0.0 in numbers else numbers, of)  # a set tells one zero from the other


def literal_type(of: LogicalType, stored: pa.DataType | None) -> pa.DataType:
    """The type of literals beside a column that the client sees as `of` and that is `stored` so."""
    seen = pa.decimal128(of.width, of.scale) if of.id == "DECIMAL" else TYPES.get(of.id)
    if seen is None:
        raise Unsaid
    if stored is None:
        return seen
    if pa.types.is_dictionary(stored):
        stored = stored.value_type
    if stored == seen or any(
        is_kind(seen) and is_kind(stored) for is_kind in (pa.types.is_integer, _is_text, _is_bytes)
    ):
        return stored
    if pa.types.is_decimal(seen) and pa.types.is_decimal(stored) and stored.scale == seen.scale:
        return stored
    if pa.types.is_timestamp(seen) and pa.types.is_timestamp(stored):
        return _timestamp(seen, stored)
    raise Unsaid


def _is_text(of: pa.DataType) -> bool:
    return of in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(of: pa.DataType) -> bool:
    return of in (pa.binary(), pa.large_binary(), pa.binary_view())


def _timestamp(seen: pa.DataType, stored: pa.DataType) -> pa.DataType:
    # In another unit the client sees rounded values; a zone's name does not matter, only that there is one.
    if seen.unit != stored.unit or (seen.tz is None) != (stored.tz is None):
        raise Unsaid
    return stored


# --------------------
# A filter as a pyarrow expression, for tables and datasets.
#
# Floating point needs care. DuckDB holds NaN greater than every number and equal to itself. An Arrow comparison is never
# true on NaN, and a row group of a Parquet file whose statistics show one single value is taken to hold that value only,
# although statistics leave NaN out. So whatever must keep rows with NaN (`f > 1`, `f <> 1`, `isnan(f)`) is not said.


_COMPARE: Final[dict[Compare, Callable[[Any, Any], Any]]] = {
    Compare.EQ: pc.equal,
    Compare.NE: pc.not_equal,
    Compare.LT: pc.less,
    Compare.LE: pc.less_equal,
    Compare.GT: pc.greater,
    Compare.GE: pc.greater_equal,
}

# Arrow's time grows with the square of the number of conditions, and some thousands overflow its stack.
_MOST: Final = 500

# Functions of integers that have the same answer for every argument, NULL included.
_ELEMENTWISE: Final[dict[str, Callable[..., Any]]] = {
    "&": pc.bit_wise_and,
    "|": pc.bit_wise_or,
    "xor": pc.bit_wise_xor,
    "greatest": pc.max_element_wise,
    "least": pc.min_element_wise,
}


def to_arrow(filter: Filter, schema: pa.Schema | None = None) -> pc.Expression | None:  # noqa: A002
    """An expression that keeps at least the rows `filter` keeps; None when nothing can be said.

    With the `schema` of what is filtered, literals take its columns' types, and what it cannot take is left out: a
    column it does not have, or one of another type than the client sees. Without it, the columns must be as announced.
    """
    return encode(
        filter, _Writer(schema).condition, every=joined(pc.and_kleene), some=joined(pc.or_kleene), limit=_MOST
    )


def joined(by: Callable[[Any, Any], Any]) -> Callable[[Sequence[pc.Expression]], pc.Expression]:
    """Joins expressions by a function of two."""

    def join(said: Sequence[pc.Expression]) -> pc.Expression:
        # Halved again and again, since Arrow walks expressions recursively.
        middle = len(said) // 2
        return by(join(said[:middle]), join(said[middle:])) if middle else said[0]

    return join


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value computed from columns: the expression, the type of literals beside it, and whether it may be NaN."""

    said: pc.Expression
    type: pa.DataType
    may_be_nan: bool = False


class _Writer:
    def __init__(self, schema: pa.Schema | None) -> None:
        self.schema = schema

    def condition(self, node: Node) -> pc.Expression:
        said = self.say(node)
        if self.schema is not None:
            try:
                self.schema.empty_table().filter(said)
            except (pa.ArrowException, KeyError):
                raise Unsaid from None
        return said

    def say(self, node: Node) -> pc.Expression:
        match node:
            case Constant(None | bool() as value, LogicalType("BOOLEAN")):
                return pc.scalar(bool(value))
            case ColumnRef() | Function("struct_extract") if type_of(node) == plain("BOOLEAN"):
                return self.operand(node).said
            case Comparison():
                return self.comparison(sided(node))
            case Operator("NOT", (child,)):
                return self.negation(child)
            case Operator("IS NULL", (child,)):
                return self.nullable(child).is_null()
            case Operator("IS NOT NULL", (child,)):
                return self.nullable(child).is_valid()
            case Operator("IN", (probe, *among)):
                return self.among(self.operand(probe), among)
            case Operator("NOT IN", (probe, *among)):
                return self.not_among(self.operand(probe), among)
            case Function():
                return self.match(node)
            case _:
                raise Unsaid

    def negation(self, node: Node) -> pc.Expression:
        """NOT `node`, for conditions that are said exactly."""
        match node:
            case Function("isnan", (value,), _, True):
                return pc.invert(pc.is_nan(self.operand(value).said))
            case ColumnRef() | Function():
                return pc.invert(self.say(node))
            case _:
                raise Unsaid

    def nullable(self, node: Node) -> pc.Expression:
        of = type_of(node)
        if of is None or of.id == "UNION":
            raise Unsaid  # in Arrow a union itself is never null
        try:
            return pc.field(*column_path(node))
        except Unsaid:
            return self.operand(node).said

    def comparison(self, node: Comparison) -> pc.Expression:
        left = self.operand(node.left)
        match node.op, node.right:
            case Compare.NOT_DISTINCT, Constant(None):
                return left.said.is_null()
            case Compare.DISTINCT, Constant(None):
                return left.said.is_valid()
            case _, Constant(None):
                return pc.scalar(False)  # NULL on every row
            case Compare.LT | Compare.LE, Constant(float() as value) if math.isnan(value):
                return left.said.is_valid()
            case Compare.NOT_DISTINCT, Constant():
                return self.compared(Compare.EQ, left, self.literal(node.right, left))
            case Compare.DISTINCT, Constant():
                differs = self.compared(Compare.NE, left, self.literal(node.right, left))
                return differs | left.said.is_null()
            case _, Constant():
                return self.compared(node.op, left, self.literal(node.right, left))
            case _:
                return self.compared(node.op, left, self.operand(node.right))

    def compared(self, op: Compare, left: _Operand, right: _Operand) -> pc.Expression:
        keeps_nan = {
            Compare.EQ: left.may_be_nan and right.may_be_nan,
            Compare.NE: left.may_be_nan or right.may_be_nan,
            Compare.LT: right.may_be_nan,
            Compare.LE: right.may_be_nan,
            Compare.GT: left.may_be_nan,
            Compare.GE: left.may_be_nan,
        }
        if op not in _COMPARE or keeps_nan[op] or left.type != right.type:
            raise Unsaid
        return _COMPARE[op](left.said, right.said)

    def among(self, probe: _Operand, among: Sequence[Node]) -> pc.Expression:
        present = [one for one in among if not _is_null(one)]  # x IN (…, NULL) is true where x is one of the others
        return probe.said.isin(value_set(present, probe.type))

    def not_among(self, probe: _Operand, among: Sequence[Node]) -> pc.Expression:
        if any(_is_null(one) for one in among):
            return pc.scalar(False)
        if probe.may_be_nan:
            raise Unsaid
        return pc.invert(probe.said.isin(value_set(among, probe.type))) & probe.said.is_valid()

    def literal(self, node: Node, beside: _Operand) -> _Operand:
        value = scalar(node, beside.type)
        is_nan = pa.types.is_floating(value.type) and math.isnan(value.as_py())
        return _Operand(pc.scalar(value), beside.type, may_be_nan=is_nan)

    def match(self, node: Function) -> pc.Expression:
        match node:
            case Function("prefix" | "starts_with", (text, Constant(str() as part)), _, True):
                return pc.starts_with(self.text(text), part)
            case Function("suffix" | "ends_with", (text, Constant(str() as part)), _, True):
                return pc.ends_with(self.text(text), part)
            case Function("contains", (text, Constant(str() as part)), _, True):
                return pc.match_substring(self.text(text), part)
            case _:
                text, pattern, escape = match_parts(node)
                return pc.match_substring_regex(self.text(text), regex(pattern, escape))

    def text(self, node: Node) -> pc.Expression:
        if type_of(node) is None or type_of(node).id != "VARCHAR":  # type: ignore[union-attr]
            raise Unsaid
        return self.operand(node).said

    def operand(self, node: Node) -> _Operand:
        """The value of `node`, exactly as the client computes it."""
        match node:
            case ColumnRef() | Function("struct_extract"):
                return self.column(node)
            case Function("length" | "len", (ColumnRef(_, LogicalType("LIST")) as values,), _, True):
                return _Operand(pc.list_value_length(pc.field(values.name)).cast(pa.int64()), pa.int64())
            case Function("length" | "len", (text,), _, True):
                return _Operand(pc.utf8_length(self.text(text)).cast(pa.int64()), pa.int64())
            case Function(name, children, of, True) if name in _ELEMENTWISE and of.is_integer:
                return self.elementwise(name, children)
            case Function("octet_length", (ColumnRef(_, LogicalType("BLOB")) as blob,), _, True):
                return _Operand(pc.binary_length(self.operand(blob).said).cast(pa.int64()), pa.int64())
            case Operator("COALESCE", children):
                return self.coalesce(children)
            case Cast():
                return self.cast(node)
            case _:
                raise Unsaid

    def column(self, node: ColumnRef | Function) -> _Operand:
        path = column_path(node)
        if node.type.alias not in ("", "JSON"):
            raise Unsaid
        literals = literal_type(node.type, self.stored(path))
        return _Operand(pc.field(*path), literals, may_be_nan=node.type.is_float)

    def stored(self, path: tuple[str, ...]) -> pa.DataType | None:
        """The type that the schema has at `path`; None without a schema."""
        if self.schema is None:
            return None
        found: Any = pa.struct(list(self.schema))
        for name in path:
            index = found.get_field_index(name) if pa.types.is_struct(found) else -1
            if index < 0:
                raise Unsaid  # not there, or there twice
            found = found.field(index).type
        return found

    def coalesce(self, children: Sequence[Node]) -> _Operand:
        values, of = self.alike(children)
        return _Operand(pc.coalesce(*values), of)

    def elementwise(self, name: str, children: Sequence[Node]) -> _Operand:
        values, of = self.alike(children)
        return _Operand(_ELEMENTWISE[name](*values), of)

    def alike(self, children: Sequence[Node]) -> tuple[list[pc.Expression], pa.DataType]:
        """Values that all have the type of the first, a column; none may be NaN."""
        first = self.operand(children[0])
        others = [self.literal(one, first) if isinstance(one, Constant) else self.operand(one) for one in children[1:]]
        if any(one.may_be_nan or one.type != first.type for one in (first, *others)):
            raise Unsaid
        return [first.said, *[one.said for one in others]], first.type

    def cast(self, node: Cast) -> _Operand:
        """Casts of integers to wider ones and to text. Those to floating point fail where Arrow finds them inexact."""
        source, target = type_of(node.child), node.type
        if source is None or not source.is_integer or target.alias or target.id not in TYPES:
            raise Unsaid
        if target.is_integer and not _holds(target, source):
            raise Unsaid
        if not (target.is_integer or target.id == "VARCHAR"):
            raise Unsaid
        return _Operand(self.operand(node.child).said.cast(TYPES[target.id]), TYPES[target.id])


def _holds(target: LogicalType, source: LogicalType) -> bool:
    (least, most), (low, high) = INTEGER_RANGES[target.id], INTEGER_RANGES[source.id]
    return least <= low and high <= most


def _is_null(node: Node) -> bool:
    return isinstance(node, Constant) and node.value is None

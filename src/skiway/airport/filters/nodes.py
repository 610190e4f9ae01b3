"""The syntax tree of a filter, as immutable values, and DuckDB's logical types in it.

    Filter
      └── Node    Comparison, Conjunction, Between, Operator   of type BOOLEAN (COALESCE of any type)
                  ColumnRef, Constant, Function, Cast, Case    of any type
                  Unknown                                      not supported

The predicates of a filter are combined with AND. Nodes contain everything a translation needs: columns have names instead of
numbers, and each value has a type.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from skiway.airport.wire.duckdb_sql import TYPES_WITHOUT_PARAMETERS, identifier, text_literal


def _signed(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _unsigned(bits: int) -> tuple[int, int]:
    return 0, (1 << bits) - 1


INTEGER_RANGES: Final = {
    "TINYINT": _signed(8),
    "SMALLINT": _signed(16),
    "INTEGER": _signed(32),
    "BIGINT": _signed(64),
    "HUGEINT": _signed(128),
    "UTINYINT": _unsigned(8),
    "USMALLINT": _unsigned(16),
    "UINTEGER": _unsigned(32),
    "UBIGINT": _unsigned(64),
    "UHUGEINT": _unsigned(128),
}


class _Node(msgspec.Struct, frozen=True, gc=False):
    """Immutable, and made in a fifth of the time of a dataclass: a filter may have thousands. A tree has no cycles to collect."""


class LogicalType(_Node, frozen=True):
    """A type: its `id`, which is the name in SQL, and its parameters.

    `fields` has the fields of a STRUCT or UNION, the `key` and `value` of a MAP, or the unnamed element of a LIST or ARRAY.
    `alias` is the name of a type that is based on this one, such as JSON on VARCHAR.
    """

    id: str
    alias: str = ""
    width: int = 0
    scale: int = 0
    fields: tuple[tuple[str, LogicalType], ...] = ()
    size: int = 0
    members: tuple[str, ...] = ()
    collation: str = ""

    @property
    def element(self) -> LogicalType:
        """The element type of a LIST or ARRAY."""
        return self.fields[0][1]

    @property
    def is_integer(self) -> bool:
        return self.id in INTEGER_RANGES

    @property
    def is_float(self) -> bool:
        return self.id in ("FLOAT", "DOUBLE")

    @property
    def is_zoned(self) -> bool:
        """Whether values, or parts of them, depend on the session's time zone."""
        return self.id.endswith("WITH TIME ZONE") or any(part.is_zoned for _, part in self.fields)

    @property
    def sql(self) -> str | None:
        """The type in SQL, or None if it cannot be written in SQL."""
        return _sql(self)


@lru_cache(maxsize=64)  # bounded, because the names come from clients
def plain(type_id: str) -> LogicalType:
    """The type without parameters called `type_id`. The values are shared."""
    return LogicalType(type_id)


BOOLEAN: Final = plain("BOOLEAN")


def _sql(of: LogicalType) -> str | None:
    if of.alias:
        return None
    if of.id in TYPES_WITHOUT_PARAMETERS:  # other names are never written to SQL
        return of.id
    if of.id == "DECIMAL":
        return f"DECIMAL({of.width:d},{of.scale:d})"
    if of.id == "ENUM" and of.members:
        return f"ENUM({', '.join(text_literal(member) for member in of.members)})"
    return _nested_sql(of)


def _nested_sql(of: LogicalType) -> str | None:
    parts = [part.sql for _, part in of.fields]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    match of.id:
        case "LIST":
            return f"{known[0]}[]"
        case "ARRAY":
            return f"{known[0]}[{of.size:d}]"
        case "MAP":
            return f"MAP({known[0]}, {known[1]})"
        case "STRUCT" if all(name for name, _ in of.fields):
            named = zip(of.fields, known, strict=True)
            return f"STRUCT({', '.join(f'{identifier(name)} {part}' for (name, _), part in named)})"
        case _:
            return None


class Compare(StrEnum):
    """A comparison operator. The value is the operator in SQL."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    DISTINCT = "IS DISTINCT FROM"
    NOT_DISTINCT = "IS NOT DISTINCT FROM"

    @property
    def negated(self) -> Compare:
        """The operator that is true if this one is false, and NULL if this one is NULL."""
        return _NEGATED[self]

    @property
    def flipped(self) -> Compare:
        """The equivalent operator after swapping the sides."""
        return _FLIPPED.get(self, self)


_NEGATED = {
    Compare.EQ: Compare.NE,
    Compare.NE: Compare.EQ,
    Compare.LT: Compare.GE,
    Compare.GE: Compare.LT,
    Compare.GT: Compare.LE,
    Compare.LE: Compare.GT,
    Compare.DISTINCT: Compare.NOT_DISTINCT,
    Compare.NOT_DISTINCT: Compare.DISTINCT,
}
_FLIPPED = {Compare.LT: Compare.GT, Compare.GT: Compare.LT, Compare.LE: Compare.GE, Compare.GE: Compare.LE}


class Interval(_Node, frozen=True):
    """A value of type INTERVAL. It has three parts because a month has no fixed number of days."""

    months: int
    days: int
    micros: int


Value: TypeAlias = bool | int | float | str | bytes | Decimal | UUID | Interval | tuple["Value", ...] | None
"""The value of a constant.

Dates, times and timestamps are integers in the unit of their type, so that infinite values and values outside of Python's
range are exact. HUGEINT and BIGNUM are int, BIT is a string of 0 and 1, ENUM is the name of the member. LIST and ARRAY are
tuples, STRUCT is a tuple in the order of the fields of its type, MAP is a tuple of (key, value) pairs.
"""


class Constant(_Node, frozen=True):
    """A literal. The value None is NULL."""

    value: Value
    type: LogicalType


class ColumnRef(_Node, frozen=True):
    """A column of the scanned table."""

    name: str
    type: LogicalType


class Comparison(_Node, frozen=True):
    """A comparison of two values of the same type."""

    op: Compare
    left: Node
    right: Node


class Conjunction(_Node, frozen=True):
    """Any number of conditions combined with AND or OR."""

    op: Literal["AND", "OR"]
    children: tuple[Node, ...]


class Between(_Node, frozen=True):
    """Whether `input` is between two bounds, each inclusive or exclusive."""

    input: Node
    lower: Node
    upper: Node
    lower_inclusive: bool
    upper_inclusive: bool


class Operator(_Node, frozen=True):
    """NOT, IS NULL, IS NOT NULL, IN, NOT IN, COALESCE, NULLIF or TRY.

    The first child of IN and NOT IN is the value to search, the others are the list.
    """

    op: str
    children: tuple[Node, ...]
    type: LogicalType


class Function(_Node, frozen=True):
    """A function call. `builtin` is False if the function is not one of DuckDB's own."""

    name: str
    children: tuple[Node, ...]
    type: LogicalType
    builtin: bool = True


class Cast(_Node, frozen=True):
    """A cast of `child`. With `try_cast`, it is NULL instead of an error."""

    child: Node
    type: LogicalType
    try_cast: bool = False


class Case(_Node, frozen=True):
    """A CASE expression: the value of the first condition that is true, or `otherwise`."""

    checks: tuple[tuple[Node, Node], ...]
    otherwise: Node
    type: LogicalType


class Unknown(_Node, frozen=True):
    """An unsupported expression. `kind` is its class in the JSON."""

    kind: str


Node: TypeAlias = (
    Between | Case | Cast | ColumnRef | Comparison | Conjunction | Constant | Function | Operator | Unknown
)


class Filter(_Node, frozen=True):
    """The filter of a scan: all `predicates` must be true. It is falsy if there are none."""

    predicates: tuple[Node, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.predicates)

    @property
    def columns(self) -> frozenset[str]:
        """The names of the columns that the filter uses, except in unsupported parts."""
        nodes = (node for predicate in self.predicates for node in walk(predicate))
        return frozenset(node.name for node in nodes if isinstance(node, ColumnRef))


def type_of(node: Node) -> LogicalType | None:
    """The type of a node, or None if it is unknown."""
    match node:
        case Unknown():
            return None
        case Comparison() | Conjunction() | Between():
            return BOOLEAN
        case _:
            return node.type


def walk(node: Node) -> Iterator[Node]:
    """`node` and all its descendants."""
    pending: list[Node] = [node]
    while pending:
        yield (current := pending.pop())
        pending.extend(_children(current))


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Comparison(_, left, right):
            return left, right
        case Conjunction() | Operator() | Function():
            return node.children
        case Between(value, lower, upper):
            return value, lower, upper
        case Cast(child):
            return (child,)
        case Case(checks, otherwise):
            return *(node for check in checks for node in check), otherwise
        case _:
            return ()

"""The parts of a filter: frozen values, compared by what they hold.

    Filter
      └── Node    Comparison, Conjunction, Between, Operator   give BOOLEAN (COALESCE gives any type)
                  ColumnRef, Constant, Function, Cast, Case    give any type
                  Unknown                                      what was sent and is not understood

A filter's predicates hold together (AND). Everything an encoder needs is in the nodes: columns are named, not numbered,
and each value knows its type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from skiway.airport.filters.types import BOOLEAN, LogicalType

__all__ = [
    "Between",
    "Case",
    "Cast",
    "ColumnRef",
    "Compare",
    "Comparison",
    "Conjunction",
    "Constant",
    "Filter",
    "Function",
    "Interval",
    "Node",
    "Operator",
    "Unknown",
    "Value",
    "type_of",
    "walk",
]


class Compare(StrEnum):
    """How a comparison compares; the value is the operator in SQL."""

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
        """The operator that is true where this one is false, and NULL where this one is NULL."""
        return _NEGATED[self]

    @property
    def flipped(self) -> Compare:
        """The operator that says the same with its sides exchanged."""
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


@dataclass(frozen=True, slots=True)
class Interval:
    """A value of type INTERVAL. The three parts are kept apart: a month has no fixed number of days."""

    months: int
    days: int
    micros: int


Value: TypeAlias = bool | int | float | str | bytes | Decimal | UUID | Interval | tuple["Value", ...] | None
"""What a constant holds.

Dates, times and timestamps are the raw count of their type's unit since its start, so that infinite ones and those out
of Python's range stay exact. HUGEINT and BIGNUM are int, BIT is text of 0 and 1, ENUM is the member's name. LIST and
ARRAY are tuples; STRUCT is a tuple in the order of its type's fields; MAP is a tuple of (key, value) pairs.
"""


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value; `value` None is NULL."""

    value: Value
    type: LogicalType


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column of the scanned table."""

    name: str
    type: LogicalType


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values of one type compared."""

    op: Compare
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Any number of conditions under one AND or OR."""

    op: Literal["AND", "OR"]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """`input` within two bounds, each inclusive or not."""

    input: Node
    lower: Node
    upper: Node
    lower_inclusive: bool
    upper_inclusive: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """NOT, IS NULL, IS NOT NULL, IN, NOT IN (the first child is looked for among the others), COALESCE, NULLIF, TRY."""

    op: str
    children: tuple[Node, ...]
    type: LogicalType


@dataclass(frozen=True, slots=True)
class Function:
    """A call. `builtin` is False for one that comes from a catalog other than DuckDB's own."""

    name: str
    children: tuple[Node, ...]
    type: LogicalType
    builtin: bool = True


@dataclass(frozen=True, slots=True)
class Cast:
    """`child` as another type; with `try_cast`, NULL where that fails."""

    child: Node
    type: LogicalType
    try_cast: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """The value beside the first condition that is true, else `otherwise`."""

    checks: tuple[tuple[Node, Node], ...]
    otherwise: Node
    type: LogicalType


@dataclass(frozen=True, slots=True)
class Unknown:
    """An expression that is not understood; `kind` is the class it was sent as."""

    kind: str


Node: TypeAlias = (
    Between | Case | Cast | ColumnRef | Comparison | Conjunction | Constant | Function | Operator | Unknown
)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a scan's rows must satisfy: all of `predicates`. False when there are none."""

    predicates: tuple[Node, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.predicates)

    @property
    def columns(self) -> frozenset[str]:
        """The names of the columns that the understood parts look at."""
        found = (node for predicate in self.predicates for node in walk(predicate))
        return frozenset(node.name for node in found if isinstance(node, ColumnRef))


def type_of(node: Node) -> LogicalType | None:
    """The type of the value `node` gives, None when unknown."""
    match node:
        case Unknown():
            return None
        case Comparison() | Conjunction() | Between():
            return BOOLEAN
        case _:
            return node.type


def walk(node: Node) -> Iterator[Node]:
    """`node` and everything below it."""
    pending: list[Node] = [node]
    while pending:
        yield (here := pending.pop())
        pending.extend(_children(here))


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

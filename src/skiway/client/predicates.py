"""Predicates over columns, written in Python: `(col("age") > 30) & ~col("name").is_null()`.

They are plain values. `filter_json` says them in DuckDB's words for the server, `masks` applies them to the rows that
come back, since a server may always send more rows than asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from skiway.errors import InvalidArgument

__all__ = ["And", "Between", "Column", "Comparison", "In", "IsNull", "Not", "Op", "Or", "Predicate", "col"]


class Op(enum.Enum):
    """A comparison, by DuckDB's name for it."""

    EQUAL = "COMPARE_EQUAL"
    NOT_EQUAL = "COMPARE_NOTEQUAL"
    LESS = "COMPARE_LESSTHAN"
    GREATER = "COMPARE_GREATERTHAN"
    LESS_OR_EQUAL = "COMPARE_LESSTHANOREQUALTO"
    GREATER_OR_EQUAL = "COMPARE_GREATERTHANOREQUALTO"


OPPOSITE: Final = {
    Op.EQUAL: Op.NOT_EQUAL,
    Op.NOT_EQUAL: Op.EQUAL,
    Op.LESS: Op.GREATER_OR_EQUAL,
    Op.GREATER: Op.LESS_OR_EQUAL,
    Op.LESS_OR_EQUAL: Op.GREATER,
    Op.GREATER_OR_EQUAL: Op.LESS,
}


class Predicate:
    """Something that is true, false or NULL of a row; only rows where it is true are kept."""

    __slots__ = ()

    def __and__(self, other: Predicate) -> Predicate:
        return And((*_parts(self, And), *_parts(other, And)))

    def __or__(self, other: Predicate) -> Predicate:
        return Or((*_parts(self, Or), *_parts(other, Or)))

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> bool:
        raise InvalidArgument(
            "a predicate has no truth value of its own: write &, | and ~, with parentheses around each part"
        )

    def columns(self) -> Iterator[str]:
        """The columns it looks at, in the order written; one may come again."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Column(Predicate):
    """A column. Compared with a value it is a predicate; alone it is one if it is BOOLEAN."""

    name: str

    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]
        return _compared(self, Op.EQUAL, value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]
        return _compared(self, Op.NOT_EQUAL, value)

    def __lt__(self, value: Any) -> Predicate:
        return _compared(self, Op.LESS, value)

    def __gt__(self, value: Any) -> Predicate:
        return _compared(self, Op.GREATER, value)

    def __le__(self, value: Any) -> Predicate:
        return _compared(self, Op.LESS_OR_EQUAL, value)

    def __ge__(self, value: Any) -> Predicate:
        return _compared(self, Op.GREATER_OR_EQUAL, value)

    __hash__ = None  # type: ignore[assignment]

    def between(self, low: Any, high: Any) -> Predicate:
        """From `low` to `high`, both included."""
        return Between(self.name, _value(self.name, low), _value(self.name, high))

    def isin(self, values: Iterable[Any]) -> Predicate:
        """Equal to one of `values`, of which there must be at least one."""
        given = tuple(_value(self.name, value) for value in values)
        if not given:
            raise InvalidArgument(f"col({self.name!r}).isin() needs at least one value: nothing is in an empty list")
        return In(self.name, given)

    def is_null(self) -> Predicate:
        """NULL; for the opposite write `~col(…).is_null()`."""
        return IsNull(self.name)

    def columns(self) -> Iterator[str]:
        """Itself."""
        yield self.name


def col(name: str) -> Column:
    """The column called `name`; `rowid` is the row id of a table that has one."""
    return Column(name)


@dataclass(frozen=True, slots=True)
class Comparison(Predicate):
    """A column beside a value."""

    op: Op
    column: str
    value: Any

    def __invert__(self) -> Predicate:
        return Comparison(OPPOSITE[self.op], self.column, self.value)

    def columns(self) -> Iterator[str]:
        """The one column."""
        yield self.column


@dataclass(frozen=True, slots=True)
class Between(Predicate):
    """A column between two values, both included."""

    column: str
    low: Any
    high: Any

    def __invert__(self) -> Predicate:
        return Not(
            And(
                (
                    Comparison(Op.GREATER_OR_EQUAL, self.column, self.low),
                    Comparison(Op.LESS_OR_EQUAL, self.column, self.high),
                )
            )
        )

    def columns(self) -> Iterator[str]:
        """The one column."""
        yield self.column


@dataclass(frozen=True, slots=True)
class In(Predicate):
    """A column among values, or not among them."""

    column: str
    values: tuple[Any, ...]
    negated: bool = False

    def __invert__(self) -> Predicate:
        return In(self.column, self.values, not self.negated)

    def columns(self) -> Iterator[str]:
        """The one column."""
        yield self.column


@dataclass(frozen=True, slots=True)
class IsNull(Predicate):
    """A column that is NULL, or is not."""

    column: str
    negated: bool = False

    def __invert__(self) -> Predicate:
        return IsNull(self.column, not self.negated)

    def columns(self) -> Iterator[str]:
        """The one column."""
        yield self.column


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """The opposite; that of NULL is NULL."""

    part: Predicate

    def __invert__(self) -> Predicate:
        return self.part

    def columns(self) -> Iterator[str]:
        """Those of the part."""
        return self.part.columns()


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """All of the parts."""

    parts: tuple[Predicate, ...]

    def columns(self) -> Iterator[str]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.columns()


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """At least one of the parts."""

    parts: tuple[Predicate, ...]

    def columns(self) -> Iterator[str]:
        """Those of all parts."""
        for part in self.parts:
            yield from part.columns()


def _parts(predicate: Predicate, kind: type[And] | type[Or]) -> tuple[Predicate, ...]:
    if not isinstance(predicate, Predicate):
        raise InvalidArgument(f"&, | and ~ join predicates, not {predicate!r}: put parentheses around each comparison")
    return predicate.parts if isinstance(predicate, kind) else (predicate,)


def _compared(column: Column, op: Op, value: object) -> Predicate:
    return Comparison(op, column.name, _value(column.name, value))


def _value(column: str, value: object) -> object:
    if value is None:
        raise InvalidArgument(f"nothing equals NULL: write col({column!r}).is_null(), or ~col({column!r}).is_null()")
    if isinstance(value, Predicate):
        raise InvalidArgument(f"col({column!r}) can be compared with values only, not with another column")
    return value

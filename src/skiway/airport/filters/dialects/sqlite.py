"""Conditions for SQLite, with its database in UTF-8. Dates, decimals and UUIDs have no type of their own there."""

from __future__ import annotations

import math
from typing import Final

from sqlglot import exp

from skiway.airport.filters.dialects.writer import Pattern, Writer, number, operation, string
from skiway.airport.filters.logic import AnyPart, Inexpressible
from skiway.airport.filters.nodes import Compare, Value
from skiway.airport.filters.types import INTEGER_RANGES, LogicalType

__all__ = ["SQLiteWriter"]

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
                return _text(value)
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
            return operation(Compare.EQ, column, _text(prefix))
        collated = exp.Collate(this=column, expression=self.collation.copy())
        conditions = []
        if prefix:
            conditions.append(operation(Compare.GE, collated, _text(prefix)))
            if end := _after_all_with(prefix):
                conditions.append(operation(Compare.LT, collated, _text(end)))
        for part in filter(None, parts):
            position = exp.Anonymous(this="INSTR", expressions=[column, _text(part)])
            conditions.append(operation(Compare.GT, position, number(0)))
        return exp.and_(*conditions) if conditions else exp.Not(this=exp.Is(this=column, expression=exp.null()))


def _text(value: str) -> exp.Expr:
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

"""Conditions for databases with standard SQL, as far as they agree about their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from sqlglot import exp

from skiway.airport.filters.dialects.writer import Pattern, Writer, cast, number, string
from skiway.airport.filters.logic import AnyPart, Inexpressible
from skiway.airport.filters.nodes import Compare, Node, Value
from skiway.airport.filters.times import date_text
from skiway.airport.filters.types import LogicalType

__all__ = ["GenericWriter"]

_LARGEST: Final = 10**18  # of an integer
_DIGITS: Final = 15  # of a decimal, so that even a database that reads it as a binary number finds equal ones
_GREGORIAN: Final = "1583"  # the first year with one calendar everywhere


class GenericWriter(Writer):
    """Writes conditions in standard SQL. Boolean and floating-point columns, times and bytes are left out."""

    dialect = ""
    comparable = frozenset({"INTEGER", "DATE"})
    has_booleans = False

    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A literal that most databases read in the same way."""
        match of.id, value:
            case _, int() if of.is_integer and abs(value) < _LARGEST:
                return number(value)
            case "DECIMAL", Decimal() if of.width <= _DIGITS:
                return number(value)
            case "VARCHAR", str():
                return _text(value)
            case "DATE", int():
                text = date_text(value)
                return cast(text if text and text >= _GREGORIAN else None, "date")
            case _:
                raise Inexpressible

    def compared(self, op: Compare, column: exp.Expr, of: LogicalType, value: Value) -> exp.Expr:
        """A comparison with a constant. Texts that a database takes as equal, or orders, may differ in DuckDB."""
        if of.id == "VARCHAR" and op is not Compare.EQ:
            raise Inexpressible
        return super().compared(op, column, of, value)

    def membership(self, node: Node, members: Sequence[Node], *, negated: bool) -> exp.Expr:
        """IN, and NOT IN except for texts."""
        if negated and self.column(node)[1].id == "VARCHAR":
            raise Inexpressible
        return super().membership(node, members, negated=negated)

    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """LIKE without an escape character: `%` and `_` themselves match any character."""
        wide = "".join(part.value if isinstance(part, AnyPart) else "_" if part in "%_" else part for part in pattern)
        if negated or "[" in wide:  # a class of characters in some databases
            raise Inexpressible
        return exp.Like(this=column, expression=_text(wide))


def _text(value: str) -> exp.Expr:
    if not value.isascii() or not value.isprintable() or "\\" in value:
        raise Inexpressible
    return string(value)

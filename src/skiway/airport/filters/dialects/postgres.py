"""Conditions for PostgreSQL, with its database in UTF-8. It orders NaN, bytes and UUIDs like DuckDB."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final
from uuid import UUID

from sqlglot import exp

from skiway.airport.filters.dialects.writer import Pattern, Writer, cast, number, string
from skiway.airport.filters.logic import AnyPart, Inexpressible
from skiway.airport.filters.nodes import Value
from skiway.airport.filters.times import date_text, time_text, timestamp_text
from skiway.airport.filters.types import LogicalType

__all__ = ["PostgresWriter"]

_ESCAPE: Final = "!"  # not a backslash, which depends on a setting


class PostgresWriter(Writer):
    """Writes conditions for PostgreSQL."""

    dialect = "postgres"
    comparable = frozenset(
        {"INTEGER", "DECIMAL", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "BOOLEAN", "DATE", "TIME", "TIMESTAMP", "UUID"}
        | {"TIMESTAMP WITH TIME ZONE"}
    )
    collation = exp.to_identifier("C", quoted=True)

    def literal(self, value: Value, of: LogicalType) -> exp.Expr:
        """A literal that PostgreSQL reads with the type of the column."""
        match of.id, value:
            case "BOOLEAN", bool():
                return exp.true() if value else exp.false()
            case _, int() if of.is_integer:
                return number(value)
            case "DECIMAL", Decimal():
                return number(value)
            case "FLOAT" | "DOUBLE", float():
                return cast(_float_text(value), "double")
            case "VARCHAR", str():
                return _text(value)
            case "BLOB", bytes():
                return exp.Anonymous(this="DECODE", expressions=[string(value.hex()), string("hex")])
            case "DATE", int():
                return cast(date_text(value), "date")
            case "TIME", int():
                return cast(time_text(value), "time")
            case "TIMESTAMP", int():
                return cast(timestamp_text(value), "timestamp")
            case "TIMESTAMP WITH TIME ZONE", int():
                text = timestamp_text(value)
                return cast(text and f"{text}+00", "timestamptz")
            case "UUID", UUID():
                return cast(str(value), "uuid")
            case _:
                raise Inexpressible

    def like(self, column: exp.Expr, pattern: Pattern, *, negated: bool) -> exp.Expr:
        """LIKE, which is exact with the binary collation."""
        escaped = "".join(
            part.value if isinstance(part, AnyPart) else f"{_ESCAPE}{part}" if part in f"%_{_ESCAPE}" else part
            for part in pattern
        )
        collated = exp.Collate(this=column, expression=self.collation.copy())
        matches = exp.Escape(this=exp.Like(this=collated, expression=_text(escaped)), expression=string(_ESCAPE))
        return exp.Not(this=matches) if negated else matches


def _text(value: str) -> exp.Expr:
    if "\0" in value or "\\" in value:
        raise Inexpressible
    return string(value)


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN" if math.isnan(value) else repr(value)

"""Bounds of columns: stored as canonical text per type, and compared as values, never as text."""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["Bound", "LogicalType", "bound", "logical_type"]

ALIASES = {
    "INT": "INTEGER BIGINT LONG SMALLINT TINYINT INT2 INT4 INT8 UINT2 UINT4 UINT8",
    "FLOAT": "REAL FLOAT4 FLOAT32",
    "DOUBLE": "FLOAT8 FLOAT64 DOUBLE_PRECISION",
    "STRING": "VARCHAR CHAR CHARACTER TEXT NVARCHAR",
    "BINARY": "VARBINARY BYTEA BLOB",
    "BOOLEAN": "BOOL BIT",
    "DECIMAL": "NUMERIC",
    "TIMESTAMPTZ": "TIMESTAMP_WITH_TIME_ZONE",
    "TIMESTAMP": "DATETIME",
    "JSON": "JSONB",
}
UNORDERED = frozenset(("INTERVAL", "JSON", "ARRAY", "MAP", "STRUCT", "VARIANT"))
ORDERED = frozenset(
    (
        "BOOLEAN",
        "INT",
        "FLOAT",
        "DOUBLE",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "STRING",
        "BINARY",
        "UUID",
        "DECIMAL",
    )
)
CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases.split()}
PATTERN = re.compile(r"\s*([A-Za-z][A-Za-z0-9_ ]*?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(?:<.*>)?\s*", re.DOTALL)
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A type by its canonical name, with its precision if it has one."""

    name: str
    precision: int | None = None

    @property
    def ordered(self) -> bool:
        """Whether values of the type have bounds."""
        return self.name in ORDERED


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound as canonical text, and as a value for comparison; None if it cannot be compared."""

    text: str
    value: Any


def logical_type(text: str) -> LogicalType:
    """The type that `text` names. Raise `ValueError` if it is unknown.

    >>> logical_type("numeric(10, 2)")
    LogicalType(name='DECIMAL', precision=10)
    """
    found = PATTERN.fullmatch(text)
    name = "_".join(found[1].upper().split()) if found else ""
    name = CANONICAL.get(name, name)
    if found is None or name not in ORDERED | UNORDERED:
        raise ValueError(f"unknown type {text!r}")
    precision, scale = (None if digits is None else int(digits) for digits in (found[2], found[3]))
    if name == "DECIMAL" and precision is not None and not 0 <= (scale or 0) <= precision >= 1:
        raise ValueError(f"{text!r} has a scale greater than its precision")
    if name.startswith("TIME") and precision is not None and precision > 6:
        raise ValueError(f"{text!r} is finer than microseconds")
    return LogicalType(name, precision)


def bound(kind: LogicalType, text: str) -> Bound:
    """The bound `text` of a column of this type. Raise `ValueError` if it is invalid.

    >>> bound(logical_type("decimal(9,2)"), "-1.50").text
    '-1.5'
    """
    return READERS[kind.name](text, kind.precision)


def _boolean(text: str, _: int | None) -> Bound:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return Bound(lowered, lowered == "true")


def _int(text: str, _: int | None) -> Bound:
    return Bound(str(int(text)), int(text))


def _float(text: str, _: int | None) -> Bound:
    value = float(text) + 0.0  # -0.0 becomes 0.0
    if math.isnan(value):
        return Bound("NaN", None)
    if math.isinf(value):
        return Bound("Infinity" if value > 0 else "-Infinity", value)
    return Bound(repr(value), value)


def _decimal(text: str, _: int | None) -> Bound:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("it is not a decimal number") from None
    if not value.is_finite():
        raise ValueError("it is not finite")
    plain = format(value, "f")
    canonical = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return Bound("0" if value == 0 else canonical, value)


def _date(text: str, _: int | None) -> Bound:
    days = re.fullmatch(r"\s*(-?\d{1,7})\s*", text)
    value = EPOCH + timedelta(days=int(days[1])) if days else date.fromisoformat(text.strip())
    return Bound(value.isoformat(), value)


def _time(text: str, precision: int | None) -> Bound:
    value = time.fromisoformat(_iso(text, ":"))
    if value.tzinfo is not None:
        raise ValueError("it is a time with a time zone")
    return Bound(_fraction(value.replace(microsecond=0).isoformat(), value.microsecond, precision), value)


def _timestamp(text: str, precision: int | None) -> Bound:
    value = datetime.fromisoformat(_iso(text, "-"))
    if value.tzinfo is not None:
        raise ValueError("it has a time zone, but the column does not")
    return Bound(_fraction(value.replace(microsecond=0).isoformat(), value.microsecond, precision), value)


def _timestamptz(text: str, precision: int | None) -> Bound:
    value = datetime.fromisoformat(_iso(text, "-"))
    if value.tzinfo is None:
        raise ValueError("it has no time zone, but the column does")
    utc = (value - (value.utcoffset() or timedelta())).replace(tzinfo=None)
    return Bound(_fraction(utc.replace(microsecond=0).isoformat(), utc.microsecond, precision) + "Z", utc)


def _string(text: str, _: int | None) -> Bound:
    return Bound(text, text)


def _binary(text: str, _: int | None) -> Bound:
    try:
        return Bound(text, base64.b64decode(text, validate=True))
    except binascii.Error:
        raise ValueError("it is not Base64") from None


def _uuid(text: str, _: int | None) -> Bound:
    value = uuid.UUID(text.strip())
    return Bound(str(value), value.bytes)


def _iso(text: str, mark: str) -> str:
    """`text` without surrounding white space. Raise if it is a bare number, whose unit would be a guess."""
    if mark not in text:
        raise ValueError("it is not in ISO 8601 format")
    return text.strip()


def _fraction(whole: str, micros: int, precision: int | None) -> str:
    digits = f"{micros:06d}"
    if precision is not None:
        return f"{whole}.{digits[:precision]}" if precision else whole
    return f"{whole}.{digits}" if micros else whole


READERS: dict[str, Callable[[str, int | None], Bound]] = {
    "BOOLEAN": _boolean,
    "INT": _int,
    "FLOAT": _float,
    "DOUBLE": _float,
    "DECIMAL": _decimal,
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "TIMESTAMPTZ": _timestamptz,
    "STRING": _string,
    "BINARY": _binary,
    "UUID": _uuid,
}

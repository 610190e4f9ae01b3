"""Constants as SQL that DuckDB reads back as the same value of the same type."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from skiway.airport.filters.logic import Unsaid
from skiway.airport.filters.nodes import Constant, Interval, Value
from skiway.airport.filters.types import LogicalType
from skiway.airport.wire.duckdb_sql import blob_literal, text_literal

__all__ = ["literal"]

# The count that means infinity, in DATE and in every TIMESTAMP.
_INFINITE_DATE: Final = (1 << 31) - 1
_INFINITE_TIMESTAMP: Final = (1 << 63) - 1

_EPOCH: Final = date(1970, 1, 1)
_FIRST_DAY: Final = (date.min - _EPOCH).days
_LAST_DAY: Final = (date.max - _EPOCH).days

_PER_SECOND: Final = {"TIMESTAMP_S": 1, "TIMESTAMP_MS": 10**3, "TIMESTAMP_NS": 10**9}
_MICROS: Final = 10**6


def literal(constant: Constant, *, bare: bool = False) -> str:
    """`constant` in SQL; `bare` leaves an integer without its type. Raises `Unsaid` where no text says it exactly."""
    value, of = constant.value, constant.type
    if of.id == "VARCHAR" and isinstance(value, str):  # also where it has another name, such as JSON
        return text_literal(value)
    if of.sql is None:
        raise Unsaid
    if value is None:
        return f"CAST(NULL AS {of.sql})"
    if of.fields:
        return f"CAST({_nested(value, of)} AS {of.sql})"
    if bare and of.is_integer:
        return str(value)
    return _scalar(value, of)


def _scalar(value: Value, of: LogicalType) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case bytes():
            return blob_literal(value)
        case int() if of.id == "DATE":
            return _date(value)
        case int() if of.id.startswith("TIMESTAMP"):
            return _timestamp(value, of)
        case int() if of.id == "TIME":
            return f"'{_clock(value, _MICROS)}'::TIME"
        case int() if of.id == "TIME_NS":
            return f"'{_clock(value, 10**9)}'::TIME_NS"
        case int() | float() | UUID() if of.id != "TIME WITH TIME ZONE":
            return f"'{value}'::{of.sql}"
        case Decimal():
            return f"'{value:f}'::{of.sql}"
        case str():
            return f"{text_literal(value)}::{of.sql}"
        case Interval():
            return _interval(value)
        case _:
            raise Unsaid  # the text of a TIME WITH TIME ZONE loses the seconds of its offset


def _nested(value: Value, of: LogicalType) -> str:
    assert isinstance(value, tuple)
    if of.id == "STRUCT":
        named = zip(of.fields, value, strict=True)
        return f"{{{', '.join([f'{text_literal(name)}: {_part(part, kind)}' for (name, kind), part in named])}}}"
    if of.id == "MAP":
        return f"MAP {{{', '.join([_entry(entry, of) for entry in value])}}}"
    return f"[{', '.join([_part(part, of.element) for part in value])}]"


def _entry(entry: Value, of: LogicalType) -> str:
    assert isinstance(entry, tuple)
    (_, keys), (_, values) = of.fields
    return f"{_part(entry[0], keys)}: {_part(entry[1], values)}"


def _part(value: Value, of: LogicalType) -> str:
    return literal(Constant(value, of))


def _date(days: int) -> str:
    if abs(days) == _INFINITE_DATE:
        return f"'{_infinity(days)}'::DATE"
    if _FIRST_DAY <= days <= _LAST_DAY:
        return f"'{_EPOCH + timedelta(days=days)}'::DATE"
    return f"('1970-01-01'::DATE + ({days}))"


def _timestamp(count: int, of: LogicalType) -> str:
    if abs(count) == _INFINITE_TIMESTAMP:
        return f"'{_infinity(count)}'::{of.sql}"
    if of.id == "TIMESTAMP_NS":
        return f"make_timestamp_ns({count})"
    micros = count * (_MICROS // _PER_SECOND.get(of.id, _MICROS))
    if abs(micros) >= _INFINITE_TIMESTAMP:
        raise Unsaid
    days, rest = divmod(micros, 86400 * _MICROS)
    zoned = of.id == "TIMESTAMP WITH TIME ZONE"
    if _FIRST_DAY <= days <= _LAST_DAY:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(days=days, microseconds=rest)
        return f"'{moment.replace(tzinfo=None)}{'+00' if zoned else ''}'::{of.sql}"
    return f"CAST(make_timestamp{'tz' if zoned else ''}({micros}) AS {of.sql})"


def _infinity(count: int) -> str:
    return "infinity" if count > 0 else "-infinity"


def _clock(count: int, per_second: int) -> str:
    seconds, fraction = divmod(count, per_second)
    digits = len(str(per_second)) - 1
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"


def _interval(value: Interval) -> str:
    if value.micros == -_INFINITE_TIMESTAMP - 1:
        raise Unsaid  # DuckDB reads the digits before the sign
    return f"'{value.months} months {value.days} days {value.micros} microseconds'::INTERVAL"

"""Bounds of columns, stored as canonical text per type and compared as values, and the validation of statistics."""

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
from itertools import pairwise
from typing import Any

from skiway.errors import InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.model import v1

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


def check_table(stats: v1.TableStats) -> None:
    """Raise unless the statistics of a table are plausible."""
    for field in ("row_count", "data_file_count", "total_size_bytes"):
        _natural("the table", field, getattr(stats, field))
    _check_ndv("the table", stats.ndv, most=stats.row_count)


def check_file(stats: v1.FileColumnStats) -> None:
    """Raise unless the statistics of a file and its columns are plausible.

    Bounds are converted to their canonical text.
    """
    if not stats.file_path.strip():
        raise failure(InvalidArgument, "field", field="file_path")
    target = f"file {stats.file_path}"
    for field in ("row_count", "size_bytes"):
        _natural(target, field, getattr(stats, field))
    for column in stats.columns:
        check_column(column, of=f" of {target}")


def check_column(stats: v1.ColumnStats, *, of: str = "") -> None:
    """Raise unless the statistics of a column are plausible. Bounds are converted to their canonical text."""
    target = f"column {stats.column_name or stats.column_id}{of}"
    if stats.column_id < 1:
        raise _wrong(target, "column_id", stats.column_id, "use a number from 1 on")
    _natural(target, "value_count", stats.value_count)
    for field in ("null_count", "nan_count"):
        _natural(target, field, getattr(stats, field))
        if getattr(stats, field) > stats.value_count:
            raise _wrong(target, field, getattr(stats, field), f"it cannot exceed value_count, {stats.value_count}")
    _check_ndv(target, stats.ndv, most=stats.value_count)
    _check_bounds(target, stats)


def _check_bounds(target: str, stats: v1.ColumnStats) -> None:
    """Check the bounds. Without a type they stay as they are, because they cannot be compared."""
    if not stats.logical_type.strip():
        return
    kind = _type(target, stats.logical_type)
    given = [field for field in ("min", "max") if stats.HasField(field)]
    if not kind.ordered and (given or stats.HasField("histogram")):
        raise _wrong(target, (given or ["histogram"])[0], "given", f"{kind.name} has no order: leave it out")
    found = {}
    for field in given:
        found[field] = _bound(target, field, kind, getattr(stats, field))
        setattr(stats, field, found[field].text)
    if len(found) == 2:
        _ordered(target, "min", found["min"], found["max"])
    if stats.HasField("histogram"):
        _check_histogram(target, kind, stats)


def _check_histogram(target: str, kind: LogicalType, stats: v1.ColumnStats) -> None:
    histogram = stats.histogram
    if len(histogram.bounds) != len(histogram.counts) + 1 or not histogram.counts:
        sizes = f"{len(histogram.bounds)} bounds for {len(histogram.counts)} buckets"
        raise _wrong(target, "histogram", sizes, "use at least one bucket, and one bound more than buckets")
    for count in histogram.counts:
        _natural(target, "histogram", count)
    if sum(histogram.counts) > stats.value_count:
        wanted = f"its counts cannot exceed value_count, {stats.value_count}"
        raise _wrong(target, "histogram", sum(histogram.counts), wanted)
    found = [_bound(target, "histogram", kind, text) for text in histogram.bounds]
    for lower, upper in pairwise(found):
        _ordered(target, "histogram", lower, upper)
    histogram.bounds[:] = [each.text for each in found]


def _check_ndv(target: str, ndv: v1.Ndv, *, most: int) -> None:
    match ndv.WhichOneof("mode"):
        case "exact":
            _natural(target, "ndv", ndv.exact)
            if ndv.exact > most:
                raise _wrong(target, "ndv", ndv.exact, f"there are only {most} values")
        case "approx":
            _check_approx(target, ndv.approx)


def _check_approx(target: str, approx: v1.NdvApprox) -> None:
    for field in ("estimate", "relative_standard_error", "confidence_lower", "confidence_upper", "confidence_level"):
        value = getattr(approx, field)
        if not math.isfinite(value) or value < 0:
            raise _wrong(target, f"ndv.{field}", value, "use a finite number from 0 on")
    if approx.HasField("confidence_lower") and approx.confidence_lower > approx.estimate:
        raise _wrong(target, "ndv.confidence_lower", approx.confidence_lower, "it cannot exceed the estimate")
    if approx.HasField("confidence_upper") and approx.confidence_upper < approx.estimate:
        raise _wrong(target, "ndv.confidence_upper", approx.confidence_upper, "it cannot be below the estimate")
    if approx.confidence_level > 1:
        raise _wrong(target, "ndv.confidence_level", approx.confidence_level, "use a number from 0 to 1")
    for field in ("rows_seen", "rows_total"):
        _natural(target, f"ndv.{field}", getattr(approx, field))
    if approx.HasField("rows_total") and approx.rows_seen > approx.rows_total:
        raise _wrong(target, "ndv.rows_seen", approx.rows_seen, f"it cannot exceed rows_total, {approx.rows_total}")


def _type(target: str, text: str) -> LogicalType:
    try:
        return logical_type(text)
    except ValueError as error:
        raise _wrong(target, "logical_type", text, f"{error}: use one such as INT, STRING or DECIMAL(10,2)") from None


def _bound(target: str, field: str, kind: LogicalType, text: str) -> Bound:
    try:
        return bound(kind, text)
    except (ValueError, OverflowError) as error:
        raise _wrong(target, field, repr(text), f"it cannot be read as {kind.name}: {error}") from None


def _ordered(target: str, field: str, lower: Bound, upper: Bound) -> None:
    if lower.value is not None and upper.value is not None and lower.value > upper.value:
        raise _wrong(target, field, lower.text, f"it cannot exceed {upper.text}")


def _natural(target: str, field: str, value: int) -> None:
    if value < 0:
        raise _wrong(target, field, value, "use a number from 0 on")


def _wrong(target: str, field: str, found: object, wanted: str) -> InvalidArgument:
    return failure(InvalidArgument, "stats.invalid", target=target, field=field, found=str(found), wanted=wanted)

"""Validation of statistics. Planners rely on them, so statistics that cannot be true are rejected."""

from __future__ import annotations

import math
from itertools import pairwise

from skiway.errors import InvalidArgument
from skiway.metastore.records.errors import failure
from skiway.metastore.statistics.bounds import Bound, LogicalType, bound, logical_type
from skiway.model import v1

__all__ = ["check_column", "check_file", "check_table"]


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
    """Check the bounds. Without a type they stay as they are, because nobody can compare them."""
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

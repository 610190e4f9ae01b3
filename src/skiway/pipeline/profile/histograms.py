"""Histograms and quantiles of a column, as the metastore stores them: numbers of sketches become values of the column, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.pipeline.profile.sketches import Distribution
from skiway.pipeline.profile.values import storage_type_of, texts

__all__ = ["are_rounded", "is_bound", "numbers_as_text", "put_histogram"]

_MAX_INT64: Final = 2**63 - 1  # not representable as a double, which rounds it up


def numbers_as_text(numbers: Sequence[float], column: pa.DataType) -> list[Any]:
    """Format numbers of a KLL sketch as values of a column of this type."""
    of = pa.decimal128(20, 0) if column == pa.uint64() else storage_type_of(column)
    if pa.types.is_floating(of):
        values = pa.array(numbers, pa.float64()).cast(of)
    elif pa.types.is_decimal(of):
        values = _decimals(numbers, of)
    else:
        values = _temporal(pa.array([min(round(number), _MAX_INT64) for number in numbers], pa.int64()), of)
    found: list[Any] = texts(values, column).to_pylist()
    return found


def are_rounded(numbers: Distribution, column: pa.DataType) -> bool:
    """May the numbers differ from the values of a column of this type? Sketches have doubles, and texts have microseconds."""
    of = pa.decimal128(20, 0) if column == pa.uint64() else storage_type_of(column)
    if pa.types.is_floating(of):
        return False
    if pa.types.is_decimal(of):
        # The nearest double of a larger number can be that of its neighbor.
        return bool(max(map(abs, numbers.bounds)) * 10.0**of.scale >= 2**52)
    is_fine = (pa.types.is_timestamp(of) or pa.types.is_time(of)) and of.unit == "ns"
    in_between = (*numbers.bounds, *numbers.quantiles.values())
    return max(map(abs, numbers.bounds)) >= 2**53 or (is_fine and any(number % 1000 for number in in_between))


def is_bound(kind: str, text: str) -> bool:
    """Can the metastore store this bound? It has no years before 1 or after 9999."""
    try:
        bound(logical_type(kind), text)
    except (ValueError, OverflowError):
        return False
    return True


def put_histogram(stats: v1.ColumnStats, numbers: Sequence[int], bounds_as_text: Sequence[str]) -> None:
    """Set the histogram; buckets with the same bounds as text are merged, and bounds are clipped to min and max."""
    kind = logical_type(stats.logical_type)
    least, most = bound(kind, stats.min), bound(kind, stats.max)
    bounds, counts = [stats.min], [0]
    for text, number in zip(bounds_as_text[1:], numbers, strict=True):
        counts[-1] += number
        if least.value < bound(kind, text).value < most.value and text != bounds[-1]:
            bounds.append(text)
            counts.append(0)
    if counts[-1] == 0 and len(counts) > 1:
        counts.pop()
        bounds.pop()
    stats.histogram.CopyFrom(v1.Histogram(bounds=[*bounds, stats.max], counts=counts))


def _decimals(numbers: Sequence[float], of: pa.DataType) -> pa.Array:
    from decimal import Decimal, localcontext

    with localcontext(prec=of.precision + of.scale + 20):
        return pa.array([Decimal(number).quantize(Decimal(1).scaleb(-of.scale)) for number in numbers], of)


def _temporal(numbers: pa.Array, of: pa.DataType) -> pa.Array:
    """Convert numbers of microseconds, nanoseconds or days to dates, times and timestamps."""
    if pa.types.is_timestamp(of) and of.unit != "ns":
        return numbers.cast(pa.timestamp("us", tz=of.tz)).cast(of, safe=False)
    if pa.types.is_time(of) and of.unit != "ns":
        return numbers.cast(pa.time64("us")).cast(of, safe=False)
    return numbers.cast(pa.int32()).cast(of) if pa.types.is_date32(of) else numbers.cast(of)

"""Sketches of files, merged: theta for distinct values, KLL for histograms and quantiles.

Histograms and quantiles are stored as values of the column, as text. Theta sketches are also written as Puffin files, where
engines look for
the number of distinct values of an Iceberg column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from struct import unpack_from
from typing import Any, Final

import datasketches
import numpy as np
import pyarrow as pa

from skiway.formats import TableSchema
from skiway.formats.iceberg.deletes import Blob, Puffin, puffin_file
from skiway.formats.schemas import leaves
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.spark_jobs.profile.values import storage_type_of, texts, value_kind

THETA: Final = "apache-datasketches-theta-v1"
"""Iceberg's name for these sketches."""

CONFIDENCE: Final = 0.954
"""The confidence level of the bounds of an estimate: two standard deviations."""

_MAX_VALUES: Final = 1 << 16  # per level of all KLL sketches together


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """The number of distinct values; `exact` if it was counted rather than estimated.

    `sketch` is the merged theta sketch; b"" if there is none.
    """

    estimate: float
    lower: float
    upper: float
    error: float
    exact: bool
    sketch: bytes


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of `count` numbers: `counts[i]` of them lie between `bounds[i]` and `bounds[i + 1]`."""

    count: int
    bounds: Sequence[float]
    counts: Sequence[int]
    quantiles: dict[float, float]
    rank_error: float
    exact: bool


def union(sketches: Iterable[bytes], *, lg_k: int = 12) -> bytes:
    """Merge theta sketches into one."""
    return bytes(_merged(sketches, lg_k).serialize())


def distinct_count(sketches: Iterable[bytes], *, lg_k: int = 12, has_empty: bool = False) -> DistinctCount:
    """The number of distinct values in all sketches together.

    Sketches do not contain the empty string, as in Iceberg, and neither empty bytes. With `has_empty`, it is one value more.
    """
    sketch, empty = _merged(sketches, lg_k), int(has_empty)
    estimate = sketch.get_estimate() + empty
    width = sketch.get_upper_bound(1) - sketch.get_lower_bound(1)
    return DistinctCount(
        estimate=estimate,
        lower=sketch.get_lower_bound(2) + empty,
        upper=sketch.get_upper_bound(2) + empty,
        error=width / 2 / estimate if estimate else 0.0,
        exact=not sketch.is_estimation_mode(),
        sketch=bytes(sketch.serialize()),
    )


def estimate(sketch: bytes) -> float:
    """The estimated number of distinct values of a theta sketch."""
    return float(datasketches.compact_theta_sketch.deserialize(sketch).get_estimate())


def combined_count(parts: Sequence[DistinctCount]) -> DistinctCount:
    """Combine counts whose sketches cannot be merged: at least the largest, at most the sum."""
    return DistinctCount(
        estimate=max((part.estimate for part in parts), default=0.0),
        lower=max((part.lower for part in parts), default=0.0),
        upper=sum(part.upper for part in parts),
        error=max((part.error for part in parts), default=0.0),
        exact=not parts,
        sketch=b"",
    )


def _merged(sketches: Iterable[bytes], lg_k: int) -> Any:
    everything = datasketches.theta_union(lg_k)
    for sketch in sketches:
        everything.update(datasketches.compact_theta_sketch.deserialize(sketch))
    return everything.get_result()


def distribution(sketches: Iterable[bytes], *, buckets: int, ranks: Sequence[float]) -> Distribution | None:
    """The distribution of the numbers in all KLL sketches, in buckets of about equal counts; None if there are none.

    The sketches are not merged into one sketch, which would be randomized. Instead all retained values are used, so the
    result is deterministic and no rank has a larger error than in the worst of the sketches.
    """
    retained = _RetainedValues()
    for sketch in sketches:
        retained.add(sketch)
    if not retained.values:
        return None
    numbers = retained.numbers()
    least, most = min(retained.least), max(retained.most)
    inner = [numbers.quantile(place / buckets) for place in range(1, buckets)]
    bounds = sorted({least, most, *inner})
    edges = [0, *map(numbers.count_up_to, bounds[1:-1]), numbers.total]
    return Distribution(
        count=numbers.total,
        bounds=bounds if len(bounds) > 1 else bounds * 2,
        counts=np.diff(edges).tolist(),
        quantiles={rank: numbers.quantile(rank) for rank in ranks},
        rank_error=datasketches.kll_doubles_sketch(min(retained.k)).normalized_rank_error(False),
        exact=retained.exact,
    )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Sorted numbers, and the cumulative count up to each."""

    values: Any
    cumulative: Any

    @property
    def total(self) -> int:
        return int(self.cumulative[-1])

    def quantile(self, rank: float) -> float:
        """The smallest number whose rank is at least `rank`."""
        return float(self.values[np.searchsorted(self.cumulative, ceil(rank * self.total))])

    def count_up_to(self, number: float) -> int:
        return int(self.cumulative[np.searchsorted(self.values, number, side="right") - 1])


class _RetainedValues:
    """The retained values of KLL sketches of doubles, decoded from the binary format of the DataSketches libraries.

    A value of level i represents 2^i values. Sketches are many and small, so no objects are created for each.
    """

    def __init__(self) -> None:
        self.k = set[int]()
        self.values: list[bytes] = []
        self.levels: list[int] = []
        self.sizes: list[int] = []
        self.least: list[float] = []
        self.most: list[float] = []

    def add(self, sketch: bytes) -> None:
        is_empty, is_single = sketch[3] & 1, sketch[3] & 4
        if is_empty:
            return
        self.k.add(sketch[4] | sketch[5] << 8)
        levels = 1 if is_single else sketch[18]
        starts = (0,) if is_single else unpack_from(f"<{levels}I", sketch, 20)
        values = sketch[8:] if is_single else sketch[36 + 4 * levels :]
        least, most = unpack_from("<d", sketch, 8) * 2 if is_single else unpack_from("<2d", sketch, 20 + 4 * levels)
        ends = (*starts[1:], starts[0] + len(values) // 8)
        self.values.append(values)
        self.levels += range(levels)
        self.sizes += (end - start for start, end in zip(starts, ends, strict=True))
        self.least.append(least)
        self.most.append(most)

    def numbers(self) -> _Numbers:
        values = np.frombuffer(b"".join(self.values), "<f8")
        level_of = np.repeat(np.array(self.levels, np.int8), self.sizes)
        parts = [_reduced(np.sort(values[level_of == level]), 1 << level) for level in sorted(set(self.levels))]
        values, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(values)
        return _Numbers(values[order], np.cumsum(weights[order]))

    @property
    def exact(self) -> bool:
        """Were all values retained?"""
        return max(self.levels) == 0 and sum(self.sizes) <= _MAX_VALUES


def _reduced(ordered: Any, weight: int) -> tuple[Any, Any]:
    """Reduce the number of values; each is the median of those that it represents, so ranks hardly change."""
    step = -(-len(ordered) // _MAX_VALUES) or 1
    picked = ordered[step // 2 :: step]
    weights = np.full(len(picked), step * weight)
    weights[-1:] = weight * (len(ordered) - step * (len(picked) - 1))
    return picked, weights


def write_puffin(
    sketches: Mapping[int, bytes], schema: TableSchema, *, snapshot_id: int, sequence_number: int
) -> Puffin:
    """Write sketches, by column id, of those columns whose values Iceberg hashes in the same way."""
    blobs = []
    for leaf in leaves(schema.arrow):
        kind, sketch = value_kind(leaf.type), sketches.get(leaf.id)
        if sketch is not None and kind is not None and kind.as_iceberg:
            properties = {"ndv": str(round(estimate(sketch)))}
            blobs.append(Blob(THETA, sketch, [leaf.id], snapshot_id, sequence_number, properties))
    return puffin_file(blobs)


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

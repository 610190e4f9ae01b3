"""Column statistics of units of rows (files or row groups): one Arrow struct per column.

A table of units has a column `stats`, a struct with one child per primitive column, named after the field id:

    value_count, null_count, nan_count   int64; `value_count` includes NULL and NaN; NULL if unknown
    min, max                             of the column's type; all values other than NaN lie between them; NULL if unknown
    exact                                whether `min` and `max` occur in the column, rather than being just bounds
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["bound_type", "column_stats", "constant_stats", "merged_stats", "stats_struct"]

_COUNTS = ("value_count", "null_count", "nan_count")


def bound_type(of: pa.DataType) -> pa.DataType:
    """The type of the bounds of a column of type `of`."""
    if pa.types.is_dictionary(of):
        of = of.value_type
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    if of in (pa.large_string(), pa.string_view()):
        return pa.string()
    if pa.types.is_decimal(of) and of.precision <= 38:
        return pa.decimal128(of.precision, of.scale)  # Arrow supports few computations on other decimal types
    return pa.binary() if of in (pa.large_binary(), pa.binary_view()) else of


def column_stats(of: pa.DataType, units: int, *, exact: bool | pa.Array = False, **known: pa.Array) -> pa.StructArray:
    """The statistics of one column in all units; figures that are not given are unknown."""
    bounds = bound_type(of)
    if not pa.types.is_floating(of):
        known["nan_count"] = pa.repeat(pa.scalar(0, pa.int64()), units)
    parts = [known.get(name, pa.nulls(units, pa.int64())) for name in _COUNTS]
    low, high = (_without_nan(known.get(name, pa.nulls(units, bounds))) for name in ("min", "max"))
    parts += [low, high]
    flags = pc.and_(low.is_valid(), pa.scalar(exact) if isinstance(exact, bool) else exact)
    return pa.StructArray.from_arrays([*parts, flags], names=[*_COUNTS, "min", "max", "exact"])


def _without_nan(bounds: pa.Array) -> pa.Array:
    if not pa.types.is_floating(bounds.type):
        return bounds
    return pc.if_else(pc.fill_null(pc.is_nan(bounds), False), pa.scalar(None, bounds.type), bounds)


def constant_stats(values: pa.Array, row_counts: pa.Array) -> pa.StructArray:
    """The statistics of a column with a single value per unit, such as a partition column."""
    nulls = pc.if_else(values.is_null(), row_counts, pa.scalar(0, pa.int64()))
    is_nan = pc.fill_null(pc.is_nan(values), False) if pa.types.is_floating(values.type) else None
    nans = {} if is_nan is None else {"nan_count": pc.if_else(is_nan, row_counts, 0)}
    bounds = values.cast(bound_type(values.type))
    return column_stats(
        values.type, len(values), exact=True, value_count=row_counts, null_count=nulls, min=bounds, max=bounds, **nans
    )


def merged_stats(stats: pa.StructArray) -> pa.StructArray:
    """Merge the statistics of all units into those of one."""

    def total(name: str) -> Any:
        return pc.sum(stats.field(name), skip_nulls=False, min_count=0)

    empty = pc.fill_null(pc.equal(stats.field("null_count"), stats.field("value_count")), False)
    counted = {name: total(name) for name in _COUNTS}
    # A bound is known if every unit has it or has no values.
    bounds = {name: stats.field(name) for name in ("min", "max")}
    known = all(pc.all(pc.or_(empty, each.is_valid()), min_count=0).as_py() for each in bounds.values())
    low, high = (pc.min(bounds["min"]), pc.max(bounds["max"])) if known else (pa.scalar(None, bounds["min"].type),) * 2
    exact = pa.scalar(bool(known and pc.all(pc.or_(empty, stats.field("exact")), min_count=0).as_py()))
    scalars = [*counted.values(), low, high, exact]
    return pa.StructArray.from_arrays(
        [pa.array([value], value.type) for value in scalars], names=[*_COUNTS, "min", "max", "exact"]
    )


def stats_struct(columns: Mapping[int, pa.StructArray], units: int) -> pa.StructArray:
    """The column `stats` of a table of units."""
    if not columns:
        return pa.nulls(units, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=[str(number) for number in columns])

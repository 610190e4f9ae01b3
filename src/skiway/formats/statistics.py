"""Column statistics of units of rows (files or row groups): one Arrow struct per column.

A table of units has a column `stats`, a struct with one child per primitive column, named after the field id:

    value_count, null_count, nan_count   int64; `value_count` includes NULL and NaN; NULL if unknown
    min, max                             of the column's type; all values other than NaN lie between them; NULL if unknown
    exact                                whether `min` and `max` occur in the column, rather than being just bounds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["bound_type", "column_stats", "constant_stats", "merged_stats", "merged_units", "stats_struct"]

_COUNTS = ("value_count", "null_count", "nan_count")
_NAMES = (*_COUNTS, "min", "max", "exact")
_ROWS_AT_ONCE = 1 << 20  # units of all columns that are merged together


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
    return pa.StructArray.from_arrays([*parts, flags], names=_NAMES)


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

    empty = _has_no_bounds(stats)
    counted = {name: total(name) for name in _COUNTS}
    # A bound is known if every unit has it, or has no values that bounds cover.
    bounds = {name: stats.field(name) for name in ("min", "max")}
    known = all(pc.all(pc.or_(empty, each.is_valid()), min_count=0).as_py() for each in bounds.values())
    low, high = (pc.min(bounds["min"]), pc.max(bounds["max"])) if known else (pa.scalar(None, bounds["min"].type),) * 2
    exact = pa.scalar(bool(known and pc.all(pc.or_(empty, stats.field("exact")), min_count=0).as_py()))
    scalars = [*counted.values(), low, high, exact]
    return pa.StructArray.from_arrays([pa.array([value], value.type) for value in scalars], names=_NAMES)


def _has_no_bounds(stats: pa.StructArray) -> pa.Array:
    """The units that have only NULL and NaN, which bounds do not cover."""
    others = pc.add(stats.field("null_count"), pc.fill_null(stats.field("nan_count"), 0))
    return pc.fill_null(pc.equal(others, stats.field("value_count")), False)


def merged_units(stats: pa.StructArray, *, rows_at_once: int = _ROWS_AT_ONCE) -> pa.StructArray:
    """Merge a column `stats` into one row, which has for each column what `merged_stats` returns.

    Columns of the same type are merged together, in a few calls, up to `rows_at_once` units at a time.
    """
    if not len(stats) or not stats.type.num_fields:
        return stats_struct({int(name): merged_stats(stats.field(name)) for name in stats.type.names}, 1)
    alike: dict[pa.DataType, list[int]] = {}
    for place, field in enumerate(stats.type):
        alike.setdefault(field.type, []).append(place)
    merged: dict[int, pa.StructArray] = {}
    step = max(rows_at_once // len(stats), 1)
    for of, places in alike.items():
        for start in range(0, len(places), step):
            some = places[start : start + step]
            found = _merged_alike([stats.field(place) for place in some], of.field("min").type)
            merged |= {place: found.slice(row, 1) for row, place in enumerate(some)}
    return pa.StructArray.from_arrays([merged[place] for place in range(len(merged))], names=stats.type.names)


def _merged_alike(columns: Sequence[pa.StructArray], of: pa.DataType) -> pa.StructArray:
    """Merge columns whose bounds have the type `of`: a row per column."""
    units = pa.concat_arrays(columns)
    parts = dict(zip(_NAMES, units.flatten(), strict=True))
    empty = _has_no_bounds(units)
    known = pc.and_(pc.or_(empty, parts["min"].is_valid()), pc.or_(empty, parts["max"].is_valid()))
    rows = pa.table(
        {
            **{name: parts[name] for name in _COUNTS},
            "min": parts["min"] if not pa.types.is_float16(of) else pa.nulls(len(units)),  # Arrow cannot compare them
            "max": parts["max"] if not pa.types.is_float16(of) else pa.nulls(len(units)),
            "known": known,
            "exact": pc.or_(empty, parts["exact"]),
            "column": pa.array(np.repeat(np.arange(len(columns)), len(columns[0]))),
        }
    )
    totals = [(name, "sum", pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)) for name in _COUNTS]
    ends = [("min", "min"), ("max", "max"), ("known", "all"), ("exact", "all")]
    # Without threads, the groups are in the order of the columns.
    found = rows.group_by("column", use_threads=False).aggregate([*totals, *ends]).combine_chunks()
    is_known = found["known_all"].combine_chunks()
    nothing = pa.scalar(None, of)
    low, high = (
        pc.if_else(is_known, found[f"{name}_{name}"].combine_chunks().cast(of), nothing) for name in ("min", "max")
    )
    counts = [found[f"{name}_sum"].combine_chunks() for name in _COUNTS]
    exact = pc.and_(is_known, found["exact_all"].combine_chunks())
    return pa.StructArray.from_arrays([*counts, low, high, exact], names=_NAMES)


def stats_struct(columns: Mapping[int, pa.StructArray], units: int) -> pa.StructArray:
    """The column `stats` of a table of units."""
    if not columns:
        return pa.nulls(units, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=[str(number) for number in columns])

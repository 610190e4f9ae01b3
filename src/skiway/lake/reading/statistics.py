"""Column statistics for DuckDB's optimizer, which relies on them: bounds may be wider than the data, never narrower.

They come from the profile of the snapshot or, for columns that were not profiled, are merged from the statistics of the
table's files. DuckDB asks for one column after the other, so those of all columns of a snapshot are computed at once, and
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from skiway.airport import ColumnStatistics
from skiway.airport.conversion import to_column
from skiway.errors import InvalidArgument
from skiway.formats import Snapshot, TableHandle, data_files
from skiway.formats.schemas import field_id
from skiway.formats.statistics import bound_type, merged_units
from skiway.foundation.cache import Cache
from skiway.lake.reading.columns import Columns
from skiway.metastore import Realm, statistics
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1

_MAX_BYTES: Final = 64 << 20
_COLUMN_BYTES: Final = 500  # of a column's statistics in memory, without the values of strings

_ByName: TypeAlias = Mapping[str, ColumnStatistics]


class StatisticsCache:
    """The statistics of the snapshots that were asked for most recently, up to `max_bytes` in total."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._cache = Cache[tuple[str, ...], _ByName](max_bytes, weigh=_weight)

    def of(
        self, realm: Realm, table_id: str, snapshot: Snapshot, columns: Columns, *, handle: Callable[[], TableHandle]
    ) -> _ByName:
        """The statistics of all columns in a snapshot, by name. `handle` reads the snapshot."""
        profile = statistics.column_statistics_address(realm, table_id, snapshot.id)
        key = (realm.account_id, table_id, str(snapshot.id), snapshot.digest, columns.id, profile)
        return self._cache.get(key, lambda: _all_columns(realm, table_id, snapshot, columns.stored, handle()))

    def __len__(self) -> int:
        return len(self._cache)


def _weight(found: _ByName) -> int:
    bounds = (bound for each in found.values() for bound in (each.min, each.max))
    texts = sum(len(bound.as_buffer()) for bound in bounds if isinstance(bound, pa.BinaryScalar) and bound.is_valid)
    return _COLUMN_BYTES * (len(found) + 1) + texts


def _all_columns(
    realm: Realm, table_id: str, snapshot: Snapshot, columns: pa.Schema, handle: TableHandle
) -> dict[str, ColumnStatistics]:
    known = statistics.column_statistics(realm, table_id, snapshot.id)
    profiled = {each.column_id: each for each in statistics.without_outdated(known, handle.defaults)}
    numbers = {field.name: field_id(field) for field in columns if _has_bounds(field.type)}
    merged = None
    if not profiled.keys() >= set(numbers.values()):
        merged = merged_units(data_files(handle.files(snapshot))["stats"].combine_chunks())
    found = {}
    for field in columns:
        number = numbers.get(field.name)
        column = None if number is None else profiled.get(number)
        if column is not None:
            found[field.name] = _of_profile(column, field.type)
        elif number is None or merged is None:
            found[field.name] = ColumnStatistics()
        else:
            found[field.name] = _of_files(merged, number, field.type)
    return found


def _has_bounds(of: pa.DataType) -> bool:
    return not (of.num_fields or pa.types.is_dictionary(of))


def _of_profile(column: v1.ColumnStats, of: pa.DataType) -> ColumnStatistics:
    nulls = statistics.counted_nulls(column)
    low, high = None, None
    if column.HasField("min") and column.HasField("max") and _has_no_nan(of, _given(column, "nan_count")):
        low, high = (_value(column.logical_type, text, of) for text in (column.min, column.max))
    return ColumnStatistics(
        min=low,
        max=high,
        has_null=None if nulls is None else nulls > 0,
        has_not_null=None if nulls is None else column.value_count > nulls,
        distinct_count=_distinct(column.ndv),
    )


def _of_files(merged: pa.StructArray, number: int, of: pa.DataType) -> ColumnStatistics:
    place = merged.type.get_field_index(str(number))
    if place < 0:
        return ColumnStatistics()
    known = merged.field(place)[0]
    values, nulls = known["value_count"].as_py(), known["null_count"].as_py()
    bounded = _has_no_nan(of, known["nan_count"].as_py()) and known["min"].type == bound_type(of)
    return ColumnStatistics(
        min=known["min"] if bounded and known["min"].is_valid else None,
        max=known["max"] if bounded and known["max"].is_valid else None,
        has_null=None if nulls is None else nulls > 0,
        has_not_null=None if None in (values, nulls) else values > nulls,
    )


def _has_no_nan(of: pa.DataType, nans: int | None) -> bool:
    """Whether the column has no NaN, which DuckDB treats as greater than all numbers but bounds do not cover."""
    return not pa.types.is_floating(of) or nans == 0


def _given(column: v1.ColumnStats, name: str) -> int | None:
    return getattr(column, name) if column.HasField(name) else None  # type: ignore[arg-type]


def _value(kind: str, text: str, of: pa.DataType) -> pa.Scalar | None:
    """A bound as a value of the column's type; None if it is invalid, for example after a change of the type."""
    try:
        value: Any = bound(logical_type(kind), text).value
        return None if value is None else pa.scalar(value, bound_type(of))
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


def _distinct(ndv: v1.Ndv) -> int | None:
    match ndv.WhichOneof("mode"):
        case "exact":
            return ndv.exact
        case "approx":
            return round(ndv.approx.estimate)
        case _:
            return None


def in_type(found: ColumnStatistics, stored: pa.Field, announced: pa.Field) -> ColumnStatistics:
    """The statistics with bounds in the announced type; without bounds if it cannot represent them."""
    if stored.type == announced.type or None in (found.min, found.max):
        return found
    try:
        low, high = (to_column(pa.repeat(bound, 1), announced)[0] for bound in (found.min, found.max))
    except InvalidArgument:
        return replace(found, min=None, max=None)
    return replace(found, min=low, max=high)

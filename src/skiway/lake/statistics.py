"""Column statistics for DuckDB's optimizer, which relies on them: bounds may be wider than the data, never narrower.

They come from the profile of the snapshot or, if it was not profiled, are merged from the statistics of the table's
files.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from skiway.airport import ColumnStatistics
from skiway.formats import Snapshot, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.schemas import field_id
from skiway.formats.statistics import bound_type, merged_stats
from skiway.lake.opened_tables import OpenedTable
from skiway.metastore import Realm, statistics
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1

__all__ = ["column_statistics"]


def column_statistics(
    realm: Realm, table_id: str, snapshot: Snapshot, *, field: pa.Field, opened: OpenedTable
) -> ColumnStatistics:
    """The statistics of the column `field` in a snapshot."""
    if field.type.num_fields or pa.types.is_dictionary(field.type):
        return ColumnStatistics()
    number = field_id(field)
    for column in statistics.column_statistics(realm, table_id, snapshot.id):
        if column.column_id == number:
            return _of_profile(column, field.type)
    return _of_files(opened, snapshot, field) if isinstance(opened.handle, IcebergTable) else ColumnStatistics()


def _of_profile(column: v1.ColumnStats, of: pa.DataType) -> ColumnStatistics:
    nulls = column.null_count if column.HasField("null_count") else None
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


def _of_files(opened: OpenedTable, snapshot: Snapshot, field: pa.Field) -> ColumnStatistics:
    files = opened.handle.files(snapshot)
    stats = data_files(files)["stats"].combine_chunks()
    name = str(field_id(field))
    if stats.type.get_field_index(name) < 0:
        return ColumnStatistics()
    known = merged_stats(stats.field(name))[0]
    values, nulls = known["value_count"].as_py(), known["null_count"].as_py()
    bounded = _has_no_nan(field.type, known["nan_count"].as_py()) and known["min"].type == bound_type(field.type)
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

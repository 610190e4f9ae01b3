"""Statistics of profiled columns as DuckDB's optimizer gets them: bounds, NULL counts and distinct counts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from skiway.lake.reading.columns import _of_profile, _weight
from skiway.model import v1


def profiled(of: pa.DataType = pa.int64(), **stats: Any) -> Any:  # noqa: B008
    kinds = {pa.int64(): "INT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.list_(pa.int64()): "ARRAY"}
    return _of_profile(v1.ColumnStats(column_id=1, column_name="x", logical_type=kinds[of], **stats), of)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"value_count": 3, "null_count": 0}, (False, True)),
        ({"value_count": 3, "null_count": 1}, (True, True)),
        ({"value_count": 3, "null_count": 2}, (True, True)),
        ({"value_count": 3, "null_count": 3}, (True, False)),
        ({"value_count": 0, "null_count": 0}, (False, False)),
        ({"value_count": 3}, (None, None)),
    ],
)
def test_null_counts_say_whether_a_column_has_nulls_and_values(stats: Any, expected: tuple[Any, Any]) -> None:
    found = profiled(**stats)
    assert (found.has_null, found.has_not_null) == expected


@pytest.mark.parametrize(
    ("of", "stats", "expected"),
    [
        (pa.int64(), {"min": "1", "max": "3"}, (1, 3)),
        (pa.int64(), {"min": "1"}, (None, None)),
        (pa.int64(), {"max": "3"}, (None, None)),
        (pa.int64(), {"min": "one", "max": "3"}, (None, 3)),
        (pa.float64(), {"min": "1", "max": "3", "nan_count": 0}, (1, 3)),
        (pa.float64(), {"min": "1", "max": "3", "nan_count": 1}, (None, None)),
        (pa.float64(), {"min": "1", "max": "3"}, (None, None)),
        (pa.string(), {"min": "a", "max": "b"}, ("a", "b")),
    ],
)
def test_bounds_are_used_if_both_are_known_and_cover_all_values(of: pa.DataType, stats: Any, expected: Any) -> None:
    found = profiled(of, **stats)
    assert tuple(each and each.as_py() for each in (found.min, found.max)) == expected


def test_distinct_count_is_exact_or_estimated_or_unknown() -> None:
    assert profiled(ndv=v1.Ndv(exact=7)).distinct_count == 7
    assert profiled(ndv=v1.Ndv(approx=v1.NdvApprox(estimate=6.6))).distinct_count == 7
    assert profiled().distinct_count is None


def test_weight_of_statistics_grows_with_columns_and_with_long_bounds() -> None:
    none, short, long = profiled(pa.string()), *(profiled(pa.string(), min="a", max="b" * n) for n in (1, 1000))
    assert _weight({}) > 0
    assert _weight({"x": none}) - _weight({}) == _weight({"x": none, "y": none}) - _weight({"x": none}) > 0
    assert _weight({"x": short}) == _weight({"x": none}) + 2
    assert _weight({"x": long}) == _weight({"x": none}) + 1001

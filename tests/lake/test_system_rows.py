"""Rows of system tables, made of records, and the types that a histogram divides into ranges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from skiway.lake.system.histogram_function import _as_number
from skiway.lake.system.tables import _column_row
from skiway.model import v1


def row(**stats: Any) -> tuple[Any, ...]:
    found = v1.ColumnStats(column_id=7, column_name="x", logical_type="INT", value_count=9, **stats)
    assert _column_row(found)[:4] == (7, "x", "INT", 9)
    return _column_row(found)[4:]


def test_unknown_statistics_are_null_and_zeros_are_not() -> None:
    assert row() == (None, None, None, None, None)
    assert row(null_count=0, nan_count=0, min="", max="") == (0, 0, None, "", "")
    assert row(null_count=1, nan_count=2, min="a", max="b") == (1, 2, None, "a", "b")
    assert row(ndv=v1.Ndv(exact=0)) == (None, None, 0.0, None, None)
    assert row(ndv=v1.Ndv(exact=5)) == (None, None, 5.0, None, None)
    assert row(ndv=v1.Ndv(approx=v1.NdvApprox(estimate=2.5))) == (None, None, 2.5, None, None)


@pytest.mark.parametrize(
    ("of", "number"),
    [
        (pa.int8(), "BIGINT"),
        (pa.uint32(), "BIGINT"),
        (pa.uint64(), "DOUBLE"),
        (pa.float32(), "DOUBLE"),
        (pa.decimal128(9, 2), "DOUBLE"),
        (pa.date32(), "TIMESTAMP"),
        (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
        (pa.string(), None),
        (pa.bool_(), None),
        (pa.time64("us"), None),
    ],
)
def test_numbers_and_times_are_divided_into_ranges(of: pa.DataType, number: str | None) -> None:
    assert _as_number(pa.field("x", of)) == number

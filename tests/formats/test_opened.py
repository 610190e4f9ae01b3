from __future__ import annotations

import pyarrow as pa
import pytest

from skiway.formats import FILE_COLUMNS
from skiway.formats.opening import Totals

COLUMNS = ("content", "row_count", "size_bytes", "deleted_rows")


@pytest.mark.parametrize(
    ("files", "totals"),
    [
        ([], Totals(0, 0, 0)),
        ([("data", 5, 10, 0), ("data", 7, 20, 3)], Totals(2, 30, 9)),
        ([("data", 5, 10, 2), ("position_deletes", 2, 40, None)], Totals(1, 10, 3)),
        ([("data", 5, 10, 0), ("data", 7, 20, None), ("equality_deletes", 1, 40, None)], Totals(2, 30, None)),
        ([("data", None, 10, 0)], Totals(1, 10, None)),
    ],
)
def test_totals_count_data_files_and_the_rows_that_are_left(files: list[tuple[object, ...]], totals: Totals) -> None:
    rows = [dict(zip(COLUMNS, file, strict=True)) for file in files]
    assert Totals.of(pa.Table.from_pylist(rows, schema=FILE_COLUMNS)) == totals

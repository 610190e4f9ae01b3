"""Batches on their way to the client: row ids, columns that are gone, and statistics in announced types."""

from __future__ import annotations

import pyarrow as pa

from skiway.airport import ColumnStatistics
from skiway.formats.readers.scanning import FILE_ORDINAL, ROW_POSITION
from skiway.lake.reading.columns import in_type, with_nulls
from skiway.lake.reading.scans import RowIds, numbered


def batches(*counts: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"x": pa.array(range(count), pa.int64())}) for count in counts]


def test_row_ids_replace_files_and_positions() -> None:
    ids = RowIds(tag=5, file_bits=2, position_bits=4)
    rows = pa.record_batch(
        {"x": ["a", "b"], FILE_ORDINAL: pa.array([1, 3], pa.int32()), ROW_POSITION: pa.array([2, 9], pa.int64())}
    )
    (found,) = numbered(pa.RecordBatchReader.from_batches(rows.schema, [rows]), ids)
    assert found.schema.names == ["x", "rowid"]
    assert found.column("x").to_pylist() == ["a", "b"]
    assert found.column("rowid").to_pylist() == [ids.first(1, 2), ids.first(3, 9)]
    without = rows.select([FILE_ORDINAL, ROW_POSITION])
    (only,) = numbered(pa.RecordBatchReader.from_batches(without.schema, [without]), ids)
    assert only.schema.names == ["rowid"]


def test_columns_that_are_gone_are_null() -> None:
    gone = [pa.field("s", pa.string()), pa.field("n", pa.int32())]
    found = list(with_nulls(iter(batches(2, 1)), gone))
    assert [batch.schema.names for batch in found] == [["x", "s", "n"]] * 2
    assert [batch.schema.types for batch in found] == [[pa.int64(), pa.string(), pa.int32()]] * 2
    assert [batch.column("s").null_count for batch in found] == [2, 1]


def test_bounds_are_announced_in_the_type_that_the_client_knows() -> None:
    stored, small = pa.field("x", pa.int32()), pa.field("x", pa.int16())
    known = ColumnStatistics(min=pa.scalar(1, pa.int32()), max=pa.scalar(70, pa.int32()), has_null=True)
    assert in_type(known, stored, stored) is known
    found = in_type(known, stored, small)
    assert (found.min, found.max, found.has_null) == (pa.scalar(1, pa.int16()), pa.scalar(70, pa.int16()), True)
    beyond = ColumnStatistics(min=pa.scalar(1, pa.int32()), max=pa.scalar(70_000, pa.int32()), has_null=True)
    assert in_type(beyond, stored, small) == ColumnStatistics(has_null=True)
    for partial in (ColumnStatistics(min=pa.scalar(1)), ColumnStatistics(max=pa.scalar(1)), ColumnStatistics()):
        assert in_type(partial, stored, small) is partial

"""A folder whose files have different types for a column is read in the narrowest type that represents all values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.oracles import assert_same_rows
from formats.pushed_filters import pushed_filter
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats import TableHandle, open_source

MOMENT = datetime(2026, 1, 2, 3, 4, 5)
PAIRS = [
    (pa.int32(), [1, None], pa.int64(), [2**40], pa.int64()),
    (pa.int8(), [-1], pa.uint8(), [255], pa.int16()),
    (pa.int32(), [-1], pa.uint32(), [2**32 - 1], pa.int64()),
    (pa.int64(), [-1], pa.uint64(), [2**64 - 1], pa.decimal128(20, 0)),
    (pa.int64(), [-(2**63)], pa.decimal128(5, 2), [Decimal("1.25")], pa.decimal128(21, 2)),
    (pa.decimal128(10, 4), [Decimal("1.0001")], pa.decimal128(12, 0), [Decimal(10**11)], pa.decimal128(16, 4)),
    (pa.decimal128(9, 2), [Decimal("1.25")], pa.decimal128(18, 2), [Decimal("2.50")], pa.decimal128(18, 2)),
    (pa.int16(), [7], pa.float32(), [0.5], pa.float32()),
    (pa.int32(), [2**31 - 1], pa.float32(), [0.5], pa.float64()),
    (pa.int64(), [2**53], pa.float64(), [0.5, None], pa.float64()),
    (pa.float32(), [1.5], pa.float64(), [0.1], pa.float64()),
    (pa.date32(), [date(2026, 1, 1)], pa.timestamp("us"), [MOMENT], pa.timestamp("us")),
    (pa.timestamp("ms"), [MOMENT], pa.timestamp("us"), [MOMENT.replace(microsecond=1)], pa.timestamp("us")),
    (pa.timestamp("us"), [MOMENT], pa.timestamp("ns"), [MOMENT], pa.timestamp("ns")),
    (pa.timestamp("us"), [MOMENT], pa.timestamp("ms", tz="UTC"), [MOMENT], pa.timestamp("us", tz="UTC")),
    (pa.time32("ms"), [time(1, 2, 3)], pa.time64("us"), [time(1, 2, 3, 4)], pa.time64("us")),
    (pa.string(), ["a"], pa.dictionary(pa.int8(), pa.string()), ["b"], pa.string()),
]


def folder(tmp_path: Path, *columns: pa.Array) -> TableHandle:
    (tmp_path / "t").mkdir(parents=True)
    for number, column in enumerate(columns):
        pq.write_table(pa.table({"v": column}), tmp_path / "t" / f"{number}.parquet")
    return open_source("parquet", str(tmp_path / "t"), options={"external.table-name": "t"}).load((), "t")


def read(table: TableHandle, **options: Any) -> pa.Table:
    current = table.current()
    assert current is not None
    return table.read(current, **options).read_all()


def values(column: pa.ChunkedArray) -> list[str]:
    return sorted(str(value) for value in column.to_pylist())


@pytest.mark.parametrize("is_reversed", [False, True], ids=["narrow first", "wide first"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} and {pair[2]}")
def test_types_are_widened_in_any_order_of_files(
    tmp_path: Path, pair: tuple[pa.DataType, list[Any], pa.DataType, list[Any], pa.DataType], is_reversed: bool
) -> None:
    one, some, other, more, expected = pair
    columns = [pa.array(some, one), pa.array(more, other)]
    table = folder(tmp_path, *(reversed(columns) if is_reversed else columns))
    found = read(table)
    assert found.schema.field("v").type == expected
    assert values(found["v"]) == values(pa.chunked_array([each.cast(expected) for each in columns]))


def test_nested_types_are_widened(tmp_path: Path) -> None:
    one = pa.array([{"n": 1, "l": [1], "m": [("k", 1)]}], _nested(pa.int32()))
    other = pa.array([{"n": 2, "l": [2, None], "m": [("k", None)]}], _nested(pa.uint32()))
    found = read(folder(tmp_path, one, other))["v"]
    assert found.type.field("n").type == found.type.field("l").type.value_type == pa.int64()
    assert found.type.field("m").type.item_type == pa.int64()
    assert found.to_pylist() == [*one.to_pylist(), *other.to_pylist()]


def _nested(of: pa.DataType) -> pa.DataType:
    return pa.struct({"n": of, "l": pa.list_(of), "m": pa.map_(pa.string(), of)})


@pytest.mark.parametrize("predicate", ["v = 7", "v > 1000", "v < 0", "v IS NULL", "v >= 3000000000"])
def test_filter_on_a_widened_column_loses_no_row(tmp_path: Path, predicate: str) -> None:
    table = folder(
        tmp_path,
        pa.array([-5, 7, None], pa.int32()),
        pa.array([7, 4_000_000_000], pa.uint32()),
        pa.array([7], pa.int8()),
    )
    found = read(table, filter=pushed_filter(predicate, table.schema.arrow))
    with duckdb.connect() as duck:
        files = f"read_parquet('{tmp_path}/t/*.parquet', union_by_name => true)"
        expected = duck.execute(f"SELECT * FROM {files} WHERE {predicate}").to_arrow_table()
        duck.register("found", found)
        assert_same_rows(duck.execute(f"FROM found WHERE {predicate}").to_arrow_table(), expected)


def test_widened_column_has_the_rows_that_duckdb_reads(tmp_path: Path) -> None:
    table = folder(tmp_path, pa.array([1, 2], pa.int64()), pa.array([0.5, None], pa.float64()), pa.nulls(2))
    with duckdb.connect() as duck:
        expected = duck.execute(f"FROM read_parquet('{tmp_path}/t/*.parquet', union_by_name => true)").to_arrow_table()
    assert_same_rows(read(table), expected)


def test_value_that_the_wider_type_cannot_represent_is_an_error(tmp_path: Path) -> None:
    """DOUBLE has 53 bits, so some values of BIGINT have no equal."""
    table = folder(tmp_path, pa.array([2**53 + 1], pa.int64()), pa.array([0.5], pa.float64()))
    with pytest.raises(PreconditionFailed, match=r"0\.parquet' has a value that double cannot represent"):
        read(table)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.string()),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
        (pa.decimal128(20, 2), pa.float64()),
        (pa.bool_(), pa.int32()),
        (pa.date32(), pa.timestamp("us", tz="UTC")),
        (pa.float32(), pa.timestamp("us")),
        (pa.list_(pa.int32()), pa.int32()),
    ],
    ids=str,
)
def test_types_without_a_common_one_are_rejected(tmp_path: Path, one: pa.DataType, other: pa.DataType) -> None:
    for place, types in enumerate(((one, other), (other, one))):
        with pytest.raises(Unsupported, match=r"column 'v' is .* in file .*1\.parquet"):
            folder(tmp_path / str(place), *_empty(types))


def _empty(types: Sequence[pa.DataType]) -> list[pa.Array]:
    return [pa.array([], of) for of in types]


def test_moment_with_a_time_zone_stays_the_same(tmp_path: Path) -> None:
    table = folder(tmp_path, pa.array([MOMENT], pa.timestamp("us")), pa.array([MOMENT], pa.timestamp("ms", tz="UTC")))
    assert read(table)["v"].to_pylist() == [MOMENT.replace(tzinfo=UTC)] * 2

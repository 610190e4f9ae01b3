"""Rows of files whose columns are not quite those of the table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.managed import LooseTable
from formats.pushed_filters import sent_filter
from skiway.client import col
from skiway.client.airport.predicates import Predicate
from skiway.errors import Unsupported
from skiway.formats.iceberg.changes.evolution import AddColumn, ColumnChange, DropColumn, MoveColumn, evolve

POINT = pa.struct({"x": pa.int32(), "y": pa.int32()})
OLD = {"x": 1, "y": 2}


def read(table: LooseTable, predicate: Predicate | None = None) -> pa.Table:
    snapshot = table.handle.current()
    assert snapshot is not None
    schema = table.handle.schema.arrow
    condition = None if predicate is None else sent_filter(predicate, schema)
    return table.handle.read(snapshot, schema=schema, filter=condition).read_all()


@pytest.mark.parametrize(
    ("of", "value", "path", "expected"),
    [
        (POINT, OLD, ("p",), {"x": 1, "y": None}),
        (pa.struct({"in": POINT}), {"in": OLD}, ("p", "in"), {"in": {"x": 1, "y": None}}),
        (pa.list_(POINT), [OLD], ("p", "element"), [{"x": 1, "y": None}]),
        (pa.map_(pa.string(), POINT), [("k", OLD)], ("p", "value"), [("k", {"x": 1, "y": None})]),
    ],
    ids=["struct", "struct in a struct", "struct in a list", "struct in a map"],
)
def test_struct_field_that_was_dropped_and_added_again_has_no_old_values(
    tmp_path: Path, of: pa.DataType, value: Any, path: tuple[str, ...], expected: Any
) -> None:
    """It has the same name and type, and the schema looks as before: only its id is another one."""
    schema = pa.schema({"p": of})
    table = LooseTable(tmp_path, schema)
    table.append(pa.table({"p": [value]}, schema=schema))
    changes: list[ColumnChange] = [DropColumn((*path, "y")), AddColumn((*path, "y"), pa.int32())]
    table.change(evolve(changes))
    table.append(pa.table({"p": [value]}, schema=schema))
    found = sorted(read(table)["p"].to_pylist(), key=repr)
    assert found == sorted([expected, value], key=repr)
    assert found == sorted(table.rows()["p"].to_pylist(), key=repr), "as PyIceberg reads it"


def test_struct_fields_are_matched_by_id_when_they_change_places(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"p": POINT}))
    table.append(pa.table({"p": [OLD, None]}, schema=pa.schema({"p": POINT})))
    table.change(evolve([MoveColumn(("p", "y"))]))
    assert read(table)["p"].to_pylist() == [{"y": 2, "x": 1}, None]
    assert read(table).schema.field("p").type == pa.struct({"y": pa.int32(), "x": pa.int32()})


def test_partition_columns_that_files_lack_have_the_value_of_the_partition(tmp_path: Path) -> None:
    """Tables that were migrated from Hive have them in paths only. The number of a bucket is not a value of its column."""
    schema = pa.schema({"area": pa.string(), "id": pa.int64(), "x": pa.int64()})
    table = LooseTable(tmp_path, schema, "area", "bucket[4](id)")
    for file in table.append(pa.table({"area": ["n", "s", None], "id": [1, 2, 3], "x": [10, 20, 30]}, schema=schema)):
        path = file.file_path.removeprefix("file://")
        pq.write_table(pq.read_table(path, partitioning=None).select(["x"]), path)
    assert read(table).sort_by("x").to_pylist() == [
        {"area": "n", "id": None, "x": 10},
        {"area": "s", "id": None, "x": 20},
        {"area": None, "id": None, "x": 30},
    ]


# --- time zones ------------------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)


def with_file_of(folder: Path, table_zone: str | None, file_type: pa.DataType) -> LooseTable:
    """A table whose file has another type of timestamps, in the same column."""
    schema = pa.schema({"at": pa.timestamp("us", table_zone)})
    table = LooseTable(folder, schema)
    (file,) = table.append(pa.table({"at": [MOMENT if table_zone else MOMENT.replace(tzinfo=None)]}, schema=schema))
    path = file.file_path.removeprefix("file://")
    column = pq.read_schema(path).field("at")
    micros = int(MOMENT.timestamp()) * {"ms": 1000, "us": 1_000_000}[file_type.unit]
    rows = pa.table([pa.array([micros]).view(file_type)], schema=pa.schema([column.with_type(file_type)]))
    pq.write_table(rows, path, store_schema=False)
    return table


@pytest.mark.parametrize("file_type", [pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("ms", "UTC")], ids=str)
def test_files_without_a_time_zone_are_in_utc(tmp_path: Path, file_type: pa.DataType) -> None:
    table = with_file_of(tmp_path, "UTC", file_type)
    assert read(table).schema.field("at").type == pa.timestamp("us", "UTC")
    assert read(table)["at"].to_pylist() == [MOMENT]
    assert read(table, col("at") >= MOMENT)["at"].to_pylist() == [MOMENT]
    assert read(table, col("at") > MOMENT).num_rows == 0


def test_files_with_a_time_zone_do_not_fit_columns_without_one(tmp_path: Path) -> None:
    """Their local time is unknown."""
    table = with_file_of(tmp_path, None, pa.timestamp("us", "UTC"))
    with pytest.raises(Unsupported, match=r"'at' is timestamp\[us\] in the table, but timestamp\[us, tz=UTC\] in file"):
        read(table)

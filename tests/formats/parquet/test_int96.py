"""INT96 columns are instants, as Spark writes them: in the schema, in rows, in statistics and in filters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.pushed_filters import pushed_filter
from skiway.formats import TableHandle, open_source
from skiway.formats.source import Snapshot

INSTANT = pa.timestamp("us", tz="UTC")
MOMENTS = [datetime(2020, 1, 1, 12, 30), None, datetime(1500, 1, 1), datetime(9999, 12, 31)]
COLUMNS = {
    "id": pa.array([1, 2, 3, 4]),
    "ts": pa.array(MOMENTS, pa.timestamp("us")),
    "inside": pa.array(
        [{"n": 1, "ts": each} for each in MOMENTS], pa.struct({"n": pa.int32(), "ts": pa.timestamp("us")})
    ),
    "many": pa.array([[each] for each in MOMENTS], pa.list_(pa.timestamp("us"))),
    "by_name": pa.array([[("a", each)] for each in MOMENTS], pa.map_(pa.string(), pa.timestamp("us"))),
    "after": pa.array(["w", "x", "y", "z"]),
}


def _write(folder: Path, name: str, columns: dict[str, Any], *, int96: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / name, use_deprecated_int96_timestamps=int96, store_schema=False)


def _loaded(root: Path) -> tuple[TableHandle, Snapshot]:
    with open_source("parquet", str(root)) as source:
        table = source.load((), "t")
    snapshot = table.current()
    assert snapshot is not None
    return table, snapshot


def _instant(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableHandle, Snapshot]:
    root = tmp_path_factory.mktemp("int96")
    _write(root / "t", "a.parquet", COLUMNS)
    return _loaded(root)


def test_the_schema_has_instants_at_any_depth(table: tuple[TableHandle, Snapshot]) -> None:
    handle, snapshot = table
    for schema in (handle.schema.arrow, handle.file_schema(snapshot, handle.files(snapshot)["path"][0].as_py())):
        assert schema.field("ts").type == INSTANT
        assert schema.field("inside").type.field("ts").type == INSTANT
        assert schema.field("many").type.value_type == INSTANT
        assert schema.field("by_name").type.item_type == INSTANT
        assert schema.field("after").type == pa.string()
    assert handle.schema.json.count("timestamptz") == 4


def test_rows_have_the_types_of_the_schema(table: tuple[TableHandle, Snapshot]) -> None:
    handle, snapshot = table
    rows = handle.read(snapshot).read_all()
    assert rows.schema.types == handle.schema.arrow.types
    assert rows["ts"].to_pylist() == [*map(_instant, MOMENTS)]
    assert rows["inside"].to_pylist() == [{"n": 1, "ts": _instant(each)} for each in MOMENTS]
    assert rows["many"].to_pylist() == [[_instant(each)] for each in MOMENTS]
    assert rows["by_name"].to_pylist() == [[("a", _instant(each))] for each in MOMENTS]
    assert rows["after"].to_pylist() == ["w", "x", "y", "z"]


def test_statistics_have_the_type_of_the_column_and_no_bounds(table: tuple[TableHandle, Snapshot]) -> None:
    handle, snapshot = table
    number = handle.schema.arrow.field("ts").metadata[b"PARQUET:field_id"].decode()
    stats = handle.files(snapshot)["stats"].combine_chunks().field(number)
    assert stats.type.field("min").type == INSTANT
    assert stats.field("min").to_pylist() == stats.field("max").to_pylist() == [None]


@pytest.mark.parametrize(
    ("predicate", "ids"),
    [
        ("ts = TIMESTAMPTZ '2020-01-01 12:30:00+00'", [1]),
        ("ts = TIMESTAMPTZ '2020-01-01 14:30:00+02'", [1]),
        ("ts < TIMESTAMPTZ '1600-01-01 00:00:00+00'", [3]),
        ("ts > TIMESTAMPTZ '2300-01-01 00:00:00+00'", [4]),
        ("ts IS NULL", [2]),
    ],
)
def test_filters_compare_instants(table: tuple[TableHandle, Snapshot], predicate: str, ids: list[int]) -> None:
    handle, snapshot = table
    condition = pushed_filter(predicate, handle.schema.arrow)
    assert handle.read(snapshot, filter=condition).read_all()["id"].to_pylist() == ids


def test_a_folder_may_mix_int96_with_the_other_timestamps(tmp_path: Path) -> None:
    """Spark wrote INT96 once, and writes INT64 instants now. Timestamps of writers without time zones are UTC."""
    ids, naive = pa.array([1]), pa.array([MOMENTS[0]], pa.timestamp("us"))
    _write(tmp_path / "t", "1.parquet", {"id": ids, "ts": naive})
    _write(tmp_path / "t", "2.parquet", {"id": pa.array([2]), "ts": naive.cast(INSTANT)}, int96=False)
    _write(tmp_path / "t", "3.parquet", {"id": pa.array([3]), "ts": naive}, int96=False)
    handle, snapshot = _loaded(tmp_path)
    assert handle.schema.arrow.field("ts").type == INSTANT
    assert handle.read(snapshot).read_all()["ts"].to_pylist() == [_instant(MOMENTS[0])] * 3

    later = pushed_filter("ts > TIMESTAMPTZ '2020-01-01 12:30:00+00'", handle.schema.arrow)
    assert [path[-9:] for path in handle.plan(snapshot, later)["path"].to_pylist()] == ["1.parquet"]

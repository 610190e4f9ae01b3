"""Column statistics: bounds of files before any profile, computed once per snapshot, in bounded memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake, opened_lake
from skiway.airport import ColumnStatistics
from skiway.formats import Snapshot, open_source
from skiway.formats.schemas import with_id
from skiway.lake import catalog as lake_catalog
from skiway.lake.reading import columns as lake_columns
from skiway.lake.reading import state as lake_table
from skiway.lake.reading.columns import Columns, StatisticsCache, columns_in, columns_of
from skiway.lake.writing.inserting import Incoming
from skiway.metastore import directory
from skiway.metastore import statistics as metastore_statistics
from skiway.model import v1

ROWS = pa.table(
    {"id": [5, 1, 9], "name": ["b", "a", None], "ratio": [1.5, 2.5, None], "nothing": pa.nulls(3, pa.int32())}
)


def _files(kind: str, folder: Path) -> str:
    if kind == "delta":
        deltalake.write_deltalake(str(folder / "t"), ROWS.slice(0, 2))
        deltalake.write_deltalake(str(folder / "t"), ROWS.slice(2), mode="append")
    else:
        (folder / "t").mkdir(parents=True)
        for number in range(3):
            pq.write_table(ROWS.slice(number, 1), folder / "t" / f"{number}.parquet")
    return str(folder)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_mirrored_tables_have_the_bounds_of_their_files_before_a_profile(kind: str, tmp_path: Path) -> None:
    uri = _files(kind, tmp_path / "files")
    with opened_lake(tmp_path / "lake") as lake:
        lake.mirror(kind, uri)
        with lake.client(kind) as db:
            number = db.statistics("root.t", "id")
            assert (number.min, number.max, number.has_null, number.has_not_null) == (1, 9, False, True)
            text = db.statistics("root.t", "name")
            assert text.min <= "a" <= "b" <= text.max
            assert text.has_null
            assert db.statistics("root.t", "ratio").min is None  # there may be NaN, which files do not count
            assert db.statistics("root.t", "nothing").has_null


def test_profiles_of_nested_fields_are_no_statistics_of_their_columns(lake: Lake) -> None:
    """A list and a struct stay without bounds, and columns beside them keep theirs."""
    with lake.client() as db:
        db.create_schema("s")
        rows = pa.table({"id": [1, 2], "tags": [[7], [8, 9]], "box": [{"size": 3}, {"size": 4}]})
        db.create_table_as("s.t", rows)
        [table] = db.scan(("skiway", "tables")).read_all().to_pylist()
        numbers = {"id": 1, "tags.element": 4, "box.size": 5}
        columns = [
            v1.ColumnStats(column_id=number, column_name=name, logical_type="BIGINT", value_count=3, min="1", max="9")
            for name, number in numbers.items()
        ]
        request = v1.PutColumnStatsRequest(
            table_id=v1.ResourceId(id=table["table_id"]), snapshot_id=table["current_snapshot_id"], columns=columns
        )
        metastore_statistics.put_columns(lake.realm, [request])
        assert db.statistics("s.t", "id").max == 9
        for name in ("tags", "box"):
            found = db.statistics("s.t", name)
            assert (found.min, found.max, found.distinct_count) == (None, None, None)
        shown = db.scan(("skiway", "column_stats")).read_all()
        assert set(shown["column_name"].to_pylist()) == numbers.keys()


def test_profiles_follow_renamed_columns_and_forget_dropped_ones(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        rows = pa.table({"a": [1, 2], "b": [100, 200], "gone": [7, 7]})
        db.create_table_as("s.t", rows)
        [table] = db.scan(("skiway", "tables")).read_all().to_pylist()
        columns = [
            v1.ColumnStats(column_id=number, column_name=name, logical_type="BIGINT", value_count=2, min=low, max=high)
            for number, name, low, high in ((1, "a", "1", "2"), (2, "b", "100", "200"), (3, "gone", "7", "7"))
        ]
        request = v1.PutColumnStatsRequest(
            table_id=v1.ResourceId(id=table["table_id"]), snapshot_id=table["current_snapshot_id"], columns=columns
        )
        metastore_statistics.put_columns(lake.realm, [request])
        for name, new in (("a", "c"), ("b", "a"), ("c", "b")):
            db.rename_column("s.t", name, new)
        db.remove_column("s.t", "gone")
        db.add_column("s.t", pa.field("gone", pa.int64()))
        expected = {"a": (100, 200), "b": (1, 2)}
        of_duckdb = {name: db.statistics("s.t", name) for name in expected}
        assert {name: (each.min, each.max) for name, each in of_duckdb.items()} == expected
        added = db.statistics("s.t", "gone")
        assert (added.min, added.max, added.has_null) == (None, None, True)
        shown = db.scan(("skiway", "column_stats")).read_all().to_pylist()
        assert {row["column_name"]: (int(row["min"]), int(row["max"])) for row in shown} == expected


@pytest.mark.parametrize(("quality", "expected"), [("exact", False), ("sample", True)])
def test_duckdb_does_not_rely_on_nulls_of_a_sample(lake: Lake, quality: str, expected: bool) -> None:
    """A column without NULLs in the sample may have some elsewhere."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table_as("s.t", pa.table({"id": [1, 2]}))
        [table] = db.scan(("skiway", "tables")).read_all().to_pylist()
        column = v1.ColumnStats(column_id=1, column_name="id", logical_type="BIGINT", value_count=9, null_count=0)
        column.properties["quality.null_count"] = quality
        request = v1.PutColumnStatsRequest(
            table_id=v1.ResourceId(id=table["table_id"]), snapshot_id=table["current_snapshot_id"], columns=[column]
        )
        metastore_statistics.put_columns(lake.realm, [request])
        assert db.statistics("s.t", "id").has_null is expected


def _counting(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], module: Any, name: str) -> None:
    real: Callable[..., Any] = getattr(module, name)

    def counted(*args: Any, **more: Any) -> Any:
        calls[name] += 1
        return real(*args, **more)

    monkeypatch.setattr(module, name, counted)


@pytest.mark.parametrize("width", [3, 60])
def test_the_statistics_of_all_columns_are_computed_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """However wide the table is. Otherwise a query of a wide table takes time that is quadratic in its width."""
    calls: Counter[str] = Counter()
    with lake.client() as db:
        db.create_schema("s")
        names = [f"c{number}" for number in range(width)]
        db.create_table("s.t", pa.schema({name: pa.int64() for name in names}))
        db.insert("s.t", pa.table([[number] for number in range(width)], names=names))
        _counting(monkeypatch, calls, lake_columns, "merged_units")
        _counting(monkeypatch, calls, lake_columns, "_all_columns")
        with db.transaction():
            found = [db.statistics("s.t", name) for name in names]
        assert [each.min for each in found] == list(range(width))
        assert calls == {"merged_units": 1, "_all_columns": 1}
        db.insert("s.t", pa.table([[1000]] * width, names=names))
        assert db.statistics("s.t", "c1").max == 1000
        assert calls["merged_units"] == 2


@pytest.mark.parametrize("kind", [pa.int64(), pa.int16()], ids=str)
def test_the_columns_of_a_created_table_are_announced_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    """Also to the client that created it, which knows other types than the stored ones."""
    calls: Counter[str] = Counter()
    with lake.client() as db:
        db.create_schema("s")
        names = [f"c{number}" for number in range(20)]
        db.create_table("s.t", pa.schema(dict.fromkeys(names, kind)))
        _counting(monkeypatch, calls, lake_columns, "_announced")
        with db.transaction():
            assert [db.statistics("s.t", name).has_not_null for name in names] == [False] * 20
    assert calls["_announced"] <= 20


def test_creating_a_table_reads_its_schema_a_constant_number_of_times(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading takes time in proportion to the width, so one per column would be quadratic."""
    per_width = []
    with lake.client() as db:
        db.create_schema("s")
        for width in (3, 60):
            calls: Counter[str] = Counter()
            with monkeypatch.context() as patch:
                _counting(patch, calls, lake_table, "columns_of")
                _counting(patch, calls, lake_catalog, "columns_in")
                _counting(patch, calls, lake_table.TableInCall, "state")
                db.create_table(f"s.t{width}", pa.schema({f"c{number}": pa.int64() for number in range(width)}))
            per_width.append(dict(calls))
    assert per_width[0] == per_width[1] == {"columns_in": 1}


WIDTH = 4000


def _cpu_s(of: Callable[[int], Callable[[], object]], width: int) -> float:
    """The least CPU time of several calls of what `of` prepares for a table with `width` columns."""
    times = []
    for _ in range(3):
        call = of(width)
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def _known(width: int, kind: pa.DataType) -> Columns:
    fields = [with_id(pa.field(f"c{number}", pa.int32()), number + 1) for number in range(width)]
    columns = Columns("1", pa.schema(fields))
    return columns.created_as(pa.schema([field.with_type(kind) for field in fields]))


def _batch(width: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([1], pa.int32())] * width, names=[f"c{number}" for number in range(width)])


def _shown(width: int) -> Callable[[], object]:
    known, rows = _known(width, pa.int16()), _batch(width)
    return lambda: known.shown(rows, table="t")


def _incoming(width: int) -> Callable[[], object]:
    known = _known(width, pa.int32())
    known.announced  # noqa: B018 (it is computed once)
    given = pa.schema({name.upper(): pa.int32() for name in reversed(known.stored.names)})
    return lambda: Incoming("t", given, known=known, now=known.stored)


@pytest.mark.parametrize("step", [_shown, _incoming], ids=["rows of its creator", "inserted rows"])
def test_time_for_the_columns_of_rows_is_linear_in_the_width(step: Callable[[int], Callable[[], object]]) -> None:
    assert _cpu_s(step, WIDTH) < 30 * _cpu_s(step, WIDTH // 10)


def test_rows_of_the_creator_have_its_types_and_the_order_of_columns() -> None:
    known, rows = _known(3, pa.int16()), _batch(3).select(["c2", "c0"]).append_column("rowid", pa.array([7]))
    shown = known.shown(rows, table="t")
    assert shown.schema == pa.schema({"c2": pa.int16(), "c0": pa.int16(), "rowid": pa.int64()})
    assert shown.to_pydict() == {"c2": [1], "c0": [1], "rowid": [7]}


def test_columns_of_a_new_table_are_those_that_its_record_describes() -> None:
    from skiway.formats.iceberg.types import iceberg_schema, schema_json

    inner = pa.struct({"x": pa.int32(), "y": pa.list_(pa.string())})
    schema = iceberg_schema(pa.schema({"a": pa.int64(), "B": inner, "b_": pa.decimal128(5, 2), "ROWID": pa.string()}))
    quick, parsed = columns_in(schema), columns_of(schema_json(schema))
    assert quick.id == parsed.id
    assert quick.stored.equals(parsed.stored, check_metadata=True)


def test_statistics_are_kept_in_bounded_memory(lake: Lake, tmp_path: Path) -> None:
    """Of many snapshots of a wide table with long strings, only the most recent fit."""
    folder = tmp_path / "files" / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({f"c{number}": ["x" * 1000] for number in range(20)}), folder / "1.parquet")
    with open_source("parquet", str(folder.parent)) as source:
        handle = source.load((), "t")
    snapshot = handle.current()
    assert snapshot is not None
    cache = StatisticsCache(max_bytes=5 * 20 * 2500)
    known = columns_of(handle.schema.json)
    for number in range(50):
        columns = Columns(str(number), known.stored)
        found = cache.of(lake.realm, "t1", snapshot, columns, handle=lambda: handle)
        assert found["c7"] == ColumnStatistics(
            min=found["c7"].min, max=found["c7"].max, has_null=False, has_not_null=True
        )
        assert found["c7"].min.as_py() == "x" * 1000
    assert 2 <= len(cache) <= 5


def test_listings_of_a_folder_have_their_own_statistics(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "files" / "t"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "1.parquet")
    with open_source("parquet", str(folder.parent)) as source:
        first = source.load((), "t")
        pq.write_table(pa.table({"id": [100]}), folder / "2.parquet")
        second = source.load((), "t")
    cache, columns = StatisticsCache(), columns_of(first.schema.json)

    def high(snapshot: Snapshot | None, handle: Any) -> Any:
        assert snapshot is not None
        return cache.of(lake.realm, "t1", snapshot, columns, handle=lambda: handle)["id"].max.as_py()

    assert (high(first.current(), first), high(second.current(), second)) == (2, 100)


@pytest.mark.parametrize(
    ("nans", "bounds"), [(0, (1.5, 2.5)), (1, (None, None)), (None, (None, None))], ids=["none", "one", "unknown"]
)
def test_bounds_of_a_profiled_column_are_used_only_if_it_has_no_nan(
    lake: Lake, nans: int | None, bounds: tuple[float | None, float | None]
) -> None:
    """DuckDB treats NaN as greater than all numbers, and would skip it with a bound that does not cover it."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"ratio": pa.float64(), "id": pa.int64()}))
        db.insert("s.t", pa.table({"ratio": [1.5, 2.5, float("nan")], "id": [1, 2, 3]}))
        ref = v1.NameRef(catalog="managed", path=["s"], name="t")
        table = directory.resolve_table(lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id
        (current,) = db.scan("skiway.snapshots", columns=["snapshot_id"]).read_all()["snapshot_id"].to_pylist()
        shared = {"value_count": 3, "null_count": 0, "nan_count": nans}
        columns = [
            v1.ColumnStats(column_id=1, column_name="ratio", logical_type="DOUBLE", min="1.5", max="2.5", **shared),
            v1.ColumnStats(column_id=2, column_name="id", logical_type="INT", min="1", max="3", **shared),
        ]
        request = v1.PutColumnStatsRequest(table_id=table, snapshot_id=current, columns=columns)
        metastore_statistics.put_columns(lake.realm, [request])
        found = db.statistics("s.t", "ratio")
        assert (found.min, found.max) == bounds
        assert (db.statistics("s.t", "id").min, db.statistics("s.t", "id").max) == (1, 3)

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pyarrow.compute as pc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, expect_error, key
from skiway.errors import Conflict, InvalidArgument, NotFound
from skiway.metastore import statistics
from skiway.model import v1

Ref = v1.SnapshotRef
CURRENT = Ref(special=v1.SS_CURRENT)


@pytest.fixture
def table(factory: ResourceFactory) -> v1.Table:
    created = factory.table()
    factory.snapshot(created, 1, at=1)
    return created


def column(number: int = 1, **facts: Any) -> v1.ColumnStats:
    return v1.ColumnStats(column_id=number, **{"column_name": f"c{number}", "value_count": 10, **facts})


def file(path: str = "f", **facts: Any) -> v1.FileColumnStats:
    return v1.FileColumnStats(file_path=path, **{"row_count": 1, **facts})


def put_columns(
    factory: ResourceFactory, table: v1.Table, *columns: v1.ColumnStats, key_: str = "", snapshot_id: int = 1
) -> int:
    request = v1.PutColumnStatsRequest(
        table_id=table.resource_id, snapshot_id=snapshot_id, columns=columns, idempotency=key(key_)
    )
    return statistics.put_columns(factory.home, [request]).upserted


def put_files(factory: ResourceFactory, table: v1.Table, *files: v1.FileColumnStats, key_: str = "") -> int:
    request = v1.PutFileColumnStatsRequest(
        table_id=table.resource_id, snapshot_id=1, files=files, idempotency=key(key_)
    )
    return statistics.put_files(factory.home, [request]).upserted


def columns(factory: ResourceFactory, table: v1.Table, ref: v1.SnapshotRef = CURRENT) -> list[v1.ColumnStats]:
    request = v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
    return list(statistics.list_columns(factory.home, request).columns)


def files(factory: ResourceFactory, table: v1.Table) -> list[v1.FileColumnStats]:
    request = v1.ListFileColumnStatsRequest(table_id=table.resource_id, snapshot=CURRENT)
    return list(statistics.list_files(factory.home, request).files)


def put_table(factory: ResourceFactory, table: v1.Table, snapshot_id: int = 1, key_: str = "", **facts: Any) -> Any:
    request = v1.PutTableStatsRequest(
        table_id=table.resource_id, snapshot_id=snapshot_id, stats=v1.TableStats(**facts), idempotency=key(key_)
    )
    return statistics.put_table(factory.home, request)


def get_table(factory: ResourceFactory, table: v1.Table, ref: v1.SnapshotRef) -> v1.TableStats:
    return statistics.get_table(factory.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=ref)).stats


# --- table statistics -------------------------------------------------------------------------------------------------


@behavior(63, 66)
def test_table_statistics_are_found_by_id_by_time_and_as_current(factory, table):
    put = put_table(factory, table, row_count=5, data_file_count=1)
    assert (put.stats.table_id, put.stats.snapshot_id, put.meta.pointer_version) == (table.resource_id, 1, 1)
    for ref in (Ref(snapshot_id=1), CURRENT, Ref(as_of=Timestamp(seconds=9))):
        assert get_table(factory, table, ref) == put.stats
    early = put_table(factory, table, snapshot_id=77, row_count=6)
    assert get_table(factory, table, Ref(snapshot_id=77)) == early.stats
    with expect_error(NotFound, "table.stats", table_id=table.resource_id.id, snapshot_id="5"):
        get_table(factory, table, Ref(snapshot_id=5))
    with expect_error(InvalidArgument, "snapshot.missing"):
        get_table(factory, table, Ref())
    with expect_error(InvalidArgument, "field.invalid", field="snapshot_id"):
        put_table(factory, table, snapshot_id=-1)
    assert put_table(factory, table, row_count=7).meta.pointer_version == 2
    assert damage(factory.stores) == []


@behavior(62)
def test_put_with_the_same_idempotency_key_is_done_once(factory, table):
    stamp = v1.UpstreamStamp(commit_ref="c", fetched_at=Timestamp(seconds=1))
    first = put_table(factory, table, key_="k", row_count=5, upstream=stamp)
    put_table(factory, table, row_count=6)
    stamp.fetched_at.seconds = 2
    assert put_table(factory, table, key_="k", row_count=5, upstream=stamp) == first
    assert get_table(factory, table, CURRENT).row_count == 6
    with expect_error(Conflict, "idempotency.mismatch", op="PutTableStats"):
        put_table(factory, table, key_="k", row_count=7, upstream=stamp)


def approx(**facts: Any) -> v1.Ndv:
    return v1.Ndv(approx=v1.NdvApprox(**{"estimate": 5, **facts}))


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"row_count": -1}, "row_count"),
        ({"total_size_bytes": -1}, "total_size_bytes"),
        ({"row_count": 1, "ndv": v1.Ndv(exact=2)}, "ndv"),
        ({"ndv": v1.Ndv(exact=-1)}, "ndv"),
        ({"ndv": approx(estimate=-1)}, "ndv.estimate"),
        ({"ndv": approx(estimate=math.nan)}, "ndv.estimate"),
        ({"ndv": approx(estimate=math.inf)}, "ndv.estimate"),
        ({"ndv": approx(confidence_lower=6)}, "ndv.confidence_lower"),
        ({"ndv": approx(confidence_upper=4)}, "ndv.confidence_upper"),
        ({"ndv": approx(confidence_level=1.1)}, "ndv.confidence_level"),
        ({"ndv": approx(relative_standard_error=-0.1)}, "ndv.relative_standard_error"),
        ({"ndv": approx(rows_seen=2, rows_total=1)}, "ndv.rows_seen"),
        ({"ndv": approx(rows_seen=-2)}, "ndv.rows_seen"),
    ],
)
def test_impossible_table_statistics_are_rejected(factory, table, facts, field):
    with expect_error(InvalidArgument, "stats.invalid", field=field, target="the table"):
        put_table(factory, table, **facts)


# --- column statistics ------------------------------------------------------------------------------------------------


@behavior(64)
def test_absent_and_empty_values_are_distinguished(factory, table):
    sketch = v1.NdvSketch(type="theta", data=b"\x01")
    put_columns(
        factory,
        table,
        column(1),
        column(2, logical_type="STRING", min="", max="", null_count=0, nan_count=0),
        column(3, ndv=v1.Ndv(sketches=[sketch])),
        column(4, ndv=v1.Ndv(exact=0)),
    )
    plain, empty, sketched, exact = columns(factory, table)
    assert [plain.HasField(field) for field in ("min", "max", "null_count", "nan_count", "ndv")] == [False] * 5
    assert [empty.HasField(field) for field in ("min", "max", "null_count", "nan_count")] == [True] * 4
    assert (sketched.ndv.WhichOneof("mode"), sketched.ndv.sketches[0]) == (None, sketch)
    assert exact.ndv.WhichOneof("mode") == "exact"


def test_columns_are_replaced_and_listed_by_id(factory, table):
    assert put_columns(factory, table, column(10), column(9), column(1)) == 3
    assert put_columns(factory, table, column(9, value_count=99), column(2)) == 2
    assert [(each.column_id, each.value_count) for each in columns(factory, table)] == [
        (1, 10),
        (2, 10),
        (9, 99),
        (10, 10),
    ]
    assert {each.snapshot_id for each in columns(factory, table)} == {1}
    assert damage(factory.stores) == []


@behavior(66)
def test_columns_are_listed_in_pages_of_200(factory, table):
    put_columns(factory, table, *map(column, range(1, 451)))
    page, sizes = v1.PageRequest(), []
    while True:
        request = v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=CURRENT, page=page)
        found = statistics.list_columns(factory.home, request)
        sizes.append((len(found.columns), found.page.total_size))
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
    assert sizes == [(200, 450), (200, 450), (50, 450)]
    assert columns(factory, table, Ref(snapshot_id=5)) == []
    with expect_error(InvalidArgument, "page.token.invalid"):
        request.page.page_token = "x"
        statistics.list_columns(factory.home, request)


HISTOGRAM = v1.Histogram(bounds=["0", "5", "10"], counts=[4, 6])


@behavior(65)
@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"column_id": 0}, "column_id"),
        ({"value_count": -1}, "value_count"),
        ({"null_count": 11}, "null_count"),
        ({"null_count": -1}, "null_count"),
        ({"nan_count": 11}, "nan_count"),
        ({"ndv": v1.Ndv(exact=11)}, "ndv"),
        ({"logical_type": "point"}, "logical_type"),
        ({"logical_type": "INT", "min": "10", "max": "9"}, "min"),
        ({"logical_type": "INT", "min": "x"}, "min"),
        ({"logical_type": "MAP", "max": "x"}, "max"),
        ({"logical_type": "DATE", "max": "9999999"}, "max"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["1"])}, "histogram"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["1", "2"], counts=[1, 2])}, "histogram"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["2", "1"], counts=[1])}, "histogram"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["1", "2"], counts=[-1])}, "histogram"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["1", "2"], counts=[11])}, "histogram"),
        ({"logical_type": "INT", "histogram": v1.Histogram(bounds=["1", "x"], counts=[1])}, "histogram"),
        ({"logical_type": "JSON", "histogram": HISTOGRAM}, "histogram"),
    ],
)
def test_impossible_column_statistics_are_rejected(factory, table, facts, field):
    wrong = column()
    wrong.MergeFrom(v1.ColumnStats(**facts))
    for name in facts:
        if name in ("column_id", "value_count"):
            setattr(wrong, name, facts[name])
    with expect_error(InvalidArgument, "stats.invalid", field=field):
        put_columns(factory, table, wrong)
    with expect_error(InvalidArgument, "stats.invalid", field=field):
        put_files(factory, table, file(columns=[wrong]))


@behavior(65)
def test_bounds_are_stored_in_canonical_form(factory, table):
    histogram = v1.Histogram(bounds=["-0", "5.0"], counts=[10])
    put_columns(factory, table, column(logical_type="decimal(4,2)", min="-0.00", max="5.50", histogram=histogram))
    (found,) = columns(factory, table)
    assert (found.min, found.max, list(found.histogram.bounds)) == ("0", "5.5", ["0", "5"])


# --- uploads ----------------------------------------------------------------------------------------------------------


def stream(factory: ResourceFactory, *requests: v1.PutColumnStatsRequest) -> int:
    return statistics.put_columns(factory.home, iter(requests)).upserted


@behavior(60)
def test_upload_has_one_snapshot_and_one_idempotency_key(factory, table):
    factory.snapshot(table, 2, at=2)
    other = factory.table("other")
    factory.snapshot(other, 1)

    def request(of: v1.Table = table, snapshot_id: int = 1, key_: str = "") -> v1.PutColumnStatsRequest:
        return v1.PutColumnStatsRequest(
            table_id=of.resource_id, snapshot_id=snapshot_id, columns=[column()], idempotency=key(key_)
        )

    for second in (request(of=other), request(snapshot_id=2)):
        with expect_error(InvalidArgument, "stats.inconsistent.target"):
            stream(factory, request(), second)
    with expect_error(InvalidArgument, "idempotency.inconsistent.key", first="a", second="b"):
        stream(factory, request(key_="a"), request(key_=" "), request(key_="b"))
    assert stream(factory, request(), request(key_="c"), request(key_=" c ")) == 3
    with expect_error(InvalidArgument, "column.stats.empty"):
        stream(factory)
    with expect_error(InvalidArgument, "column.stats.empty"):
        stream(factory, v1.PutColumnStatsRequest(table_id=table.resource_id, snapshot_id=1))
    with expect_error(InvalidArgument, "file.column.stats.empty"):
        statistics.put_files(factory.home, [])


@behavior(61)
def test_items_before_a_rejected_one_are_stored(factory, table):
    with expect_error(InvalidArgument, "stats.invalid"):
        put_columns(factory, table, column(1), column(2), column(3, value_count=-1), column(4))
    assert [each.column_id for each in columns(factory, table)] == [1, 2]
    with expect_error(InvalidArgument, "field", field="file_path"):
        put_files(factory, table, file("a"), file(" "), file("c"))
    assert [each.file_path for each in files(factory, table)] == ["a"]


@behavior(61)
def test_large_uploads_are_stored_in_batches(factory, table, monkeypatch):
    monkeypatch.setattr("skiway.metastore.statistics.api.STEP", 3)
    assert put_columns(factory, table, *map(column, range(1, 9))) == 8
    assert len(columns(factory, table)) == 8


@behavior(62)
def test_columns_sent_again_with_the_same_key_change_nothing(factory, table):
    assert put_columns(factory, table, column(1), column(2), key_="k") == 2
    before = columns(factory, table)
    assert put_columns(factory, table, column(1), column(2), column(3), key_="k") == 3
    assert columns(factory, table)[:2] == before
    with expect_error(Conflict, "idempotency.mismatch", op="PutColumnStats", idempotency_key="k"):
        put_columns(factory, table, column(4), column(1, value_count=11), column(5), key_="k")
    assert [each.column_id for each in columns(factory, table)] == [1, 2, 3, 4]
    put_columns(factory, table, column(1, value_count=11), key_="other")
    factory.clock.advance(900)
    assert put_columns(factory, table, column(2, value_count=12), key_="k") == 1
    assert [each.value_count for each in columns(factory, table)] == [11, 12, 10, 10]


@behavior(62)
def test_files_sent_again_with_the_same_key_change_nothing(factory, table):
    assert put_files(factory, table, file("a"), file("b"), key_="k") == 2
    assert put_files(factory, table, file("b"), file("c"), key_="k") == 2
    with expect_error(Conflict, "idempotency.mismatch", op="PutFileColumnStats"):
        put_files(factory, table, file("d"), file("a", row_count=9), key_="k")
    assert [each.file_path for each in files(factory, table)] == ["a", "b", "c", "d"]
    factory.clock.advance(900)
    put_files(factory, table, file("a", row_count=9), key_="k")
    assert files(factory, table)[0].row_count == 9


@behavior(63)
def test_columns_and_files_need_an_existing_snapshot(factory, table):
    with expect_error(NotFound, "snapshot", id="5"):
        put_columns(factory, table, column(), snapshot_id=5)


def test_another_account_can_neither_write_nor_read_statistics(factory, table):
    put_columns(factory, table, column())
    factory.account("a2")
    other_realm = factory.realm("a2")
    request = v1.PutColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, columns=[column()])
    with expect_error(NotFound, "table"):
        statistics.put_columns(other_realm, [request])
    with expect_error(NotFound, "table"):
        statistics.list_columns(
            other_realm, v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=Ref(snapshot_id=1))
        )


# --- file statistics --------------------------------------------------------------------------------------------------


@behavior(64)
def test_files_are_returned_as_they_were_stored(factory, table):
    full = v1.FileColumnStats(
        file_path="s3://b/ä.parquet",
        file_format="parquet",
        row_count=10,
        size_bytes=99,
        file_content=v1.FC_EQUALITY_DELETES,
        partition_data_json='{"d":1}',
        partition_spec_id=3,
        equality_field_ids=[1, 2],
        sequence_number=0,
        columns=[
            column(
                1,
                logical_type="STRING",
                min="",
                max="z",
                null_count=0,
                ndv=v1.Ndv(exact=3, sketches=[v1.NdvSketch(data=b"\x00")]),
                tdigest=b"\x01",
                properties={"a": "b"},
                upstream=v1.UpstreamStamp(commit_ref="c"),
                histogram=v1.Histogram(bounds=["a", "b"], counts=[1]),
            ),
            column(2),
        ],
    )
    assert put_files(factory, table, full, file("plain")) == 2
    plain, found = files(factory, table)
    assert not plain.HasField("sequence_number")
    for each in (full, *full.columns):
        each.table_id.CopyFrom(table.resource_id)  # type: ignore[attr-defined]
        each.snapshot_id = 1  # type: ignore[attr-defined]
    assert found == full
    assert damage(factory.stores) == []


def test_files_are_replaced_and_paged_by_path(factory, table):
    put_files(factory, table, *(file(f"f{number:03d}") for number in range(250)))
    put_files(factory, table, file("f100", row_count=7), file("a"), file("a", row_count=8))
    page, seen = v1.PageRequest(), []
    while True:
        request = v1.ListFileColumnStatsRequest(table_id=table.resource_id, snapshot=CURRENT, page=page)
        found = statistics.list_files(factory.home, request)
        seen.append([(each.file_path, each.row_count) for each in found.files])
        assert found.page.total_size == 251
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
        put_files(factory, table, file("f200", row_count=2))
    assert [len(each) for each in seen] == [200, 51]
    shown = dict(chain.from_iterable(seen))
    assert (len(shown), shown["a"], shown["f100"], shown["f200"]) == (251, 8, 7, 2)


def test_file_statistics_are_available_as_one_table(factory, table):
    put_files(factory, table, *(file(f"f{number}", columns=[column(1, min=str(number))]) for number in range(3)))
    found = statistics.file_statistics(factory.home, table.resource_id.id, 1)
    bounds = pc.struct_field(pc.list_flatten(found["columns"]), "min")
    assert bounds.to_pylist() == ["0", "1", "2"]
    assert statistics.file_statistics(factory.home, table.resource_id.id, 9).num_rows == 0


def test_statistics_of_a_snapshot_use_three_pointers_regardless_of_size(factory, table, calls):
    put_table(factory, table)
    put_columns(factory, table, *map(column, range(1, 100)))
    put_files(factory, table, *(file(f"f{number}") for number in range(100)))
    stats = [each for each in factory.stores.pointers.scan() if "/stats/" in each.key]
    assert len(stats) == 3
    calls.reset()
    put_files(factory, table, *(file(f"g{number}") for number in range(100)))
    assert calls.total == 8


# --- sizes of tables --------------------------------------------------------------------------------------------------


def test_listing_has_the_sizes_of_current_snapshots(factory: ResourceFactory, table: v1.Table) -> None:
    factory.snapshot(table, 2, at=2)
    factory.table("empty")
    for snapshot_id, rows in ((1, 10), (2, 20)):
        put_table(factory, table, snapshot_id, row_count=rows, data_file_count=2, total_size_bytes=300)
    request = v1.ListTablesRequest(namespace_id=table.namespace_id)
    plain = statistics.list_tables(factory.home, request)
    request.with_sizes = True
    found = statistics.list_tables(factory.home, request)
    assert (list(found.tables), found.page) == (list(plain.tables), plain.page)
    assert not plain.sizes
    wanted = v1.TableSize(
        table_id=table.resource_id, snapshot_id=2, row_count=20, data_file_count=2, total_size_bytes=300
    )
    assert list(found.sizes) == [wanted]


def test_sizes_belong_to_the_tables_of_the_page(factory: ResourceFactory) -> None:
    for name in ("a", "b", "c"):
        made = factory.table(name)
        factory.snapshot(made, 1, at=1)
        put_table(factory, made, row_count=1)
    request = v1.ListTablesRequest(namespace_id=made.namespace_id, with_sizes=True, page=v1.PageRequest(page_size=2))
    first = statistics.list_tables(factory.home, request)
    assert [each.table_id for each in first.sizes] == [each.resource_id for each in first.tables]
    request.page.page_token = first.page.next_page_token
    assert [each.table_id for each in statistics.list_tables(factory.home, request).sizes] == [made.resource_id]
